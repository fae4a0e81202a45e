"""The scripts of `antdt-py/examples`, under `antdt run` and alone, with small settings."""

import difflib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")
PROGRAM = os.environ["ANTDT"]
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None
#: No script of these tests takes as long.
LIMIT = 120


def run(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)  # fmt: skip
    if ended.returncode != 0:
        raise AssertionError(f"{command} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def script(name, *arguments):
    return [sys.executable, os.path.join(EXAMPLES, name), *arguments]


class Examples(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name

    def run_job(self, name, *arguments, samples, epochs, batch):
        """Runs the example with two workers; returns its line's numbers, before and after the training."""
        command = [
            PROGRAM, "run", "--nproc-per-node", "2", "--data", f"samples:{samples}", "--epochs", str(epochs),
            "--global-batch-size", str(batch), "--report-dir", self.folder, "--",
            *script(name, "--samples", str(samples), "--epochs", str(epochs), *arguments),
        ]  # fmt: skip
        said = run(command)
        with open(os.path.join(self.folder, "report.json")) as file:
            counted = json.load(file)["samples"]
        self.assertEqual(counted["expected"], samples * epochs, said)
        self.assertEqual(counted["committed"], samples * epochs, said)
        return self.improvement(said)

    def improvement(self, said):
        lines = re.findall(r"(?:accuracy|loss) (\S+) -> (\S+)", said)
        self.assertEqual(len(lines), 1, said)
        return tuple(float(number) for number in lines[0])

    def test_ddp_of_antdt_learns_digits(self):
        before, after = self.run_job("ddp_antdt.py", samples=2000, epochs=3, batch=32)
        self.assertGreater(after, before + 0.3)

    def test_each_script_trains_without_a_job(self):
        found = {"ddp_antdt.py": 1, "tar_digits.py": 1, "gpt_bytes.py": -1, "deepfm_clicks.py": -1}
        if HAS_TRANSFORMERS:
            found["huggingface_bytes.py"] = -1
        if HAS_LIGHTNING:
            found["lightning_digits.py"] = 1
        for name, sign in found.items():
            with self.subTest(name):
                before, after = self.improvement(run(script(name, "--samples", "2000", "--epochs", "1")))
                self.assertGreater(sign * (after - before), 0)

    def test_plain_ddp_learns_digits_under_the_same_program(self):
        command = [PROGRAM, "run", "--nproc-per-node", "2", "--report-dir", self.folder, "--"]
        said = run([*command, *script("ddp_plain.py", "--samples", "2000", "--epochs", "3", "--batch-size", "16")])
        before, after = self.improvement(said)
        self.assertGreater(after, before + 0.3)

    def test_few_lines_make_plain_ddp_a_worker(self):
        texts = []
        for name in ("ddp_plain.py", "ddp_antdt.py"):
            with open(os.path.join(EXAMPLES, name)) as file:
                texts.append([line for line in file.read().splitlines() if line])
        changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
        self.assertLessEqual(sum(line[0] == "+" for line in changes), 8, changes)
        self.assertLessEqual(sum(line[0] == "-" for line in changes), 12, changes)

    def test_digits_are_learned_from_shards_of_tar(self):
        before, after = self.run_job("tar_digits.py", samples=2000, epochs=3, batch=32)
        self.assertGreater(after, before + 0.3)

    def test_gpt_learns_its_own_text(self):
        before, after = self.run_job("gpt_bytes.py", samples=600, epochs=2, batch=32)
        self.assertLess(after, before - 1.5)

    def test_deepfm_learns_clicks(self):
        before, after = self.run_job("deepfm_clicks.py", samples=8000, epochs=2, batch=128)
        self.assertLess(after, before - 0.05)

    @unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
    def test_trainer_of_huggingface_learns_its_own_text(self):
        before, after = self.run_job("huggingface_bytes.py", samples=600, epochs=2, batch=32)
        self.assertLess(after, before - 1.5)

    @unittest.skipUnless(HAS_LIGHTNING, "lightning is not installed")
    def test_trainer_of_lightning_learns_digits(self):
        before, after = self.run_job("lightning_digits.py", samples=2000, epochs=3, batch=32)
        self.assertGreater(after, before + 0.3)


if __name__ == "__main__":
    unittest.main()
