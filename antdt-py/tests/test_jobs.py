"""Jobs of `antdt run` whose workers are PyTorch scripts. `ANTDT` names the program; the package is on the path.

Run by `cargo xtask python`, or: `ANTDT=target/debug/antdt python3 -m unittest discover antdt-py/tests`.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch

import antdt

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ["ANTDT"]
#: No job of these tests takes as long.
LIMIT = 120


def start(folder, script, *arguments, workers=2, samples=601, epochs=1, options=(), **variables):
    data = [] if samples is None else ["--data", f"samples:{samples}", "--epochs", str(epochs)]
    command = [
        PROGRAM, "run", "--nproc-per-node", str(workers), *data, "--report-dir", os.path.join(folder, "report"),
        *options, "--", sys.executable, os.path.join(HERE, script), folder, *arguments,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "SAMPLES": str(samples or 601),
        "EPOCHS": str(epochs),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def setUpModule():
    # This process trains alone.
    antdt.init()


class Jobs(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name

    def run_job(self, script, *arguments, code=0, **settings):
        job = start(self.folder, script, *arguments, **settings)
        self.addCleanup(job.kill)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, code, said)
        return said

    def report(self):
        with open(os.path.join(self.folder, "report", "report.json")) as file:
            return json.load(file)

    def read(self, pattern):
        found = {}
        for path in glob.glob(os.path.join(self.folder, pattern)):
            with open(path) as file:
                found[os.path.basename(path)] = json.load(file)
        return found

    def assert_counted(self, epochs):
        counted = self.read("counts-*.json")
        self.assertTrue(counted)
        for name, found in counted.items():
            wrong = {sample: count for sample, count in enumerate(found["counts"]) if count != epochs}
            self.assertEqual(wrong, {}, name)
        samples = self.report()["samples"]
        self.assertEqual(samples["committed"], samples["expected"], samples)
        return counted

    def survives_a_kill(self, job):
        """Kills worker 1 of 3: the others keep their processes, and the count is exact."""
        deadline = time.monotonic() + LIMIT
        while len(self.started()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.5)
        before = self.started()
        os.kill(before["1"][0], signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, said)
        after = self.started()
        self.assertEqual([after[rank] for rank in "02"], [before[rank] for rank in "02"], said)
        self.assertEqual(len(after["1"]), 2, said)
        return self.assert_counted(epochs=1)

    def test_each_sample_is_in_one_step_of_each_epoch(self):
        self.run_job("counting.py", workers=3, epochs=2)
        self.assertEqual(len(self.assert_counted(epochs=2)), 3)

    def test_workers_train_the_model_that_one_process_trains_on_the_whole_batches(self):
        self.assert_equal_to_one_process(accumulate=1)

    def test_several_batches_make_a_step_as_one_batch_of_all_their_samples_does(self):
        self.assert_equal_to_one_process(accumulate=4)

    def test_the_end_of_the_data_takes_a_step_with_the_batches_there_are(self):
        self.assert_equal_to_one_process(accumulate=1000)

    def assert_equal_to_one_process(self, accumulate):
        from digits import EPOCHS, SAMPLES, Network, data, train

        self.run_job(
            "digits.py", workers=3, samples=SAMPLES, epochs=EPOCHS, options=("--global-batch-size", "32"),
            ACCUMULATE=str(accumulate),
        )  # fmt: skip
        steps = [found for _, found in sorted(self.read("steps-*.json").items())]
        self.assertEqual({len(found) for found in steps}, {len(steps[0])}, "all take every step")
        whole = [sorted(sum(batches, [])) for batches in zip(*steps)]
        self.assertEqual(sorted(sum(whole, [])), sorted(list(range(SAMPLES)) * EPOCHS))
        torch.manual_seed(0)
        network, rows = Network(), data()
        # At the end of the data all may have nothing, and take no step.
        whole = [batch for batch in whole if batch]
        whole = [sum(whole[begin : begin + accumulate], []) for begin in range(0, len(whole), accumulate)]
        train(network, [rows[batch] for batch in whole], 1, lambda _: None, plain=accumulate > 1)
        for rank in range(3):
            found = torch.load(os.path.join(self.folder, f"model-{rank}.pt"))
            for name, expected in network.state_dict().items():
                difference = (found[name] - expected).abs().max() / expected.abs().max()
                self.assertLess(float(difference), 1e-6, f"{name} of rank {rank}")

    def test_a_killed_worker_is_replaced_and_the_others_keep_their_processes(self):
        job = start(self.folder, "counting.py", "0.1", workers=3, samples=3000, options=("--global-batch-size", "60"))
        self.addCleanup(job.kill)
        counted = self.survives_a_kill(job)
        # A batch that comes again is scheduled again; a schedule that began anew would lack all steps before the death.
        scheduled = [found["scheduled"] for found in counted.values()]
        self.assertLess(max(scheduled) - min(scheduled), 4)

    def test_what_the_processes_of_a_killed_worker_had_read_of_a_stream_goes_to_others(self):
        options = ("--global-batch-size", "60")
        job = start(
            self.folder, "counting.py", "0.1", workers=3, samples=3000, options=options, READERS="2", STREAM="1"
        )
        self.addCleanup(job.kill)
        self.survives_a_kill(job)
        readers = {pid: samples for pid, samples in self.reads().items() if pid not in sum(self.started().values(), [])}
        self.assertGreaterEqual(len(readers), 2 * 3)
        self.assertEqual({sample for samples in readers.values() for sample in samples}, set(range(3000)))

    def test_a_job_that_was_killed_goes_on_from_its_checkpoint_with_other_workers(self):
        options = ("--global-batch-size", "60", "--checkpoint-every", "4steps")
        job = start(self.folder, "counting.py", "0.1", workers=3, samples=3000, epochs=2, options=options)
        self.addCleanup(job.kill)
        kept = os.path.join(self.folder, "report", "run", "checkpoints", "*", "manifest.json")
        deadline = time.monotonic() + LIMIT
        while len(glob.glob(kept)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        job.kill()
        job.communicate(timeout=LIMIT)
        self.assertEqual(self.read("counts-*.json"), {})
        options = (*options, "--resume", os.path.join(self.folder, "report"))
        said = self.run_job("counting.py", workers=2, samples=3000, epochs=2, options=options)
        self.assertRegex(said, "resumed from checkpoint [1-9]")
        counted = self.assert_counted(epochs=2)
        self.assertEqual(len(counted), 2)
        # The schedule goes on where it was.
        self.assertGreater(min(found["scheduled"] for found in counted.values()), 90)
        newest = sorted(glob.glob(os.path.join(os.path.dirname(os.path.dirname(kept)), "*", "program.safetensors")))[-1]
        with open(newest, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            begin, end = header["modules.0.counts"]["data_offsets"]
            file.seek(begin, os.SEEK_CUR)
            counts = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.int64)
        self.assertEqual(set(counts.tolist()), {2}, "other programs read the model")

    def test_workers_that_all_die_go_on_from_the_newest_checkpoint(self):
        options = ("--global-batch-size", "60", "--checkpoint-every", "4steps")
        job = start(self.folder, "counting.py", "0.05", workers=3, samples=3000, epochs=2, options=options, READERS="1")
        self.addCleanup(job.kill)
        kept = os.path.join(self.folder, "report", "run", "checkpoints", "*", "manifest.json")
        deadline = time.monotonic() + LIMIT
        while len(glob.glob(kept)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        for pids in self.started().values():
            os.kill(pids[0], signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, said)
        self.assertIn("went back to checkpoint", said)
        self.assert_counted(epochs=2)

    def test_a_worker_that_comes_when_all_is_trained_does_not_go_on_with_the_model_of_the_checkpoint(self):
        self.run_job("counting.py", samples=1500)
        for name in self.read("counts-*.json"):
            os.remove(os.path.join(self.folder, name))
        options = ("--resume", os.path.join(self.folder, "report"), "--global-batch-size", "30")
        job = start(self.folder, "counting.py", "0.1", samples=1500, epochs=2, options=options, LATE="1")
        self.addCleanup(job.kill)
        deadline = time.monotonic() + LIMIT
        while len(self.started()["1"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(self.started()["1"][1], signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, said)
        self.assertEqual(list(self.assert_counted(epochs=2)), ["counts-0.json"], said)
        self.assertIn("before this worker had the model", said)

    def reads(self):
        found = {}
        for path in glob.glob(os.path.join(self.folder, "read-*")):
            with open(path) as file:
                found[int(path.rsplit("-", 1)[1])] = [int(line) for line in file]
        return found

    def test_batches_are_read_ahead_by_processes_and_each_sample_counts_once(self):
        said = self.run_job("counting.py", "0.01", workers=2, samples=2003, epochs=2, READERS="2")
        self.assert_counted(epochs=2)
        workers = {pid for pids in self.started().values() for pid in pids}
        read = {pid: samples for pid, samples in self.reads().items() if pid not in workers}
        self.assertEqual(len(read), 4, f"two processes for each worker, for all epochs: {said}")
        self.assertEqual({sample for samples in read.values() for sample in samples}, set(range(2003)))
        # Samples that nobody waited for are few: where a shard ends and at the end of the data.
        self.assertLess(sum(len(samples) for samples in read.values()), 1.2 * 2 * 2003, said)

    def test_a_reading_process_that_dies_costs_no_sample(self):
        job = start(self.folder, "counting.py", "0.1", samples=3000, options=("--global-batch-size", "60"), READERS="2")
        self.addCleanup(job.kill)
        deadline = time.monotonic() + LIMIT
        while len(self.reads()) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = {pid for pids in self.started().values() for pid in pids}
        os.kill(next(pid for pid in self.reads() if pid not in workers), signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, said)
        self.assertIn("DataLoader worker (pid", said)
        self.assertEqual(sorted(len(pids) for pids in self.started().values()), [1, 2], said)
        self.assert_counted(epochs=1)

    def test_a_worker_that_hangs_before_its_step_is_replaced(self):
        said = self.run_job("counting.py", "0.05", samples=2400, options=("--global-batch-size", "60"), HANGS="1")
        self.assertIn("worker-1#0 hangs while", said)
        self.assert_counted(epochs=1)

    def test_workers_come_and_go_while_the_job_runs(self):
        job = start(self.folder, "counting.py", "0.1", samples=6000, options=("--global-batch-size", "60"), LEAVES="3")
        self.addCleanup(job.kill)
        for workers, rank in ((3, "2"), (1, None)):
            deadline = time.monotonic() + LIMIT
            while len(self.started()) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(1)
            run = os.path.join(self.folder, "report", "run")
            subprocess.run([PROGRAM, "scale", str(workers), run], check=True, capture_output=True, timeout=LIMIT)
            while rank is not None and rank not in self.started() and time.monotonic() < deadline:
                time.sleep(0.05)
        said, _ = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, said)
        self.assertEqual(list(self.assert_counted(epochs=1)), ["counts-0.json"], said)

    def test_a_loop_without_torch_trains_one_model_and_counts_each_sample_once(self):
        job = start(
            self.folder,
            "plain.py",
            "0.05",
            workers=3,
            samples=3000,
            options=("--global-batch-size", "60"),
            GRADIENT="1",
        )
        self.addCleanup(job.kill)
        counted = self.survives_a_kill(job)
        lines = [found["w"] for found in counted.values()]
        self.assertEqual(lines, [lines[0]] * 3, "one model, which began apart")
        self.assertLess(max(abs(a - b) for a, b in zip(lines[0], [1.0, -2.0, 0.5])), 0.05)

    def test_batches_alone_are_each_sample_once(self):
        self.run_job("plain.py", workers=3, samples=601, epochs=2)
        own = [found["own"] for found in self.read("counts-*.json").values()]
        self.assertEqual(sorted(sum(own, [])), sorted(list(range(601)) * 2))

    def started(self):
        found = {}
        for path in glob.glob(os.path.join(self.folder, "started-*")):
            with open(path) as file:
                found[path.rsplit("-", 1)[1]] = [int(line) for line in file if line.endswith("\n")]
        return found

    def test_a_number_of_samples_that_is_wrong_is_answered_with_the_right_one(self):
        said = self.run_job("counting.py", code=1, samples=600, SAMPLES="601")
        self.assertIn("--data samples:601", said)

    def test_a_script_of_a_job_that_was_told_of_no_samples_is_answered_once_with_the_number(self):
        said = self.run_job("counting.py", code=1, samples=None)
        self.assertIn("--data samples:601", said)
        self.assertEqual([worker["restarts"] for worker in self.report()["workers"]], [0, 0])

    def test_wrong_use_is_answered_with_what_to_call(self):
        for how, remedy in {
            "no-optimizer": "antdt.wrap(optimizer)",
            "no-backward": "loss.backward()",
            "twice": "call backward() once",
            "no-zero": "optimizer.zero_grad()",
            "ahead": "antdt.DataLoader(dataset, num_workers=",
        }.items():
            with self.subTest(how):
                self.assertIn(remedy, self.run_job("wrong.py", how, code=1, options=("--force",)))

    def test_what_only_some_workers_do_fails_the_job_which_names_the_one(self):
        for how, said in {
            "differs": r"worker-1 ended: .*the model differs between workers",
            "leaves": r"worker-1#0 ended before the end of the data",
            "skips": r"worker-1 ended: .*a batch was taken before the step with the one before",
        }.items():
            with self.subTest(how):
                options = ("--force", "--global-batch-size", "30")
                self.assertRegex(self.run_job("wrong.py", how, code=1, options=options), "error: " + said)

    def test_a_step_that_the_script_leaves_out_is_over_all_the_same(self):
        self.run_job("wrong.py", "no-step")
        self.assertEqual(self.report()["samples"]["committed"], 601)

    def test_what_a_script_does_after_the_training_is_waited_for_and_counts(self):
        said = self.run_job("wrong.py", "raises-later", code=1)
        self.assertIn("after the training", said)
        self.assertEqual(self.report()["samples"]["committed"], 601)

    def test_an_error_of_the_script_is_shown_with_its_traceback(self):
        said = self.run_job("wrong.py", "raises", code=1)
        self.assertIn("ZeroDivisionError", said)


class Alone(unittest.TestCase):
    def test_the_same_script_trains_without_a_job(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(HERE, "counting.py")
            subprocess.run([sys.executable, script, folder], check=True, timeout=LIMIT)
            with open(os.path.join(folder, "counts-0.json")) as file:
                self.assertEqual(set(json.load(file)["counts"]), {1})

    def test_another_launcher_s_processes_are_told_to_use_ours(self):
        environment = {**os.environ, "WORLD_SIZE": "2"}
        command = [sys.executable, "-c", "import antdt; antdt.init()"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
        self.assertIn("antdt run --nproc-per-node", ended.stderr)

    def test_the_command_of_the_wheel_runs_scripts_in_its_own_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "antdt")
            os.makedirs(os.path.join(package, "bin"))
            shutil.copy(os.path.join(os.path.dirname(antdt.__file__), "_command.py"), package)
            for name, text in {"__init__.py": "", "bin/antdt": '#!/bin/sh\necho "$PYTHON_EXEC" "$@"\n'}.items():
                with open(os.path.join(package, name), "w") as file:
                    file.write(text)
            os.chmod(os.path.join(package, "bin/antdt"), 0o755)
            command = [sys.executable, "-c", "from antdt._command import main; main()", "run", "train.py"]
            environment = {**os.environ, "PYTHONPATH": folder}
            environment.pop("PYTHON_EXEC", None)
            for named, expected in {None: sys.executable, "/opt/python": "/opt/python"}.items():
                if named is not None:
                    environment["PYTHON_EXEC"] = named
                said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
                self.assertEqual(said, f"{expected} run train.py\n")

    def test_what_needs_init_says_so(self):
        command = [sys.executable, "-c", "import antdt; antdt.BatchSampler([1, 2])"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        self.assertIn("antdt.init() was not called", ended.stderr)


if __name__ == "__main__":
    unittest.main()
