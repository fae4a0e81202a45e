"""Jobs over the nodes of a Ray cluster::

import antdt.ray
import ray

ray.init(address="auto")
result = antdt.ray.run("train.py", num_hosts=(2, 4), workers_per_host=2, settings={"data": "samples:60000"})

Each host is an actor on a node of its own, which has ``antdt run`` as a child. A host that is lost is replaced on a spare node while the
others train.
"""

import json
import os
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _ray_cluster as cluster
from ._job import UsageError
from ._ray_cluster import PlacementError, RayError, RayMissingError
from ._ray_host import HostStatus, JobHost
from ._ray_keeper import START_LIMIT, Checkpoint, GiveUp, HostKeeper, Leave, Order, Start

__all__ = [
    "HostStatus",
    "JobFailedError",
    "JobResult",
    "JobStatus",
    "PlacementError",
    "RayError",
    "RayJob",
    "RayMissingError",
    "UsageError",
    "run",
]

#: How often the hosts are looked at, and how often Ray is asked which nodes will be taken away.
_TICK, _NOTICE = 0.05, 1.0

#: How long hosts have to end once the job is over, beyond their grace.
_END_LIMIT = 10.0

#: How long a node on which a host was lost is not used again. Ray takes half of it to find out that a node is gone.
_SHUNNED = 30.0

#: How long a node whose program cannot be used is not tried again.
_UNFIT = 3600.0

#: How long a command to the job, and its end in order, may take: most of it is a checkpoint.
_ASK_LIMIT = 120.0

#: Settings that are said otherwise here, and how.
_OWN = {
    "nnodes": "num_hosts",
    "nproc_per_node": "workers_per_host",
    "rdzv_endpoint": None,
    "rdzv_secret_file": None,
    "node_rank": None,
    "host_name": None,
    "local_addr": None,
    "launcher": None,
}


@dataclass(frozen=True)
class JobStatus:
    hosts: List[HostStatus]
    #: What ``antdt status`` says; empty before the job has begun.
    progress: str


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    exit_code: int
    #: ``report.json``; ``None`` if the job did not come as far.
    report: Optional[Dict[str, Any]]
    #: Folder with the report, on the node of the first host.
    report_dir: str
    #: All hosts that the job had, also those that were lost.
    hosts: List[HostStatus]
    #: Last lines of the first host.
    tail: List[str] = field(default_factory=list)

    @property
    def samples(self) -> Dict[str, int]:
        """Samples by what became of them: ``expected``, ``committed``, ``lost``, …; empty without a report."""
        return dict(self.report["samples"]) if self.report else {}


class JobFailedError(RayError):
    """The job did not complete. ``result`` is how it ended, as far as that is known."""

    def __init__(self, why: str, result: JobResult) -> None:
        super().__init__(why)
        self.result = result


def run(program: str, *arguments: str, timeout: Optional[float] = None, **settings: Any) -> JobResult:
    """Runs a job to its end; see ``RayJob`` for the settings. Ctrl-C ends the job, with a checkpoint.

    Raises ``JobFailedError`` if it did not complete, ``TimeoutError`` if it took longer than ``timeout`` seconds and was stopped, and
    another ``RayError`` or ``UsageError`` if it could not begin.
    """
    job = RayJob(program, *arguments, **settings)
    try:
        return job.start().wait(timeout)
    except BaseException:
        job.stop()
        raise


class _FirstHostGone(Exception):
    """The job has to begin again on other nodes, from its last checkpoint."""


