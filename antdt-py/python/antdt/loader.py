"""A DataLoader whose processes read the batches of the worker before they are due."""

from collections import deque
from typing import Any, Deque, Iterator, List, Optional

import torch

from ._job import UsageError, current
from .data import BatchSampler
from .stream import IterableDataset

#: Batches that each reading process has in hand, unless the script says.
_PREFETCH = 2


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[misc]
    """Batches of this worker's samples, in place of ``torch.utils.data.DataLoader``; further arguments are those of torch's.

    With ``num_workers``, processes read the batches that follow, as the leases of the worker and the plan in force have them. Where a
    plan changes batches or a death moves samples, what was read in vain is read again: which samples are in a step never depends on
    what was read ahead.

    ``batch_size`` is that of a program that trains alone. Samples are shuffled in every epoch.

    An ``antdt.IterableDataset`` brings ``batch_size``, ``seed`` and ``collate_fn`` with it.
    """

    def __init__(self, dataset: Any, batch_size: int = 32, num_workers: int = 0, seed: int = 0, **further: Any) -> None:
        for name in ("sampler", "batch_sampler"):
            if further.get(name) is not None:
                raise UsageError(f"antdt.DataLoader has samples of its own: leave {name} out")
        if further.pop("drop_last", False):
            raise UsageError("each sample is in one step of each epoch: leave drop_last out")
        if not further.pop("shuffle", True):
            raise UsageError("workers share the samples in random order: leave shuffle=False out")
        job = current()
        if isinstance(dataset, IterableDataset):
            self._samples = dataset.sampler()
            further.setdefault("collate_fn", dataset.collate_fn)
            dataset = dataset.by_number
        elif isinstance(dataset, torch.utils.data.IterableDataset):
            raise UsageError(
                "samples are given out by number: the data set must have len() and indices, or be an antdt.IterableDataset of a "
                "function that reads by number"
            )
        else:
            self._samples = BatchSampler(dataset, batch_size, seed)
        self._requests: Optional[_Requests] = None
        self._reader: Optional[Iterator[Any]] = None
        sampler: Any = self._samples
        if job is not None and num_workers > 0:
            sampler = self._requests = _Requests(self._samples)
            job.read_ahead = num_workers * (further.get("prefetch_factor") or _PREFETCH)
        super().__init__(dataset, batch_sampler=sampler, num_workers=num_workers, **further)

    @property
    def is_borrowed(self) -> bool:
        """Whether the newest batch is one sample whose gradient does not count: leave its loss out of what the script reports."""
        return self._samples.is_borrowed

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._requests is None else self._read_ahead(self._requests)

    def _read_ahead(self, requests: "_Requests") -> Iterator[Any]:
        for batch in self._samples:
            if self._samples.is_borrowed:
                yield self.collate_fn([self.dataset[index] for index in batch])
                continue
            requests.expect(batch, self._samples.upcoming)
            if self._reader is None:
                # For all epochs: what follows an epoch is read before it ends.
                self._reader = super().__iter__()
            while True:
                read = next(self._reader)
                if requests.read() == batch:
                    break
            yield read
        if self._samples.is_over:
            # Ends the processes.
            self._reader = None


class _Requests:
    """What the processes are asked to read, without end: torch's loader delivers it in this order."""

    def __init__(self, samples: BatchSampler) -> None:
        self._samples = samples
        #: Asked for and not delivered.
        self._open: Deque[List[int]] = deque()
        self._next: Deque[List[int]] = deque()

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[List[int]]:
        while True:
            # What is not known yet is one sample, whose batch nobody waits for.
            batch = self._next.popleft() if self._next else [0]
            self._open.append(batch)
            yield batch

    def expect(self, batch: List[int], upcoming: List[int]) -> None:
        """This batch is to be delivered next; then, as things are, the upcoming samples in batches of its size."""
        size = len(batch)
        due = [upcoming[begin : begin + size] for begin in range(0, len(upcoming) - size + 1, size)]
        later = list(self._open)
        if batch in later:
            later = later[later.index(batch) + 1 :]
            self._next = deque(one for one in due if one not in later)
        else:
            self._next = deque([batch, *due])

    def read(self) -> List[int]:
        """The oldest request is delivered; returns it."""
        return self._open.popleft()
