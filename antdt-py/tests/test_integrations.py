"""Trainers of other packages as workers: skipped where the package is not installed."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
import unittest

import test_jobs


def is_missing(package):
    if importlib.util.find_spec(package) is not None:
        return False
    print(f"SKIPPED: {package} is not installed", file=sys.stderr)
    return True


class Trainers:
    """Tests of a script that counts the samples of a trainer."""

    script = ""
    #: What a trainer calls steps of several batches.
    accumulation = ""

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

    def test_what_a_job_cannot_follow_is_answered_with_what_to_change(self):
        said = self.run_job(self.script, code=1, options=("--force",), EPOCHS="3")
        self.assertIn("antdt run --epochs 3", said)
        said = self.run_job(self.script, code=1, options=("--force",), ACCUMULATED="2")
        self.assertIn(f"{self.accumulation} adds up several batches", said)

    def test_the_same_script_trains_without_a_job(self):
        environment = {**os.environ, "SAMPLES": "100", "EPOCHS": "2"}
        command = [sys.executable, os.path.join(test_jobs.HERE, self.script), self.folder]
        subprocess.run(command, env=environment, check=True, timeout=test_jobs.LIMIT, capture_output=True)
        found = self.read("counts-*.json")["counts-0.json"]
        self.assertEqual(set(found["counts"]), {2})


@unittest.skipIf(is_missing("transformers"), "transformers is not installed")
class HuggingFace(Trainers, unittest.TestCase):
    script = "counting_huggingface.py"
    accumulation = "gradient_accumulation_steps"

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
    accumulation = "accumulate_grad_batches"

    def assert_saved(self, found):
        """After the last step; the epochs that were asked for are each followed by a validation."""
        self.assertIn(f"step={found['steps']}.ckpt", " ".join(found["saved"]))
        self.assertEqual(found["validated"], [0, 1])


if __name__ == "__main__":
    unittest.main()
