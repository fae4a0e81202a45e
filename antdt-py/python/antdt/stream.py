"""An iterable data set over the leases of the worker, for sources that are read many samples at a time."""

from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

import torch
from torch.utils.data import default_collate, get_worker_info

from ._job import UsageError
from .data import BatchSampler

#: Reads samples by their numbers, in the order that they are asked for.
Read = Callable[[List[int]], Iterable[Any]]


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of this worker's samples from a source that is read many samples at a time, such as an archive or a table::

        def read(numbers):
            for number in numbers:
                yield archive.sample(number)

        loader = antdt.DataLoader(antdt.IterableDataset(read, samples=60000), num_workers=4)

    ``source`` is a function that returns the samples of the numbers it is given, each once and in this order, with ``samples`` saying how
    many there are; or a data set with ``len()`` and indices. Neighbours of a batch are mostly near each other in the source, in random
    order.

    Iterating it yields batches, of the size that the plan in force gives: ``torch.utils.data.DataLoader(stream, batch_size=None)`` passes
    them on. Leases are those of the process that called ``antdt.init()``: only ``antdt.DataLoader`` has other processes read for it.

    A stream that can only be read from its begin is refused: what a dead worker has read of it could not be given to others.
    """

    def __init__(
        self,
        source: Any,
        samples: Optional[int] = None,
        batch_size: int = 32,
        seed: int = 0,
        collate_fn: Callable[[List[Any]], Any] = default_collate,
    ) -> None:
        self.by_number = _by_number(source, samples)
        self.batch_size, self.seed, self.collate_fn = batch_size, seed, collate_fn
        self._samples: Optional[BatchSampler] = None

    def sampler(self) -> BatchSampler:
        """The one sampler of the data set, made when it is first wanted."""
        if self._samples is None:
            self._samples = BatchSampler(self.by_number, self.batch_size, self.seed)
        return self._samples

    @property
    def is_borrowed(self) -> bool:
        """Whether the newest batch is one sample whose gradient does not count: leave its loss out of what the script reports."""
        return self._samples is not None and self._samples.is_borrowed

    def __len__(self) -> int:
        """Number of batches of an epoch, as that of ``BatchSampler``."""
        return len(self.sampler())

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UsageError(
                "a process of torch's DataLoader has no leases: have antdt.DataLoader(stream, num_workers=…) read ahead in place of it"
            )
        for batch in self.sampler():
            yield self.collate_fn(self.by_number.__getitems__(batch))


class _ByNumber:
    """The samples of a function that reads, each by its number."""

    def __init__(self, read: Read, samples: int) -> None:
        self.read, self.samples = read, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: List[int]) -> List[Any]:
        found = list(self.read(numbers))
        if len(found) != len(numbers):
            raise UsageError(
                f"the source gave {len(found)} samples for {len(numbers)} numbers: give one for each, in the order of the numbers"
            )
        return found


class _Each:
    """Reads a data set that has indices."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, numbers: List[int]) -> Union[List[Any], Iterable[Any]]:
        if hasattr(self.dataset, "__getitems__"):
            found: Iterable[Any] = self.dataset.__getitems__(numbers)
            return found
        return [self.dataset[number] for number in numbers]


def _by_number(source: Any, samples: Optional[int]) -> _ByNumber:
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if samples is not None and samples != len(source):
            raise UsageError(f"samples is {samples} and the data set has {len(source)}: leave samples out")
        return _ByNumber(_Each(source), len(source))
    if not callable(source) or isinstance(source, torch.utils.data.IterableDataset):
        raise UsageError(
            f"a {type(source).__name__} can only be read from its begin, and samples are given out by number: pass a function that "
            "returns the samples of a list of numbers, with samples=N"
        )
    if samples is None or samples < 1:
        raise UsageError("how many samples there are is not known: pass samples=N beside the function that reads them")
    return _ByNumber(source, samples)
