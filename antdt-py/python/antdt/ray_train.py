"""Workers of Ray Train as workers of AntDT::

from antdt.ray_train import AntdtConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

config = AntdtConfig(settings={"data": "samples:60000", "epochs": 3, "report_dir": "/shared/run"})
DataParallelTrainer(train_loop, backend_config=config, scaling_config=ScalingConfig(num_workers=4)).fit()

and ``train_loop`` calls ``antdt.init()``, as a script under ``antdt run`` does.
"""

import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from ray.train.backend import Backend, BackendConfig

from ._ray_agent import HostAgent, HostFacts
from ._ray_cluster import RayError, api, bracketed, flag
from ._stand_in import FOLDER, Seat

#: How long the job may take to tell its workers who they are.
_SEAT_LIMIT = 120.0

#: How long the job has to end once its workers have.
_END_LIMIT = 60.0


@dataclass
class AntdtConfig(BackendConfig):  # type: ignore[misc]
    """``settings`` are those of ``antdt run``. Ray Train starts all workers again when one is lost; the job goes on from its last checkpoint
    then, if the settings name a ``report_dir`` that all nodes see."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backend_cls(self) -> Type["AntdtBackend"]:
        return AntdtBackend

    @property
    def train_func_context(self) -> Type["_Part"]:
        return _Part


class _Here:
    """What this process has of the job: a seat, and on one worker of each node the host's agent."""

    agent: Optional[HostAgent] = None
    #: Folder of the seats of this host, where the agent is.
    seats: Optional[str] = None
    seat: Optional[Seat] = None


class _Part:
    """Around the training function: the worker is done when the function is."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if _Here.seat is not None:
            _Here.seat.finish(0 if error is None else 1)


class AntdtBackend(Backend):  # type: ignore[misc]
    """Has ``antdt run`` in the first worker's process of each node, which starts a stand-in for each worker there."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        nodes: Dict[str, List[int]] = {}
        for rank, worker in enumerate(worker_group.get_workers()):
            nodes.setdefault(worker.metadata.node_id, []).append(rank)
        secret = secrets.token_hex(32)
        hosts = [_call(worker_group, ranks[0], _introduce) for ranks in nodes.values()]
        first = hosts[0][0]
        folder = backend_config.settings.get("report_dir") or _call(worker_group, 0, _make_folder)
        flags: Dict[str, Any] = {
            "nnodes": len(nodes),
            "rdzv_endpoint": f"{bracketed(first.address)}:{first.port}",
            "report_dir": folder,
            **backend_config.settings,
        }
        if _call(worker_group, 0, _has_checkpoint, folder):
            flags["resume"] = folder
        for index, (ranks, (facts, seats)) in enumerate(zip(nodes.values(), hosts)):
            for local_rank, rank in enumerate(ranks):
                _call(worker_group, rank, _sit, seats, local_rank)
            own = {
                "nproc_per_node": len(ranks),
                "node_rank": index,
                "host_name": facts.node_id[:8],
                "local_addr": facts.address,
            }
            words = [word for name, value in {**flags, **own}.items() for word in flag(name, value)]
            _call(worker_group, ranks[0], _begin, secret, words, seats)
        worker_group.execute(_await_seat)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        codes = _of_each(worker_group, _code)
        # One that is dead has said nothing.
        _of_each(worker_group, _end, all(code == 0 for code in codes))


def _call(worker_group: Any, rank: int, what: Any, *arguments: Any) -> Any:
    return worker_group.execute_single(rank, what, *arguments)


def _of_each(worker_group: Any, what: Any, *arguments: Any) -> List[Any]:
    """What the workers answer; ``None`` for those that have died."""
    ray = api()
    answers: List[Any] = []
    for asked in worker_group.execute_async(what, *arguments):
        try:
            answers.append(ray.get(asked))
        except ray.exceptions.RayError:
            answers.append(None)
    return answers


# What runs in the processes of the workers


def _introduce() -> Tuple[HostFacts, str]:
    _Here.agent = HostAgent()
    facts = _Here.agent.facts()
    if facts.trouble is not None:
        raise RayError(f"node {facts.node_id[:8]} ({facts.address}): {facts.trouble}")
    _Here.seats = tempfile.mkdtemp(prefix="antdt-seats-")
    return facts, _Here.seats


def _make_folder() -> str:
    return tempfile.mkdtemp(prefix="antdt-ray-")


def _has_checkpoint(folder: str) -> bool:
    assert _Here.agent is not None
    return _Here.agent.has_checkpoint(folder)


def _sit(seats: str, local_rank: int) -> None:
    _Here.seat = Seat(seats, local_rank)


def _begin(secret: str, words: Sequence[str], seats: str) -> None:
    assert _Here.agent is not None
    _Here.agent.begin(secret, words, [sys.executable, "-m", "antdt._stand_in"], {FOLDER: seats})


def _await_seat() -> None:
    """Waits until this process is a worker of the job.

    Raises ``RayError`` if the job ends before, or takes too long.
    """
    assert _Here.seat is not None
    deadline = time.monotonic() + _SEAT_LIMIT
    while not _Here.seat.wait(0.2):
        answer = _Here.agent.poll() if _Here.agent is not None else None
        if answer is not None and answer.code is not None:
            raise RayError(f"antdt run has ended with exit code {answer.code}: {' '.join(answer.tail[-1:])}")
        if time.monotonic() >= deadline:
            raise RayError(
                f"the job gave this worker no part within {_SEAT_LIMIT:g} s; its lines say for what it waits"
            )


def _code() -> Optional[int]:
    return _Here.seat.code if _Here.seat is not None else None


def _end(is_complete: bool) -> None:
    """Waits for the end of the job on this host."""
    agent = _Here.agent
    if agent is None:
        return
    if not is_complete:
        agent.end()
    deadline = time.monotonic() + _END_LIMIT
    while agent.poll().code is None and time.monotonic() < deadline:
        time.sleep(0.1)
    agent.kill()
    if _Here.seats is not None:
        shutil.rmtree(_Here.seats, ignore_errors=True)
