"""Which hosts of a job under Ray are given up, replaced or left. Pure: it is told the time and what is known of the hosts, and answers
with orders; ``ray`` carries them out."""

from dataclasses import dataclass
from typing import List, Optional, Sequence, Set, Union

#: Silence after which a host is given up, in seconds: only that of a machine without power or network comes to it, since the end of a
#: process is seen at once. An actor of a busy machine answers late.
PATIENCE = 5.0

#: Time between the end of the connection to a host and the verdict that its node is lost too. Ray says of an actor that died on a live
#: node within half of that.
VERDICT = 0.15

#: Pause before the next start after one in vain, which doubles with each, and the longest.
PAUSE = (2.0, 60.0)

#: How long a start may wait for a node with room, and the host for its part in the job.
START_LIMIT = 60.0

#: Time that a host must stay for its start not to have been in vain.
SETTLED = 3.0

#: Time before a node is taken away at which its host leaves even if its replacement is not there.
LEAVE_MARGIN = 15.0


@dataclass(frozen=True)
class HostView:
    """What is known of a host that is not given up."""

    name: str
    #: Since when it is being started; ``None`` once it has its part in the job.
    starting_since: Optional[float] = None
    #: Since when it has.
    there_since: float = 0.0
    #: When it answered last.
    heard: float = 0.0
    #: When the connection to it ended.
    cut: Optional[float] = None
    #: How it has ended, if that is known.
    gone: Optional[str] = None
    #: When its node is taken away; ``None`` if it stays.
    leaves_at: Optional[float] = None
    #: Whether it has the master of the job, which moves with all of the job.
    is_first: bool = False


@dataclass(frozen=True)
class GiveUp:
    """The host is no part of the job any more."""

    name: str
    why: str
    #: Whether the host itself or Ray has told, rather than its silence.
    is_certain: bool


@dataclass(frozen=True)
class Start:
    """Another host is to be started."""


@dataclass(frozen=True)
class Checkpoint:
    """The job is to take a checkpoint, since this host will leave."""

    name: str


@dataclass(frozen=True)
class Leave:
    """The host is to end in order."""

    name: str


Order = Union[GiveUp, Start, Checkpoint, Leave]


class HostKeeper:
    """Keeps ``wanted`` hosts.

    A host that is lost is replaced at once, one that comes to nothing ever later. A host whose node will be taken away stays until its
    replacement is there, or until the time is needed to end in order; the first host leaves at once, as nothing can stand in for it
    beforehand.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._in_vain = 0
        self._not_before = 0.0
        self._warned: Set[str] = set()
        self._left: Set[str] = set()

    def look(self, now: float, hosts: Sequence[HostView]) -> List[Order]:
        orders: List[Order] = []
        staying: List[HostView] = []
        for host in hosts:
            why = self._verdict(now, host)
            if why is not None:
                orders.append(GiveUp(host.name, why, host.gone is not None))
                if host.starting_since is not None or now - host.there_since < SETTLED:
                    self._failed(now)
                continue
            if host.starting_since is None and now - host.there_since >= SETTLED:
                self._in_vain = 0
            if host.leaves_at is None or host.is_first:
                staying.append(host)
            elif host.name not in self._warned:
                self._warned.add(host.name)
                orders.append(Checkpoint(host.name))
        if now >= self._not_before:
            orders.extend(Start() for _ in range(self._wanted - len(staying)))
        there = sum(host.starting_since is None for host in staying)
        given_up = {order.name for order in orders if isinstance(order, GiveUp)}
        for host in hosts:
            if host.leaves_at is None or host.name in self._left | given_up:
                continue
            if host.is_first or there >= self._wanted or now >= host.leaves_at - LEAVE_MARGIN:
                self._left.add(host.name)
                orders.append(Leave(host.name))
        return orders

    def _verdict(self, now: float, host: HostView) -> Optional[str]:
        """Why a host is given up, if it is."""
        if host.gone is not None:
            return host.gone
        if host.cut is not None and now - host.cut >= VERDICT:
            return "the connection to it has ended"
        if host.starting_since is not None:
            return f"it did not start within {START_LIMIT:g} s" if now - host.starting_since >= START_LIMIT else None
        return f"it was silent for {PATIENCE:g} s" if now - host.heard >= PATIENCE else None

    def _failed(self, now: float) -> None:
        least, most = PAUSE
        self._not_before = now + min(most, least * 2.0 ** min(self._in_vain, 9))
        self._in_vain += 1
