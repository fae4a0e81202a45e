"""Jobs over nodes of Ray: a real cluster of this machine, whose raylets are killed. Skipped where Ray is not installed."""

import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import antdt.ray
from antdt import _ray_agent, _ray_cluster
from antdt._ray_keeper import (
    LEAVE_MARGIN,
    PATIENCE,
    SETTLED,
    START_LIMIT,
    VERDICT,
    Checkpoint,
    GiveUp,
    HostKeeper,
    HostView,
    Leave,
    Start,
)

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(os.path.dirname(HERE), "examples", "ray_line.py")
HAS_RAY = importlib.util.find_spec("ray") is not None
if not HAS_RAY:
    print("SKIPPED: ray is not installed", file=sys.stderr)
#: No job of these tests takes as long.
LIMIT = 120
#: Every process of a job of these tests has it, with a value of its own.
MARK = "ANTDT_RAY_TEST"


def host(name, now, **known):
    """A host that answers."""
    return HostView(name, **{"heard": now, "there_since": -SETTLED, **known})


class Keeper(unittest.TestCase):
    def test_hosts_that_are_there_are_left_alone(self):
        keeper = HostKeeper(2)
        for now in (0.0, 1.0, 100.0):
            self.assertEqual(keeper.look(now, [host("a", now), host("b", now)]), [])

    def test_a_host_that_is_lost_is_given_up_and_replaced_at_once(self):
        for known, is_certain in (
            ({"gone": "its actor has ended"}, True),
            ({"cut": 49.9 - VERDICT}, False),
            ({"heard": 49.9 - PATIENCE}, False),
        ):
            with self.subTest(known):
                orders = HostKeeper(2).look(50.0, [host("a", 50.0), host("b", **{"now": 50.0, **known})])
                self.assertEqual([type(order) for order in orders], [GiveUp, Start])
                self.assertEqual((orders[0].name, orders[0].is_certain), ("b", is_certain))

    def test_a_host_that_answers_late_stays(self):
        keeper = HostKeeper(1)
        for known in ({"heard": 50.1 - PATIENCE}, {"cut": 50.1 - VERDICT}):
            self.assertEqual(keeper.look(50.0, [host("a", **{"now": 50.0, **known})]), [])

    def test_one_replacement_is_started_for_each_host(self):
        keeper = HostKeeper(3)
        self.assertEqual(keeper.look(0.0, [host("a", 0.0)]), [Start(), Start()])
        starting = [HostView(name, starting_since=0.0) for name in "bc"]
        self.assertEqual(keeper.look(0.1, [host("a", 0.1), *starting]), [])

    def test_starts_in_vain_follow_each_other_ever_later(self):
        keeper, now, pauses = HostKeeper(1), 0.0, []
        for _ in range(8):
            ended = now
            while not keeper.look(now, []):
                now += 0.5
            pauses.append(now - ended)
            now += 1.0
            keeper.look(now, [HostView("a", starting_since=now - 1.0, gone="its actor has ended")])
        self.assertEqual(pauses, [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])
        # Once one has stayed, the next is replaced at once.
        now += 60.0
        self.assertEqual(keeper.look(now, [host("b", now, there_since=now - SETTLED)]), [])
        self.assertEqual(keeper.look(now + 1.0, []), [Start()])

    def test_a_host_that_ends_as_soon_as_it_is_there_was_started_in_vain(self):
        keeper = HostKeeper(1)
        orders = keeper.look(9.0, [host("a", 9.0, there_since=8.0, gone="exit code 2")])
        self.assertEqual([type(order) for order in orders], [GiveUp])
        self.assertEqual(keeper.look(10.0, []), [])
        self.assertEqual(keeper.look(11.0, []), [Start()])

    def test_a_start_that_finds_no_node_is_tried_anew(self):
        keeper, starting = HostKeeper(1), HostView("a", starting_since=0.0)
        self.assertEqual(keeper.look(START_LIMIT - 0.1, [starting]), [])
        self.assertEqual([type(order) for order in keeper.look(START_LIMIT, [starting])], [GiveUp])

    def test_a_host_whose_node_is_taken_away_leaves_once_its_replacement_is_there(self):
        keeper, leaving = HostKeeper(2), host("b", 0.0, leaves_at=60.0)
        self.assertEqual(keeper.look(0.0, [host("a", 0.0), leaving]), [Checkpoint("b"), Start()])
        self.assertEqual(keeper.look(0.5, [host("a", 0.5), leaving, HostView("c", starting_since=0.1)]), [])
        there = [host("a", 1.0), leaving, host("c", 1.0, there_since=1.0)]
        self.assertEqual(keeper.look(1.0, there), [Leave("b")])
        self.assertEqual(keeper.look(1.1, there), [], "it is told once")

    def test_a_host_whose_node_is_taken_away_leaves_in_time_without_a_replacement(self):
        keeper, now = HostKeeper(1), 60.0 - LEAVE_MARGIN
        self.assertEqual(keeper.look(0.0, [host("a", 0.0, leaves_at=60.0)]), [Checkpoint("a"), Start()])
        waiting = HostView("b", starting_since=now)
        self.assertEqual(keeper.look(now - 0.1, [host("a", now, leaves_at=60.0), waiting]), [])
        self.assertEqual(keeper.look(now, [host("a", now, leaves_at=60.0), waiting]), [Leave("a")])

    def test_the_first_host_leaves_at_once_without_a_replacement(self):
        keeper = HostKeeper(1)
        self.assertEqual(keeper.look(0.0, [host("a", 0.0, leaves_at=60.0, is_first=True)]), [Leave("a")])


