"""The job that this process is a worker of: one session, and what it asks of the program."""

import os
import sys
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type

from . import _antdt

_Hook = Callable[[Type[BaseException], BaseException, Optional[TracebackType]], Any]


#: Types of values by the names of the safetensors format. Some are younger than the oldest torch that is supported.
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}


class UsageError(RuntimeError):
    """The program calls AntDT in a way that cannot work. The message says what to change."""

    #: Another life of the program would do the same.
    exit_code = _antdt.NEVER


class Model:
    """What a framework does with the parameters that are its own. ``ddp`` has the one for PyTorch."""

    #: Number of parameters that have a gradient.
    parameters: int
    #: Number of whole numbers that go with each gradient.
    marks: int
    #: Whether the batch that the loop has is one sample whose gradient does not count.
    is_borrowed: bool

    def pulled(self) -> str:
        """The loop wants a batch: returns what the worker asks."""
        raise NotImplementedError

    def pull(self, samples: List[int]) -> bool:
        """The loop is to get these samples; returns whether they are still wanted."""
        raise NotImplementedError

    def borrowed(self) -> List[int]:
        """The loop gets a sample that does not count; returns it."""
        raise NotImplementedError

    def give(self) -> Tuple[str, List[Tuple[str, str, List[int], int]], Any]:
        """Returns an outline, tensors by name, type, shape and address, and what keeps them in memory."""
        raise NotImplementedError

    def take(self, outline: str) -> List[Tuple[int, int]]:
        """Returns where the tensors of the outline go, by address and length in bytes."""
        raise NotImplementedError

    def taken(self) -> None:
        """The tensors are there."""
        raise NotImplementedError


class Job:
    """A worker of a job under ``antdt run``.

    At any time the worker has asked one thing that is not answered (``asked``), or none.
    """

    def __init__(self) -> None:
        self.info = _antdt.job()
        self.model: Optional[Model] = None
        self.has_sampler = False
        #: Batches beyond the one of the loop that are read.
        self.read_ahead = 0
        self.asked: Optional[str] = None
        self.ended: Optional[str] = None
        self._session: Optional[Any] = None

    @property
    def session(self) -> Any:
        if self._session is None:
            raise UsageError("no batch was taken yet: iterate over the DataLoader with antdt.BatchSampler first")
        return self._session

    @property
    def runs(self) -> bool:
        """Whether the worker began."""
        return self._session is not None

    def start(self) -> Model:
        """Begins the worker, once the data and the model are known. Returns the model."""
        if self.model is None:
            raise UsageError(
                "the first batch is taken before the model is known: call antdt.DDP(model) and "
                "antdt.wrap(optimizer) before the training loop"
            )
        if self._session is None:
            self._session = _antdt.Session(
                self.model.parameters, self.info.samples or 0, self.model.marks, self.read_ahead
            )
        return self.model

    def next(self) -> str:
        """Returns what the worker asks, after answering what needs no training loop; waits if it asks nothing."""
        while self.asked is None:
            if self.ended is not None:
                return self.ended
            asked: str = self.session.wait()
            if asked in ("over", "late", "drained"):
                self.ended = asked
            elif asked in ("give", "take"):
                try:
                    self._copy(asked)
                except Exception as error:
                    self.session.failed(f"{type(error).__name__}: {error}")
                    raise
            else:
                self.asked = asked
        return self.asked

    def _copy(self, asked: str) -> None:
        """Gives the model to another worker or a checkpoint, or takes that of another or of a checkpoint."""
        model, session = self.start(), self.session
        if asked == "give":
            outline, tensors, _held = model.give()
            session.gave(outline, tensors)
            return
        for index, (address, length) in enumerate(model.take(session.outline())):
            session.tensor(index, address, length)
        model.taken()
        session.took()

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


def _excepthook(before: _Hook) -> _Hook:
    """A worker that cannot go on ends with the exit code that says whether another life can help."""

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        before(kind, error, trace)
        code = getattr(error, "exit_code", None)
        if code is None and str(error).startswith("DataLoader worker (pid"):
            # A process that reads was killed, such as for want of memory: no error of the script.
            code = _antdt.RETRY
        if code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    return hook
