"""Programs that use the package in a way that cannot work: each is told what to change."""

import os
import subprocess
import sys
import tempfile
import unittest

import torch
from group import SAMPLES, run

import antdt


def setUpModule():
    # This process trains alone.
    antdt.init()


class Wrong(unittest.TestCase):
    """Loops that cannot work are told what to change."""

    def told(self, remedy, loop, **how):
        def script(rank):
            model = antdt.DDP(torch.nn.Linear(1, 1))
            optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.0))
            loop(model, optimizer, antdt.BatchSampler(range(SAMPLES)))

        with self.assertRaisesRegex(antdt.UsageError, remedy):
            run(script, **how)

    def loss(self, model, batch):
        return model(torch.tensor(batch).float().unsqueeze(1)).mean()

    def test_a_step_without_a_batch(self):
        self.told("a step without a gradient", lambda model, optimizer, batches: optimizer.step())

    def test_a_backward_pass_without_a_batch(self):
        self.told("without a batch", lambda model, optimizer, batches: self.loss(model, [1]).backward())

    def test_two_steps_with_one_batch(self):
        def loop(model, optimizer, batches):
            self.loss(model, next(iter(batches))).backward()
            optimizer.step()
            optimizer.step()

        self.told("a step without a gradient", loop)

    def test_two_samplers(self):
        self.told("a job has one antdt.BatchSampler", lambda *_: antdt.BatchSampler(range(SAMPLES)))

    def test_a_process_group_of_torch_whose_collectives_would_wait_for_the_dead(self):
        distributed = torch.distributed
        self.addCleanup(distributed.destroy_process_group)
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        self.told("leave the group out", lambda model, optimizer, batches: next(iter(batches)))

    def test_a_model_after_the_first_batch(self):
        def loop(model, optimizer, batches):
            next(iter(batches))
            antdt.DDP(torch.nn.Linear(1, 1))

        self.told("before the training loop", loop)

    def test_backward_passes_in_no_sync_only(self):
        def loop(model, optimizer, batches):
            for batch in batches:
                with model.no_sync():
                    self.loss(model, batch).backward()
                if steps:
                    optimizer.step()

        for steps in (True, False):
            with self.subTest(steps=steps):
                self.told(r"in no_sync\(\) only", loop)

    def test_models_that_differ_between_workers(self):
        def other(rank, frozen):
            def script(own):
                model = torch.nn.Sequential(
                    torch.nn.Linear(3, 3), torch.nn.Linear(3, 4 if own == rank and not frozen else 3)
                )
                model[0].requires_grad_(not (frozen and own == rank))
                antdt.DDP(model)
                antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.0))
                list(antdt.BatchSampler(range(SAMPLES)))

            return script

        for rank in (0, 1):
            for frozen in (False, True):
                with self.subTest(rank=rank, frozen=frozen):
                    with self.assertRaisesRegex(antdt.UsageError, "the model differs between workers: this one has"):
                        run(other(rank, frozen))


class Missing(unittest.TestCase):
    """Of packages that this Python lacks."""

    def said(self, text, name="torch", use="antdt.DDP"):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, f"{name}.py"), "w") as file:
                file.write(text)
            paths = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
            ended = subprocess.run(
                [sys.executable, "-c", f"import antdt; antdt.init(); {use}"],
                env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
        self.assertEqual(ended.returncode, 1, ended.stderr)
        return ended.stderr

    def test_torch_that_is_missing(self):
        said = self.said("raise ModuleNotFoundError('none')")
        self.assertIn("antdt._job.UsageError: antdt.DDP needs torch", said)
        self.assertIn("pip install torch", said)

    def test_torch_that_is_too_old(self):
        self.assertIn("needs torch 1.13 or newer", self.said("__version__ = '1.12.1+cpu'", use="antdt.wrap"))

    def test_numpy_that_is_missing(self):
        said = self.said("raise ModuleNotFoundError('none')", "numpy", "antdt.ShardClient(9)")
        self.assertIn("pip install numpy", said)


if __name__ == "__main__":
    unittest.main()
