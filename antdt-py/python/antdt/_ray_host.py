"""A host of a job as its driver knows it: what it was asked, what it has answered, and whether it lives."""

import socket
from dataclasses import dataclass
from typing import Any, Optional

from . import _ray_cluster as cluster
from ._ray_agent import HostAgent, HostAnswer, HostFacts
from ._ray_cluster import RayError
from ._ray_keeper import HostView

#: How long a connection to a host may take to be made.
_CONNECT = 1.0

#: How long a host that ended well may be ahead of the first one, whose job is over then.
_AHEAD = 5.0


@dataclass(frozen=True)
class HostStatus:
    """A host of a job."""

    #: Its name in the job's reports.
    name: str
    node_id: str
    address: str
    #: ``starting``, ``running``, ``leaving``, ``ended`` or ``lost``.
    state: str


class JobHost:
    """One actor, from its start to its end; never started again."""

    def __init__(self, rank: int, now: float, **options: Any) -> None:
        ray = cluster.api()
        actor = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=8)(HostAgent)
        self.key, self.rank, self.state = f"host-{rank}", rank, "starting"
        self.actor = actor.options(**options).remote()
        #: The question that it has not answered.
        self.asked: Any = self.actor.facts.remote()
        self.facts: Optional[HostFacts] = None
        self.answer: Optional[HostAnswer] = None
        self.leaves_at: Optional[float] = None
        self.has_live_node = True
        self._starting_since: Optional[float] = now
        self._there_since = self._heard = now
        self._tether: Optional[socket.socket] = None
        self._cut: Optional[float] = None
        self._ended_at: Optional[float] = None
        #: How it has ended, if that is known.
        self.gone: Optional[str] = None

    @property
    def name(self) -> str:
        """The host's name in the job: nodes of one machine share its name and its address."""
        return f"{self.facts.node_id[:8]}-{self.rank}" if self.facts else self.key

    @property
    def has_ended(self) -> bool:
        return self._ended_at is not None or self.gone is not None

    def status(self) -> HostStatus:
        node, address = (self.facts.node_id, self.facts.address) if self.facts else ("", "")
        return HostStatus(self.name, node, address, self.state)

    def view(self, is_first: bool) -> HostView:
        return HostView(
            self.key, self._starting_since, self._there_since, self._heard, self._cut, self.gone, self.leaves_at, is_first
        )  # fmt: skip

    def introduce(self, facts: HostFacts) -> None:
        """The actor lives. Raises ``RayError`` if its node cannot take part."""
        self.facts, self.asked = facts, None
        if facts.trouble is not None:
            raise RayError(f"node {facts.node_id[:8]} ({facts.address}): {facts.trouble}")
        # Where the driver does not reach the node, answers alone tell.
        try:
            self._tether = socket.create_connection((facts.address, facts.tether), timeout=_CONNECT)
            self._tether.setblocking(False)
        except OSError:
            self._tether = None

    def is_there(self, now: float) -> None:
        """It has its part in the job."""
        self.state, self.asked, self._starting_since = "running", None, None
        self._there_since = self._heard = now

    def excuse(self, seconds: float) -> None:
        """The driver was held up for so long, and has not listened."""
        self._heard += seconds

    def look(self, now: float) -> Optional[HostFacts]:
        """Hears what the host says, and asks it again. Returns its facts when it has come."""
        ray = cluster.api()
        if self._cut is None and self._is_cut():
            self._cut = now
        if self.asked is None:
            self.asked = self.actor.poll.remote()
        if not ray.wait([self.asked], timeout=0)[0]:
            return None
        try:
            answer = ray.get(self.asked)
        except Exception as error:
            self.asked = None
            # Of a node that is lost, Ray says so much later than it is seen here.
            if not isinstance(error, ray.exceptions.ActorUnavailableError):
                self.gone = f"its actor has ended ({cluster.line_of(error)})"
            return None
        self.asked, self._heard = None, now
        if isinstance(answer, HostFacts):
            return answer
        if isinstance(answer, HostAnswer):
            self._judge(answer, now)
        else:
            self.is_there(now)
        return None

    def refuse(self, why: str) -> None:
        self.gone = why

    def kill(self) -> None:
        """Ends the actor, and with it its child."""
        if self._tether is not None:
            self._tether.close()
            self._tether = None
        cluster.api().kill(self.actor)

    def _is_cut(self) -> bool:
        if self._tether is None:
            return False
        try:
            return not self._tether.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _judge(self, answer: HostAnswer, now: float) -> None:
        self.answer, self.has_live_node = answer, answer.has_raylet
        if answer.code is not None and self._ended_at is None:
            self._ended_at = now
        if not answer.has_raylet:
            self.gone = "the raylet of its node has ended"
        elif answer.code is None or self._ended_at is None:
            return
        elif answer.code < 0:
            self.gone = f"antdt run was ended there by signal {-answer.code}"
        elif self.state != "leaving" and (answer.code != 0 or now - self._ended_at >= _AHEAD):
            self.gone = f"antdt run has ended there with exit code {answer.code}"
