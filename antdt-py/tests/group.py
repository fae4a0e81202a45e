"""A group of workers in one process, each a thread: what `antdt._antdt.Session` promises, without a network.

The group leases the samples that are left, adds gradients up, and loses workers where a test says. It goes on whenever all its workers
wait: so what a worker does between two waits is in any order with what the others do.
"""

import contextlib
import ctypes
import math
import threading
import types
from unittest import mock

import numpy as np

from antdt import _job

#: Of groups that `run` makes.
SAMPLES = 60

#: No test of these waits as long.
LIMIT = 60


class Died(BaseException):
    """The process of a worker is gone."""


class _Here(threading.local):
    """The worker that a thread is."""

    session = job = None


HERE = _Here()

#: Held by a thread that uses random numbers of the process.
RANDOM = threading.Lock()


@contextlib.contextmanager
def workers_are_threads():
    """Has the package take each thread for the process of a worker."""
    with contextlib.ExitStack() as patches:
        for module in ("data", "ddp", "client", "loader"):
            patches.enter_context(mock.patch(f"antdt.{module}.current", lambda: HERE.job))
        patches.enter_context(mock.patch.object(_job._antdt, "job", lambda: HERE.session.group.info))
        patches.enter_context(mock.patch.object(_job._antdt, "Session", lambda *known: HERE.session.begun(*known)))
        yield