class WithoutCluster(unittest.TestCase):
    def test_wrong_settings_are_answered_with_what_to_give(self):
        for settings, remedy in (
            ({"num_hosts": 0}, r"num_hosts is 0: give a number from 1 on"),
            ({"num_hosts": (3, 2)}, r"\(fewest, most\)"),
            ({"workers_per_host": "gpu"}, "give resources_per_host"),
            ({"settings": {"nnodes": 2}}, "give num_hosts instead"),
            ({"settings": {"nproc-per-node": 2}}, "give workers_per_host instead"),
            ({"settings": {"rdzv_endpoint": "a:1"}}, "leave it out"),
        ):
            with self.subTest(settings), self.assertRaisesRegex(antdt.ray.UsageError, remedy):
                antdt.ray.RayJob("train.py", **settings)

    def test_ray_that_is_missing_is_named_with_its_remedy(self):
        with mock.patch.dict(sys.modules, {"ray": None}):
            with self.assertRaisesRegex(antdt.ray.RayMissingError, "pip install"):
                antdt.ray.run("train.py")

    def test_a_program_that_cannot_be_used_is_named_with_its_remedy(self):
        for path, says in (
            (None, "there is no antdt program"),
            ("/bin/false", "has version"),
            ("/none", "cannot be run"),
        ):
            with self.subTest(path):
                self.assertRegex(_ray_agent.trouble_of(path), f"{says}.*install the same antdt wheel on every node")
        self.assertIsNone(_ray_agent.trouble_of(os.environ["ANTDT"]))

    def test_too_few_nodes_are_counted_with_what_each_lacks(self):
        nodes = [
            {"NodeID": name * 8, "Alive": name != "d", "Resources": resources}
            for name, resources in (
                ("a", {"CPU": 4.0}),
                ("b", {"CPU": 4.0, "GPU": 1.0}),
                ("d", {"CPU": 9.0, "GPU": 9.0}),
            )
        ]
        said = _ray_cluster.too_few(2, {"CPU": 4, "GPU": 1}, nodes, 5.0)
        self.assertIn("2 hosts need 2 nodes with 4 CPU, 1 GPU each", said)
        self.assertIn("1 of 2 nodes are large enough; node aaaaaaaa lacks 1 GPU (it has 0)", said)
        self.assertIn("others use them", _ray_cluster.too_few(2, {"CPU": 4}, nodes, 5.0))

    def test_settings_become_flags(self):
        for name, value, expected in (
            ("checkpoint_every", "10m", ["--checkpoint-every", "10m"]),
            ("quiet", True, ["--quiet=true"]),
            ("straggler", ["a", "b"], ["--straggler", "a", "--straggler", "b"]),
        ):
            self.assertEqual(_ray_cluster.flag(name, value), expected)


#: A worker that waits for its stand-in, says who it is, and has done its work when a line comes.
SEATED = """
import os, sys
from antdt._stand_in import Seat
seat = Seat(sys.argv[1], 1)
print("there", flush=True)
assert seat.wait(60)
print(os.environ["ANTDT_NODE"], os.environ["RANK"], os.environ.get("ANTDT_LAUNCHER_PID"), flush=True)
seat.finish(int(sys.stdin.readline()))
sys.stdin.readline()
"""


