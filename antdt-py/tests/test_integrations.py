"""Trainers of other packages as workers: skipped where the package is not installed."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
import types
import unittest

import test_jobs

import antdt

#: What trainers want to know of a job.
JOB = types.SimpleNamespace(info=types.SimpleNamespace(epochs=2))


def setUpModule():
    # This process trains alone.
    antdt.init()


def is_missing(package):
    if importlib.util.find_spec(package) is not None:
        return False
    print(f"SKIPPED: {package} is not installed", file=sys.stderr)
    return True


class Trainers:
    """Tests of a script that counts the samples of a trainer."""

    script = ""

    setUp = test_jobs.Jobs.setUp
    run_job = test_jobs.Jobs.run_job
    report = test_jobs.Jobs.report
    read = test_jobs.Jobs.read
    assert_counted = test_jobs.Jobs.assert_counted
    started = test_jobs.Jobs.started

    def test_each_sample_is_in_one_step_of_each_epoch_and_rank_0_saves(self):
        said = self.run_job(self.script, epochs=2, options=("--global-batch-size", "32"))
        # Of a scheduler that finds another method in place of its own.
        self.assertNotIn("has been overridden", said)
        counted = self.assert_counted(epochs=2)
        self.assertEqual(len(counted), 2)
        self.assertEqual(len({(found["steps"], found["scheduled"]) for found in counted.values()}), 1, said)
        self.assert_saved(counted["counts-0.json"])
        # The batches are those of the job: of 32 samples over all workers.
        self.assertAlmostEqual(counted["counts-0.json"]["steps"], 2 * 601 / 32, delta=6)
        self.assertEqual(counted["counts-1.json"]["saved"], [])

    def test_a_killed_worker_is_replaced_in_a_later_epoch(self):
        job = test_jobs.start(
            self.folder, self.script, "0.1", samples=1200, epochs=2, options=("--global-batch-size", "60"), WAITS="25"
        )  # fmt: skip
        self.addCleanup(job.kill)
        deadline = time.monotonic() + test_jobs.LIMIT
        while len(self.started()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.5)
        before = self.started()
        os.kill(before["1"][0], signal.SIGKILL)
        said, _ = job.communicate(timeout=test_jobs.LIMIT)
        self.assertEqual(job.returncode, 0, said)
        after = self.started()
        self.assertEqual(after["0"], before["0"], said)
        self.assertEqual(len(after["1"]), 2, said)
        counted = self.assert_counted(epochs=2)
        self.assertEqual(len(counted), 2, said)
        scheduled = [found["scheduled"] for found in counted.values()]
        self.assertLess(max(scheduled) - min(scheduled), 4, said)
        self.assert_saved(counted["counts-0.json"])

    def test_another_number_of_epochs_is_answered_with_that_of_the_script(self):
        self.assertIn("antdt run --epochs 3", self.run_job(self.script, code=1, options=("--force",), EPOCHS="3"))

    def test_what_a_job_cannot_follow_is_refused(self):
        for setting, check in self.refused().items():
            with self.subTest(setting), self.assertRaisesRegex(antdt.UsageError, setting):
                check()

    def test_a_trainer_that_stops_early_fails_the_job(self):
        said = self.run_job(self.script, code=1, options=("--force", "--global-batch-size", "32"), STOPS="5")
        self.assertIn("ended before the end of the data", said)

    def test_the_same_script_trains_without_a_job(self):
        environment = {**os.environ, "SAMPLES": "100", "EPOCHS": "2"}
        command = [sys.executable, os.path.join(test_jobs.HERE, self.script), self.folder]
        subprocess.run(command, env=environment, check=True, timeout=test_jobs.LIMIT, capture_output=True)
        found = self.read("counts-*.json")["counts-0.json"]
        self.assertEqual(set(found["counts"]), {2})


@unittest.skipIf(is_missing("transformers"), "transformers is not installed")
class HuggingFace(Trainers, unittest.TestCase):
    script = "counting_huggingface.py"

    def refused(self):
        from antdt.huggingface import Trainer, TrainingArguments, _check

        def arguments(**setting):
            return lambda: _check(TrainingArguments(self.folder, num_train_epochs=2, use_cpu=True, **setting), JOB)

        trainer = object.__new__(Trainer)
        trainer._job = JOB
        return {
            "max_steps": arguments(max_steps=5),
            "gradient_accumulation_steps": arguments(gradient_accumulation_steps=2),
            "resume_from_checkpoint": lambda: trainer.train(resume_from_checkpoint=True),
        }

    def test_batches_are_read_ahead_by_the_processes_that_the_arguments_ask_for(self):
        self.run_job(self.script, options=("--global-batch-size", "32"), READERS="1")
        self.assert_counted(epochs=1)

    def assert_saved(self, found):
        """Every ten steps, and once after the last."""
        steps = {*range(10, found["steps"] + 1, 10), found["steps"]}
        self.assertEqual(
            {name for name in found["saved"] if name.startswith("checkpoint-")},
            {f"checkpoint-{step}" for step in steps},
        )


@unittest.skipIf(is_missing("lightning"), "lightning is not installed")
class Lightning(Trainers, unittest.TestCase):
    script = "counting_lightning.py"

    def refused(self):
        from lightning.pytorch import Trainer

        from antdt.lightning import _check

        def settings(**setting):
            return lambda: _check(Trainer(max_epochs=2, accelerator="cpu", logger=False, **setting), JOB)

        return {"max_steps": settings(max_steps=5), "accumulate_grad_batches": settings(accumulate_grad_batches=2)}

    def assert_saved(self, found):
        """After the last step; the epochs that were asked for are each followed by a validation."""
        self.assertIn(f"step={found['steps']}.ckpt", " ".join(found["saved"]))
        self.assertEqual(found["validated"], [0, 1])


if __name__ == "__main__":
    unittest.main()
