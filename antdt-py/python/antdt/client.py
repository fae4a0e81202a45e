"""Batches and sums for a training loop of any framework: numpy is all that it takes."""

import json
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from ._job import DTYPES, Model, UsageError, current
from .data import BatchSampler


class ShardClient(Model):
    """The worker of a training loop that is all its own, of JAX, of numpy, of anything::

        client = antdt.ShardClient(len(x), gradient=w.size, state={"w": w})
        for batch in client:
            mean = client.combine(gradient(w, x[batch], y[batch]))
            if mean is not None:
                w -= 0.1 * mean

    Iterating yields the numbers of the samples of each batch of one epoch that are this worker's, as an array of ``int64``. ``combine``
    takes the gradient of the mean loss over the batch, ``gradient`` numbers, and returns that of the mean loss over the samples of all
    workers; ``None`` if there is no step to take with it: the batch then comes again, or had no samples that count. Without ``gradient``,
    batches are all there is, and one counts as done when the next is taken.

    The arrays of ``state`` are what a worker that joins takes from the others, what checkpoints have, and what all workers have from the
    first one when they begin. They are overwritten in place, before a batch.
    """

    def __init__(
        self,
        samples: int,
        gradient: int = 0,
        state: Optional[Mapping[str, "np.ndarray[Any, Any]"]] = None,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        self._job = current()
        self._state: Dict[str, "np.ndarray[Any, Any]"] = dict(state or {})
        for name, array in self._state.items():
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise UsageError(f"state[{name!r}] must be a contiguous array that can be written: pass array.copy()")
            if str(array.dtype) not in DTYPES:
                raise UsageError(
                    f"state[{name!r}] is of {array.dtype}, which no checkpoint has: keep it as another type"
                )
        self.parameters, self.marks = gradient, 0
        self.is_borrowed = False
        #: Share of its learning rate at which the loop takes the newest step, as the plan in force says.
        self.rate_share = 1.0
        self._batch: List[int] = []
        self._sums: "np.ndarray[Any, np.dtype[np.float32]]" = np.zeros(gradient, dtype=np.float32)
        if self._job is not None:
            if self._job.model is not None:
                raise UsageError("a job has one antdt.ShardClient, and no antdt.DDP beside it")
            self._job.model = self
        self._sampler = BatchSampler(range(samples), batch_size, seed)

    def __len__(self) -> int:
        """Number of batches of an epoch, as that of ``BatchSampler``."""
        return len(self._sampler)

    def __iter__(self) -> Iterator["np.ndarray[Any, np.dtype[np.int64]]"]:
        for batch in self._sampler:
            yield np.asarray(batch, dtype=np.int64)

    def combine(self, gradient: Any) -> Optional["np.ndarray[Any, np.dtype[np.float32]]"]:
        """See the class. The array that is returned is this call's until the next batch.

        Raises ``UsageError`` without a batch, or if the gradient has another length.
        """
        given = np.ascontiguousarray(gradient, dtype=np.float32).reshape(-1)
        if given.size != self.parameters:
            raise UsageError(f"the gradient has {given.size} numbers where the client was made for {self.parameters}")
        if self._job is None:
            return given
        if not self._batch:
            raise UsageError("combine() without a batch: call it once for each batch")
        return self._sums if self._exchange(given) else None

    def _exchange(self, gradient: "np.ndarray[Any, np.dtype[np.float32]]") -> bool:
        """Adds up over all workers; returns whether that made a step."""
        assert self._job is not None
        job, session, batch = self._job, self._job.session, self._batch
        self._batch = []
        if not self.is_borrowed:
            session.gradient(gradient.ctypes.data, gradient.size, float(len(batch)), [])
            job.answered()
        if job.next() != "step":
            return False
        shares, self.rate_share = session.step()
        total = sum(samples for samples, _ in shares)
        if total > 0:
            session.sums(self._sums.ctypes.data, self._sums.size, 1.0 / total)
        session.stepped()
        job.answered()
        return bool(total > 0)

    # What the worker asks

    def pulled(self) -> str:
        assert self._job is not None
        if self._batch:
            if self.parameters:
                raise UsageError("a batch was taken before the one before was combined: call combine() for each batch")
            self._exchange(self._sums)
        return self._job.next()

    def pull(self, samples: List[int]) -> bool:
        assert self._job is not None
        self._job.session.loaded()
        self._job.answered()
        if self._job.next() != "gradient":
            # The group broke meanwhile, and the batch comes again.
            return False
        self._batch, self.is_borrowed = samples, False
        return True

    def borrowed(self) -> List[int]:
        self._batch, self.is_borrowed = [0], True
        return [0]

    def give(self) -> Tuple[str, List[Tuple[str, str, List[int], int]], Any]:
        held = {name: array.copy() for name, array in self._state.items()}
        described = [
            (name, DTYPES[str(array.dtype)], list(array.shape), array.ctypes.data) for name, array in held.items()
        ]
        return json.dumps([[name, str(array.dtype), array.shape] for name, array in held.items()]), described, held

    def take(self, outline: str) -> List[Tuple[int, int]]:
        ours = [[name, str(array.dtype), list(array.shape)] for name, array in self._state.items()]
        if json.loads(outline) != ours:
            raise UsageError(f"the other workers have the state {outline}, and this one {json.dumps(ours)}")
        return [(array.ctypes.data, array.nbytes) for array in self._state.values()]

    def taken(self) -> None:
        pass