class Group:
    """`size(step, rank)` is the number of samples of a batch. A worker dies where it is in one of `deaths`: of step, rank and call. Before
    the step `checkpoint`, a checkpoint is `kept` and all die. One that was kept is taken up by `resumed`."""

    def __init__(self, workers, samples, epochs, size, deaths=(), checkpoint=None, resumed=None):
        self.changed, self.threads, self.failures = threading.Condition(), [], []
        self.workers, self.size, self.deaths = workers, size, set(deaths)
        self.info = types.SimpleNamespace(epochs=epochs, global_batch_size=samples, samples=samples)
        #: Samples that are not in a lease, in their order.
        self.left = [(epoch, n) for epoch in range(epochs) for n in range(samples)]
        self.model, self.checkpoint, self.kept = None, checkpoint, None
        if resumed is not None:
            self.model, self.left = resumed
        #: A step is "closed", then "open" to gradients, then "summed"; one that a death undid `is_broken`, and opens again.
        self.live, self.step, self.phase, self.is_broken = {}, 0, "closed", False
        #: Samples of each worker in each step, and those of steps that all took.
        self.steps, self.applied, self.lives = [], [], 0

    def run(self, script):
        """Runs `script(rank)` in each worker until all are done. Returns what those that came to their end returned, by rank."""
        self.script, self.found = script, {}
        with workers_are_threads():
            self._run()
        if self.failures:
            raise self.failures[0]
        return self.found

    def _run(self):
        with self.changed:
            for rank in range(self.workers):
                self._begin(rank, has_model=rank == 0 and self.model is None)
        while any(thread.is_alive() for thread in list(self.threads)):
            for thread in list(self.threads):
                thread.join(LIMIT)
                if thread.is_alive():
                    raise AssertionError("a worker waits for ever")

    def _begin(self, rank, has_model):
        self.lives += 1
        session = Session(self, rank, has_model)
        self.live[rank] = session
        thread = threading.Thread(target=self._live, args=(session,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _live(self, session):
        HERE.session, HERE.job = session, None
        try:
            HERE.job = _job.Job()
            self.found[session.rank] = self.script(session.rank)
        except Died:
            return
        except BaseException as error:
            self.failures.append(error)
            with self.changed:
                # The others cannot go on either.
                for other in self.live.values():
                    other.is_dead = True
                self.changed.notify_all()

    # With the lock

    def reaches(self, session, phase):
        """The worker is there: it may be where it dies."""
        if session.is_dead:
            raise Died()
        death = (self.step, session.rank, phase)
        if death in self.deaths and any(other.has_model for other in self.live.values() if other is not session):
            self.deaths.discard(death)
            self._lose(session)
            raise Died()

    def _lose(self, session):
        session.is_dead = True
        if self.phase != "summed":
            self.left = session.leased + self.left
            self.phase, self.is_broken = "closed", True
        del self.live[session.rank]
        self._begin(session.rank, has_model=False)
        self.changed.notify_all()

    def go_on(self):
        """All workers wait."""
        live = [self.live[rank] for rank in sorted(self.live)]
        lacking = [session for session in live if not session.has_model]
        if self.phase == "summed":
            self._commit(live)
        elif self.phase == "open":
            self._sum(live)
        elif lacking and self.model is not None:
            for session in lacking:
                session.asks.append("take")
        elif lacking:
            next(session for session in live if session.has_model).asks.append("give")
        elif self.checkpoint == self.step and self.kept is None:
            live[0].asks.append("give")
        else:
            self._open(live)
        self.changed.notify_all()

    def _open(self, live):
        """Leases batches."""
        self.phase, self.is_broken = "open", False
        for session in live:
            if not session.leased:
                size = self.size(self.step, session.rank)
                session.leased, self.left = self.left[:size], self.left[size:]
        if not any(session.leased for session in live):
            live[0].leased, self.left = self.left[:1], self.left[1:]
        for session in live:
            session.given, session.marks = None, [0] * session.mark_count
            if session.leased:
                session.asks.append("batch")
            elif not any(other.leased for other in live):
                session.asks.append("over")

    def _sum(self, live):
        given = [session.given for session in live if session.given is not None]
        self.total = np.sum(given, axis=0, dtype=np.float32)
        self.shares = [(len(session.leased), session.marks) for session in live]
        self.steps.append([[sample for _, sample in session.leased] for session in live])
        self.phase = "summed"
        for session in live:
            session.asks.append("step")

    def _commit(self, live):
        self.applied += sum(self.steps[-1], [])
        for session in live:
            session.leased = []
        self.phase, self.step = "closed", self.step + 1

    def keep(self, model):
        """A checkpoint, after which nobody lives."""
        held = sum((session.leased for session in self.live.values()), [])
        self.kept = (model, held + self.left)
        for session in self.live.values():
            session.is_dead = True


def run(script, **how):
    """Runs the script on 3 workers, some of which have no samples in a step. Returns the group and what it found."""
    members = Group(3, SAMPLES, 1, lambda step, rank: [5, 2, 0, 1][(step + rank) % 4], **how)
    return members, members.run(script)


class Session:
    """One worker, as `antdt._antdt.Session`."""

    def __init__(self, group, rank, has_model):
        self.group, self.rank, self.has_model = group, rank, has_model
        self.asks, self.leased, self.given, self.marks, self.mark_count = [], [], None, [], 0
        self.is_waiting = self.is_dead = False

    def begun(self, parameters, samples, marks, ahead):
        self.mark_count = marks
        return self

    def wait(self):
        group = self.group
        with group.changed:
            group.reaches(self, "wait")
            self.is_waiting = True
            while not self.asks:
                if all(other.is_waiting and not other.asks for other in group.live.values()):
                    group.go_on()
                elif not group.changed.wait(LIMIT):
                    raise AssertionError(f"worker {self.rank} waits in step {group.step}")
                if self.is_dead:
                    raise Died()
            self.is_waiting = False
            return self.asks.pop(0)

    def batch(self):
        return [sample for _, sample in self.leased], min(epoch for epoch, _ in self.leased), []

    def loaded(self):
        with self.group.changed:
            self.group.reaches(self, "loaded")
            if not self.group.is_broken:
                self.asks.append("gradient")

    def gradient(self, address, length, scale, marks):
        with self.group.changed:
            self.group.reaches(self, "gradient")
            self.given, self.marks = numbers_at(address, length) * np.float32(scale), marks

    def step(self):
        with self.group.changed:
            self.group.reaches(self, "step")
        return self.group.shares, 1.0

    def sums(self, address, length, scale):
        assert self.group.total.size == length
        numbers_at(address, length)[:] = self.group.total * np.float32(scale)

    def stepped(self):
        with self.group.changed:
            self.group.reaches(self, "stepped")

    def gave(self, outline, tensors):
        bytes_of = [ctypes.string_at(at, WIDTHS[kind] * math.prod(shape)) for _, kind, shape, at in tensors]
        group = self.group
        with group.changed:
            group.reaches(self, "gave")
            if all(session.has_model for session in group.live.values()):
                group.keep((outline, bytes_of))
            else:
                group.model = (outline, bytes_of)
            group.changed.notify_all()

    def outline(self):
        return self.group.model[0]

    def tensor(self, index, address, length):
        assert len(self.group.model[1][index]) == length
        ctypes.memmove(address, self.group.model[1][index], length)

    def took(self):
        with self.group.changed:
            self.group.reaches(self, "took")
            self.has_model = True
            if all(session.has_model for session in self.group.live.values()):
                self.group.model = None

    def failed(self, why):
        """The error that follows says it."""


#: Bytes of a value, by the names of the safetensors format.
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}


def numbers_at(address, length):
    """The memory of so many numbers."""
    return np.ctypeslib.as_array((ctypes.c_float * length).from_address(address)) if length else np.zeros(0, np.float32)
