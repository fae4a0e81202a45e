"""The job that this process is a worker of: one session, and what it asks of the program."""

import os
import sys
from typing import Any, List, Optional, Tuple

from . import _antdt


class UsageError(RuntimeError):
    """The program calls AntDT in a way that cannot work. The message says what to change."""


class Model:
    """What a framework does with the parameters that are its own. ``ddp`` has the one for PyTorch."""

    #: Number of parameters that have a gradient.
    parameters: int
    #: Number of whole numbers that go with each gradient.
    marks: int

    def give(self) -> Tuple[bytes, List[Tuple[int, int]], Any]:
        """Returns an outline, arrays by address and length in bytes, and what keeps them in memory."""
        raise NotImplementedError

    def take(self, outline: bytes) -> List[Tuple[int, int]]:
        """Returns where the arrays of the outline go."""
        raise NotImplementedError

    def taken(self) -> None:
        """The arrays are there."""
        raise NotImplementedError


class Job:
    """A worker of a job under ``antdt run``.

    At any time the worker has asked one thing that is not answered (``asked``), or none.
    """

    def __init__(self) -> None:
        self.info = _antdt.job()
        self.model: Optional[Model] = None
        self.samples: Optional[int] = None
        self.asked: Optional[str] = None
        self.ended: Optional[str] = None
        self._session: Optional[Any] = None

    @property
    def session(self) -> Any:
        if self._session is None:
            raise UsageError("no batch was taken yet: iterate over the DataLoader with antdt.BatchSampler first")
        return self._session

    def start(self) -> None:
        """Begins the worker, once the data and the model are known."""
        if self._session is not None:
            return
        if self.model is None:
            raise UsageError(
                "the first batch is taken before the model is known: call antdt.DDP(model) and "
                "antdt.wrap(optimizer) before the training loop"
            )
        self._session = _antdt.Session(self.model.parameters, self.samples, self.model.marks)

    def next(self) -> str:
        """Returns what the worker asks, after answering what needs no training loop; waits if it asks nothing."""
        while self.asked in (None, "give", "take"):
            if self.ended is not None:
                return self.ended
            self.asked = self.session.wait()
            if self.asked in ("over", "drained"):
                self.asked, self.ended = None, self.asked
                return self.ended
            try:
                if self.asked == "give":
                    outline, arrays, _held = self.model.give()
                    self.session.gave(outline, arrays)
                elif self.asked == "take":
                    places = self.model.take(bytes(self.session.outline()))
                    for index, (address, length) in enumerate(places):
                        self.session.array(index, address, length)
                    self.model.taken()
                    self.session.took()
                else:
                    return self.asked
            except Exception as error:
                self.session.failed(f"{type(error).__name__}: {error}")
                raise
            self.asked = None
        return self.asked

    def answered(self) -> None:
        self.asked = None


_job: Optional[Job] = None
_initialized = False


def init() -> None:
    """Makes this process a worker of the job that ``antdt run`` started. In a program that was started without it, all of AntDT stands
    aside: the program trains alone.

    Raises ``WorkerError`` if the job's settings cannot be read.
    """
    global _job, _initialized
    if _initialized:
        return
    if "ANTDT_NODE" in os.environ:
        _job = Job()
        sys.excepthook = _excepthook(sys.excepthook)
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "this process is one of several that another launcher started; start the program with "
            "`antdt run --nproc-per-node N -- python …`, or alone"
        )
    _initialized = True


def is_initialized() -> bool:
    """Returns whether ``init`` was called."""
    return _initialized


def current() -> Optional[Job]:
    """The job, or ``None`` in a program that trains alone."""
    if not _initialized:
        raise UsageError("antdt.init() was not called: it comes first")
    return _job


def _excepthook(before):
    """A worker that cannot go on ends with the exit code that says whether another life can help."""

    def hook(kind, error, trace):
        before(kind, error, trace)
        code = getattr(error, "exit_code", None)
        if code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    return hook