class RayJob:
    """A job over nodes of a Ray cluster, which ``start`` begins.

    ``program`` is a script, or a program with its ``arguments``, as all nodes have it. ``num_hosts`` is their number, or the fewest and
    the most: with fewer than the fewest, the job waits. Each host runs ``workers_per_host`` workers (``"gpu"``: one for each GPU of the
    actor) and takes ``resources_per_host`` of its node, by default a CPU for each worker. ``settings`` are those of ``antdt run``, such
    as ``{"data": "samples:60000", "checkpoint_every": "10m"}``; ``environment`` has variables for the processes. ``start_timeout`` is how
    long to wait for nodes, in seconds. If the node of the first host is lost, the job begins ``restarts`` times at most again from its
    last checkpoint, provided that the settings name a folder for it, which all nodes see.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        num_hosts: Union[int, Tuple[int, int]] = 1,
        workers_per_host: Union[int, str] = 1,
        resources_per_host: Optional[Mapping[str, float]] = None,
        settings: Optional[Mapping[str, Any]] = None,
        environment: Optional[Mapping[str, str]] = None,
        start_timeout: float = 300.0,
        restarts: int = 3,
    ) -> None:
        self._command = [program, *map(str, arguments)]
        self._hosts_wanted = (num_hosts, num_hosts) if isinstance(num_hosts, int) else (num_hosts[0], num_hosts[1])
        if not 1 <= self._hosts_wanted[0] <= self._hosts_wanted[1]:
            raise UsageError(f"num_hosts is {num_hosts!r}: give a number from 1 on, or (fewest, most)")
        self._workers = workers_per_host
        if resources_per_host is None:
            if not isinstance(workers_per_host, int):
                raise UsageError(
                    f"workers_per_host is {workers_per_host!r}: give resources_per_host, such as {{'CPU': 8, 'GPU': 4}}"
                )
            resources_per_host = {"CPU": workers_per_host}
        self._resources = dict(resources_per_host)
        self._settings = {name.replace("-", "_"): value for name, value in (settings or {}).items()}
        for name in self._settings:
            if name in _OWN:
                instead = f"give {_OWN[name]} instead" if _OWN[name] else "leave it out, Ray's hosts have their own"
                raise UsageError(f"settings[{name!r}]: {instead}")
        self._environment = {str(name): str(value) for name, value in (environment or {}).items()}
        self._start_timeout, self._restarts = start_timeout, restarts
        self._secret = secrets.token_hex(32)
        self._lock = threading.RLock()
        self._hosts: List[JobHost] = []
        self._past: List[HostStatus] = []
        self._shunned: Dict[str, float] = {}
        #: Hosts that were started, and how many of them before the first one that has the master.
        self._count = self._first_rank = 0
        self._is_stopping = threading.Event()
        self._over = threading.Event()
        self._result: Union[JobResult, BaseException, None] = None
        #: Whether the job has begun before, and what it goes on from.
        self._is_again = False
        self._resumed: Dict[str, Any] = {}
        self._folder = ""
        self._endpoint = ""
        self._first: Optional[JobHost] = None
        self._thread: Optional[threading.Thread] = None

    # What a caller does

    def start(self) -> "RayJob":
        """Begins the job: reserves its nodes, and starts the hosts.

        Raises ``PlacementError`` if there is no room in time, another ``RayError`` if a node cannot take part.
        """
        if self._thread is not None:
            raise UsageError("the job was started already: make another RayJob")
        self._launch()
        self._thread = threading.Thread(target=self._watch, name="antdt-ray", daemon=True)
        self._thread.start()
        return self

    def wait(self, timeout: Optional[float] = None) -> JobResult:
        """Waits for the end of the job.

        Raises ``JobFailedError`` if it did not complete, ``TimeoutError`` if it goes on after ``timeout`` seconds.
        """
        if self._thread is None:
            raise UsageError("the job was not started: call start() first")
        deadline = None if timeout is None else time.monotonic() + timeout
        # A wait without an end is not interrupted by Ctrl-C everywhere.
        while not self._over.wait(0.2):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the job goes on after {timeout:g} s: wait longer, or stop() it")
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Ends the job as an interrupt of ``antdt run`` does, and waits until nothing of it runs. ``wait`` then raises
        ``JobFailedError``, unless the job was complete."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._kill_all()

    def status(self) -> JobStatus:
        """Returns where the job stands."""
        with self._lock:
            hosts = self._past + [host.status() for host in self._hosts]
            first = self._first
        progress = ""
        if first is not None and not self._over.is_set():
            code, said = self._ask(first, ["status", self._run_dir()], 20.0)
            progress = said if code == 0 else ""
        return JobStatus(hosts, progress)

    def checkpoint(self) -> None:
        """Has the job take a checkpoint, and waits for it. Raises ``RayError`` if there is none."""
        if self._first is None or self._over.is_set():
            raise RayError("the job does not run: start() it")
        code, said = self._ask(self._first, ["checkpoint", self._run_dir()], _ASK_LIMIT)
        if code != 0:
            raise RayError(said or "the first host does not answer")

    # Hosts

    def _launch(self) -> None:
        """Reserves nodes, and begins the job on them."""
        ray = cluster.api()
        from ray.util.placement_group import remove_placement_group
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._first_rank = self._count
        without = [node for node, until in self._shunned.items() if time.monotonic() < until]
        group, nodes = cluster.place(
            self._hosts_wanted, self._resources, without, self._start_timeout, self._is_stopping
        )
        try:
            try:
                # Each waits on its node for what the group holds there, and so is next. A group that stayed would move a bundle of a
                # lost node to another one, beside the host that is the replacement.
                for node in nodes:
                    self._new_host(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            finally:
                remove_placement_group(group)
            for host, facts in zip(self._hosts, ray.get([host.asked for host in self._hosts], timeout=START_LIMIT)):
                host.introduce(facts)
            self._begin_all()
        except BaseException as error:
            self._kill_all()
            if isinstance(error, (RayError, KeyboardInterrupt)):
                raise
            why = f"a host cannot be started: {cluster.line_of(error)}; see that every node has the antdt package"
            raise RayError(why) from error

    def _new_host(self, **where: Any) -> JobHost:
        host = JobHost(self._count, time.monotonic(), **cluster.options_of(self._resources), **where)
        self._count += 1
        with self._lock:
            self._hosts.append(host)
        return host

    def _begin_all(self) -> None:
        ray = cluster.api()
        first = self._first = self._hosts[0]
        assert first.facts is not None
        self._endpoint = f"{cluster.bracketed(first.facts.address)}:{first.facts.port}"
        named = self._settings.get("report_dir") or self._settings.get("resume")
        self._folder = str(named or ray.get(first.actor.make_folder.remote(), timeout=30))
        if self._is_again:
            kept = self._settings.get("checkpoint_dir", self._folder)
            has_checkpoint = ray.get(first.actor.has_checkpoint.remote(str(kept)), timeout=30)
            # One that is given by the user is there, or the job says so.
            self._resumed = {"resume": kept} if has_checkpoint else {}
        ray.get([self._begin(host) for host in self._hosts], timeout=60)
        now = time.monotonic()
        for host in self._hosts:
            host.is_there(now)

    def _begin(self, host: JobHost) -> Any:
        """Has a host take its part."""
        assert host.facts is not None
        fewest, most = self._hosts_wanted
        flags = {
            "nnodes": f"{fewest}:{most}" if fewest < most else most,
            "nproc_per_node": self._workers,
            "rdzv_endpoint": self._endpoint,
            "node_rank": host.rank - self._first_rank,
            "host_name": host.name,
            "local_addr": host.facts.address,
            "report_dir": self._folder,
            **self._settings,
            **self._resumed,
        }
        words = [word for name, value in flags.items() for word in cluster.flag(name, value)]
        return host.actor.begin.remote(self._secret, words, self._command, self._environment)

    # The loop

    def _watch(self) -> None:
        try:
            result: Union[JobResult, BaseException] = self._keep_on()
        except BaseException as error:
            result = (
                error if isinstance(error, RayError) else RayError(f"the job was given up: {cluster.line_of(error)}")
            )
        self._kill_all()
        self._result = result
        self._over.set()

    def _keep_on(self) -> JobResult:
        """Keeps the job, over several first hosts if need be."""
        while True:
            try:
                return self._keep()
            except _FirstHostGone as gone:
                _say(f"{gone}; the job begins again on other nodes, from its last checkpoint if there is one")
                self._kill_all()
                self._restarts -= 1
                self._is_again = True
                self._launch()

    def _keep(self) -> JobResult:
        first, before, noticed = self._first, time.monotonic(), 0.0
        assert first is not None
        keeper = HostKeeper(self._hosts_wanted[1])
        stopped_at: Optional[float] = None
        while True:
            now = time.monotonic()
            for host in list(self._hosts):
                if now - before > 10 * _TICK:
                    host.excuse(now - before)
                self._look(host, now)
            before = now
            if first.answer is not None and first.answer.code is not None:
                if first.answer.code < 0:
                    self._first_is_lost(first, first.gone or "")
                return self._finish(first)
            if self._is_stopping.is_set():
                if stopped_at is None:
                    stopped_at = now
                    first.actor.end.remote()
                if now - stopped_at >= _ASK_LIMIT:
                    raise JobFailedError(
                        "the job was stopped, and did not end in time", self._result_of(first, 1, None)
                    )
            elif now - noticed >= _NOTICE:
                noticed = now
                self._notice(now)
            for order in keeper.look(now, [host.view(host is first) for host in self._hosts]):
                self._carry_out(order, now)
            time.sleep(_TICK)

    def _look(self, host: JobHost, now: float) -> None:
        facts = host.look(now)
        if facts is not None:
            try:
                host.introduce(facts)
                host.asked = self._begin(host)
            except RayError as error:
                self._shunned[facts.node_id] = now + _UNFIT
                host.refuse(str(error))
        elif host.state == "leaving" and host.has_ended and host is not self._first:
            self._drop(host, "ended")

    def _notice(self, now: float) -> None:
        leaving = cluster.draining()
        for host in self._hosts:
            if host.facts is not None and host.facts.node_id in leaving and host.leaves_at is None:
                seconds = leaving[host.facts.node_id]
                host.leaves_at = now + (3600.0 if seconds is None else seconds)

    def _carry_out(self, order: Order, now: float) -> None:
        if isinstance(order, Start):
            if not self._is_stopping.is_set():
                self._start_one(now)
            return
        host = next(host for host in self._hosts if host.key == order.name)
        node = host.facts.node_id[:8] if host.facts else "(none yet)"
        if isinstance(order, GiveUp):
            if host is self._first:
                self._first_is_lost(host, order.why)
            _say(f"host {host.name} is given up: {order.why}")
            if host.facts is not None and not (order.is_certain and host.has_live_node):
                self._shunned[host.facts.node_id] = now + _SHUNNED
            self._drop(host, "lost")
        elif isinstance(order, Checkpoint):
            _say(f"node {node} of host {host.name} will be taken away; the job takes a checkpoint")
            self._take_checkpoint()
        elif isinstance(order, Leave):
            if host is self._first and not self._may_restart():
                _say(f"node {node}, which has the job's master, will be taken away; the job takes a checkpoint")
                self._take_checkpoint()
                return
            _say(f"host {host.name} leaves node {node}, which will be taken away")
            host.state = "leaving"
            host.actor.end.remote()

    def _take_checkpoint(self) -> None:
        if self._first is not None:
            self._first.actor.ask.remote(["checkpoint", self._run_dir()], _ASK_LIMIT)

    def _may_restart(self) -> bool:
        named = {"report_dir", "checkpoint_dir", "run_dir", "resume"} & set(self._settings)
        return self._restarts > 0 and bool(named) and not self._is_stopping.is_set()

    def _start_one(self, now: float) -> None:
        used: Set[str] = {host.facts.node_id for host in self._hosts if host.facts is not None}
        used |= {node for node, until in self._shunned.items() if now < until} | set(cluster.draining())
        self._new_host(label_selector=cluster.elsewhere(sorted(used)))
        _say("another host is started on a spare node, or waits for one")

    def _drop(self, host: JobHost, state: str) -> None:
        host.state = state
        with self._lock:
            self._hosts.remove(host)
            self._past.append(host.status())
        self._kill(host)

    def _first_is_lost(self, host: JobHost, why: str) -> None:
        host.state = "lost"
        if host.facts is not None:
            self._shunned[host.facts.node_id] = time.monotonic() + _SHUNNED
        text = f"the first host, which has the job's master, is lost: {why}"
        if self._may_restart():
            raise _FirstHostGone(text)
        if "report_dir" in self._settings:
            text += f"; settings resume={self._folder!r} go on from the last checkpoint, if all nodes see that folder"
        else:
            text += "; with settings report_dir, a folder that all nodes see, and restarts, a job goes on from its last checkpoint"
        raise JobFailedError(text, self._result_of(host, 1, None))

    def _finish(self, first: JobHost) -> JobResult:
        """The first host has ended: the others follow by themselves."""
        ray = cluster.api()
        assert first.answer is not None
        text = ray.get(first.actor.read.remote(os.path.join(self._folder, "report.json")), timeout=30)
        deadline = time.monotonic() + _END_LIMIT
        while time.monotonic() < deadline and not all(host.has_ended for host in self._hosts):
            for host in self._hosts:
                self._look(host, time.monotonic())
            time.sleep(_TICK)
        code = first.answer.code
        assert code is not None
        if code != 0 and first.state == "leaving":
            raise _FirstHostGone(f"host {first.name} has left its node")
        result = self._result_of(first, code, json.loads(text) if text else None)
        if code != 0:
            raise JobFailedError(_why(result), result)
        return result

    def _result_of(self, first: JobHost, code: int, report: Optional[Dict[str, Any]]) -> JobResult:
        if first.state == "running":
            for host in self._hosts:
                host.state = "ended"
        hosts = self._past + [host.status() for host in self._hosts]
        tail = list(first.answer.tail) if first.answer is not None else []
        return JobResult(code, report, self._folder, hosts, tail)

    def _run_dir(self) -> str:
        """Where other commands find the job."""
        return str(self._settings.get("run_dir", self._folder))

    def _ask(self, host: JobHost, words: Sequence[str], limit: float) -> Tuple[int, str]:
        ray = cluster.api()
        try:
            code, said = ray.get(host.actor.ask.remote(list(words), limit), timeout=limit + 5.0)
        except Exception:
            return 1, ""
        return int(code), str(said)

    def _kill_all(self) -> None:
        with self._lock:
            hosts, self._hosts = self._hosts, []
            for host in hosts:
                host.state = "lost" if host.state == "lost" else "ended"
            self._past.extend(host.status() for host in hosts)
        for host in hosts:
            self._kill(host)

    @staticmethod
    def _kill(host: JobHost) -> None:
        try:
            host.kill()
        except Exception as error:
            _say(f"host {host.name} cannot be ended: {cluster.line_of(error)}")


def _why(result: JobResult) -> str:
    """Why a job failed: its last line that is not empty."""
    lines = [line for line in result.tail if line.strip()]
    said = [line for line in lines if "error: " in line] or lines
    return f"the job ended with exit code {result.exit_code}: {said[-1].strip() if said else '(it said nothing)'}"


def _say(text: str) -> None:
    print(f"antdt.ray: {text}", file=sys.stderr, flush=True)