class StandIn(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.worker = self.start("-c", SEATED, held.name)
        self.assertEqual(self.worker.stdout.readline(), "there\n")
        told = {"SEATS_OF_ANTDT": held.name, "LOCAL_RANK": "1", "RANK": "3", "ANTDT_NODE": "worker-3"}
        self.stand_in = self.start("-m", "antdt._stand_in", **told, ANTDT_LAUNCHER_PID="1")
        self.assertEqual(self.worker.stdout.readline(), "worker-3 3 None\n")

    def start(self, *arguments, **variables):
        process = subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, **variables}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

        def end():
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def test_a_stand_in_ends_with_the_code_of_its_worker_which_goes_on(self):
        self.worker.stdin.write("7\n")
        self.worker.stdin.flush()
        self.assertEqual(self.stand_in.wait(LIMIT), 7)
        self.assertIsNone(self.worker.poll())

    def test_a_worker_whose_stand_in_is_killed_ends(self):
        self.stand_in.kill()
        self.assertEqual(self.worker.wait(LIMIT), 1)

    def test_a_stand_in_whose_worker_is_killed_fails(self):
        self.worker.kill()
        self.assertEqual(self.stand_in.wait(LIMIT), 1)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def marked(mark):
    """The processes of the job with this mark."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        pid = int(path.split("/")[2])
        if f"{MARK}={mark}".encode() in variables and is_alive(pid):
            found.append(pid)
    return found


def wait_for(what, condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.05)


@unittest.skipUnless(HAS_RAY, "ray is not installed")
class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp()
        # Processes of Ray may write their last lines meanwhile.
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        # Ray writes a token into the home folder, and keeps the logs of each session.
        kept = {"HOME": folder, "TMPDIR": folder, "RAY_TMPDIR": folder, "RAY_DEDUP_LOGS": "0"}
        variables = mock.patch.dict(os.environ, kept)
        variables.start()
        cls.addClassCleanup(variables.stop)
        import ray
        from ray.cluster_utils import Cluster

        cls.ray = ray
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
        cls.cluster = Cluster(initialize_head=True, head_node_args=head)
        cls.addClassCleanup(cls.cluster.shutdown)
        cls.addClassCleanup(ray.shutdown)
        cls.nodes = []
        for _ in range(4):
            cls.add_node()
        with cls.assertRaisesRegex(cls(), antdt.ray.RayError, r"call ray\.init"):
            antdt.ray.run("train.py")
        ray.init(address=cls.cluster.address, log_to_driver=False)

    @classmethod
    def add_node(cls):
        node = cls.cluster.add_node(num_cpus=2, object_store_memory=80 << 20, resources={"host": 1})
        cls.nodes.append(node)

    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name

    def job(self, *arguments, script="plain.py", samples=601, settings=None, num_hosts=(2, 3), **others):
        """A job of three hosts with a worker each, whose script counts the samples at the model."""
        given = {
            "data": f"samples:{samples}",
            "global_batch_size": 60,
            "policy": "none",
            "grace": "2s",
            "report_dir": os.path.join(self.folder, "report"),
            **(settings or {}),
        }
        variables = {"SAMPLES": str(samples), "GRADIENT": "1", "OMP_NUM_THREADS": "1", MARK: self.folder}
        job = antdt.ray.RayJob(
            os.path.join(HERE, script),
            *(self.folder, *arguments),
            num_hosts=num_hosts,
            resources_per_host={"CPU": 1, "host": 1},
            settings=given,
            environment=variables,
            start_timeout=60.0,
            **others,
        )
        self.addCleanup(job.stop)
        return job

    def started(self):
        """Processes that began, by rank."""
        found = {}
        for path in glob.glob(os.path.join(self.folder, "started-*")):
            with open(path) as file:
                found[path.rsplit("-", 1)[1]] = [int(line) for line in file if line.endswith("\n")]
        return found

    def running(self, job, workers=3, seconds=1.0):
        """Starts a job, and waits until all its workers train."""
        job.start()
        wait_for("all workers", lambda: len(self.started()) == workers)
        time.sleep(seconds)
        return job

    def node_of(self, job, index):
        name = job.status().hosts[index].node_id
        return next(node for node in self.nodes if node.node_id == name)

    def kill_raylet(self, node):
        self.nodes.remove(node)
        self.addCleanup(self.add_node)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def replace(self, node):
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        self.add_node()

    def assert_counted(self, result, samples, workers=3):
        self.assertEqual(result.exit_code, 0)
        self.assertEqual((result.samples["expected"], result.samples["committed"]), (samples, samples))
        paths = glob.glob(os.path.join(self.folder, "counts-*.json"))
        self.assertEqual(len(paths), workers)
        for path in paths:
            with open(path) as file:
                self.assertEqual(set(json.load(file)["counts"]), {1}, path)

    def assert_nothing_left(self):
        wait_for("the end of all processes", lambda: not marked(self.folder))

    def test_a_job_over_three_nodes_counts_each_sample_once(self):
        job = self.job("0.05").start()
        result = job.wait(LIMIT)
        self.assert_counted(result, 601)
        self.assertEqual(len({host.node_id for host in result.hosts}), 3)
        self.assertEqual({host.state for host in result.hosts}, {"ended"})
        self.assertEqual(result.report["outcome"], "completed")
        self.assertIn("(exact)", "".join(result.tail))
        self.assertEqual(job.status().progress, "")
        self.assert_nothing_left()

    def test_the_secret_is_in_no_command_line_environment_or_log(self):
        job = self.running(self.job("0.1", samples=3000))
        said = job._secret.encode()
        logs = os.path.join(self.ray._private.worker.global_worker.node.get_session_dir_path(), "logs", "*")
        processes = [f"/proc/{pid}/{what}" for pid in marked(self.folder) for what in ("cmdline", "environ")]
        self.assertGreaterEqual(len(processes), 12)
        files = [path for path in glob.glob(logs) if os.path.isfile(path)]
        self.assertTrue(files)
        for path in [*processes, *files]:
            with open(path, "rb") as file:
                self.assertNotIn(said, file.read(), path)
        job.stop()
        with self.assertRaisesRegex(antdt.ray.JobFailedError, r"interrupted; \d+ of 3000 samples remain"):
            job.wait()
        self.assert_nothing_left()

    def test_a_killed_raylet_costs_no_sample_and_its_host_is_replaced_on_the_spare_node(self):
        job = self.running(self.job("0.1", samples=6000))
        lost = self.node_of(job, 1)
        before = self.started()
        self.kill_raylet(lost)
        wait_for("the replacement", lambda: any(len(pids) == 2 for pids in self.started().values()))
        self.assertIn("samples committed", job.status().progress)
        result = job.wait(LIMIT)
        self.assert_counted(result, 6000)
        states = [host.state for host in result.hosts]
        self.assertEqual(sorted(states), ["ended", "ended", "ended", "lost"])
        replacement = result.hosts[-1].node_id
        self.assertNotIn(replacement, {host.node_id for host in result.hosts[:-1]})
        after = self.started()
        self.assertEqual([len(after[rank]) for rank in sorted(after)], [1, 2, 1])
        self.assertEqual(
            [after[rank] for rank in "02"], [before[rank] for rank in "02"], "the others keep their processes"
        )
        self.assert_nothing_left()

    def test_a_killed_worker_is_started_again_on_its_host(self):
        job = self.running(self.job("0.1", samples=4200))
        os.kill(self.started()["2"][0], signal.SIGKILL)
        result = job.wait(LIMIT)
        self.assert_counted(result, 4200)
        self.assertEqual(len(self.started()["2"]), 2)
        self.assertEqual([host.state for host in result.hosts], ["ended"] * 3)

    def test_a_killed_actor_takes_its_host_with_it_which_is_replaced(self):
        job = self.running(self.job("0.1", samples=6000))
        self.ray.kill(job._hosts[2].actor)
        wait_for("the replacement", lambda: any(len(pids) == 2 for pids in self.started().values()))
        result = job.wait(LIMIT)
        self.assert_counted(result, 6000)
        self.assertEqual(sorted(host.state for host in result.hosts), ["ended", "ended", "ended", "lost"])
        self.assert_nothing_left()

    def test_a_job_whose_first_host_is_lost_goes_on_from_its_checkpoint(self):
        job = self.running(self.job("0.1", samples=3000, settings={"checkpoint_every": "4steps"}))
        kept = os.path.join(self.folder, "report", "run", "checkpoints", "*", "manifest.json")
        wait_for("a checkpoint", lambda: glob.glob(kept))
        self.kill_raylet(self.node_of(job, 0))
        result = job.wait(LIMIT)
        self.assert_counted(result, 3000)
        self.assertEqual(len(result.hosts), 6)
        self.assert_nothing_left()

    def test_a_job_without_a_folder_fails_with_its_first_host_and_says_what_would_help(self):
        settings = {"report_dir": os.path.join(self.folder, "report")}
        job = self.running(self.job("0.1", samples=3000, settings=settings, restarts=0))
        self.ray.kill(job._hosts[0].actor)
        with self.assertRaisesRegex(antdt.ray.JobFailedError, "the first host.*resume=") as failed:
            job.wait(LIMIT)
        self.assertEqual(failed.exception.result.hosts[0].state, "lost")
        self.assert_nothing_left()

    def test_a_node_that_will_be_taken_away_is_left_before(self):
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        job = self.running(self.job("0.1", samples=6000))
        node = self.node_of(job, 1)
        self.addCleanup(self.replace, node)
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline = int((time.time() + 600) * 1000)
        client = GcsClient(address=self.cluster.address)
        self.assertTrue(client.drain_node(node.node_id, reason, "spot", deadline)[0])
        kept = os.path.join(self.folder, "report", "run", "checkpoints", "*", "manifest.json")
        wait_for("the checkpoint", lambda: glob.glob(kept))
        wait_for("the end of the host", lambda: "ended" in [host.state for host in job.status().hosts])
        result = job.wait(LIMIT)
        self.assertEqual((result.exit_code, result.samples["committed"]), (0, 6000))
        self.assertEqual(len(result.hosts), 4)
        self.assertIn("told to leave by its platform", json.dumps(result.report["events"]))

    def test_too_few_nodes_are_named_with_what_they_lack(self):
        job = antdt.ray.RayJob("train.py", num_hosts=9, resources_per_host={"CPU": 2, "host": 1}, start_timeout=1.0)
        with self.assertRaisesRegex(antdt.ray.PlacementError, r"4 of 5 nodes are large enough; node \w+ lacks 2 CPU"):
            job.start()

    def test_a_job_that_fails_says_its_last_line(self):
        job = self.job("raises", script="wrong_plain.py").start()
        with self.assertRaisesRegex(antdt.ray.JobFailedError, "exit code 1.*") as failed:
            job.wait(LIMIT)
        self.assertIn("ZeroDivisionError", "".join(failed.exception.result.tail))
        job = self.job(settings={"epochs": "many"}).start()
        with self.assertRaisesRegex(antdt.ray.JobFailedError, "exit code 2: .*--epochs"):
            job.wait(LIMIT)

    def test_a_job_that_takes_too_long_is_stopped(self):
        job = self.job("0.1", samples=9000)
        with mock.patch.object(antdt.ray, "RayJob", return_value=job):
            with self.assertRaisesRegex(TimeoutError, "goes on after 1 s"):
                antdt.ray.run("train.py", timeout=1.0)
        self.assert_nothing_left()

    def driver(self, samples):
        command = [sys.executable, EXAMPLE, "--address", self.cluster.address, "--hosts", "2"]
        return subprocess.Popen(
            [*command, "--samples", str(samples), "--epochs", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, MARK: self.folder}, cwd=self.folder,
        )  # fmt: skip

    def test_the_example_fits_a_line(self):
        driver = self.driver(4000)
        self.addCleanup(driver.kill)
        said, _ = driver.communicate(timeout=LIMIT)
        self.assertEqual(driver.returncode, 0, said)
        before, after = re.search(r"loss (\S+) -> (\S+)", said).groups()
        self.assertLess(float(after), float(before) / 100)
        self.assertIn("12000 samples on ", said)

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "ray[train] is not installed")
    def test_workers_of_ray_train_are_workers_of_a_job_that_goes_on_when_ray_starts_them_again(self):
        driver = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "ray_training.py"), self.cluster.address, self.folder, "3000"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1"},
        )  # fmt: skip
        self.addCleanup(driver.kill)
        said, _ = driver.communicate(timeout=LIMIT)
        self.assertEqual(driver.returncode, 0, said)
        self.assertIn("resumed from checkpoint", said)
        self.assertEqual([len(pids) for _, pids in sorted(self.started().items())], [2, 2, 2])
        with open(os.path.join(self.folder, "report", "report.json")) as file:
            report = json.load(file)
        result = antdt.ray.JobResult(0, report, "", [])
        self.assert_counted(result, 3000)

    def test_nothing_is_left_of_a_job_whose_driver_is_interrupted_or_killed(self):
        for sent in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(sent), tempfile.TemporaryDirectory() as self.folder:
                pattern = os.path.join(self.folder, "at-*")
                driver = subprocess.Popen(
                    [sys.executable, os.path.join(HERE, "ray_driver.py"), self.cluster.address, self.folder],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
                self.addCleanup(driver.kill)
                wait_for("both workers", lambda pattern=pattern: len(glob.glob(pattern)) == 2)
                self.assertGreaterEqual(len(marked(self.folder)), 4)
                driver.send_signal(sent)
                said, _ = driver.communicate(timeout=LIMIT)
                self.assertNotEqual(driver.returncode, 0)
                self.assert_nothing_left()
                if sent == signal.SIGINT:
                    self.assertIn("KeyboardInterrupt", said)
                    self.assertIn("(interrupted)", said)


if __name__ == "__main__":
    unittest.main()
