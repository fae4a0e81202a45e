"""Which samples come next: from the leases of the worker, in batches of the size that the plan in force gives it."""

import os
import random
import sys
import warnings
from typing import Iterator, List, Optional, Sized

from ._job import Job, UsageError, current


class BatchSampler:
    """Indices of the samples of each batch, for ``DataLoader(dataset, batch_sampler=antdt.BatchSampler(dataset))``.

    Iterating yields the batches of one epoch that are this worker's. A sample counts as trained once the step with it is in the model of
    all workers; until then, one whose worker dies comes again elsewhere.

    ``batch_size`` is that of a program that trains alone; under ``antdt run`` the job's plan gives each worker its own.

    A worker that has no samples for a step that the others take gets a batch of one sample, whose gradient does not count: so each
    worker's loop takes every step.
    """

    def __init__(self, dataset: Sized, batch_size: int = 32, seed: int = 0) -> None:
        self._job: Optional[Job] = current()
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                f"a {type(dataset).__name__} has no len(), and samples are given out by number: pass a data set with indices, or an "
                "antdt.IterableDataset of a function that reads by number to antdt.DataLoader"
            )
        self._length = len(dataset)
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0
        #: Samples that follow those of the newest batch, as things are.
        self.upcoming: List[int] = []
        if self._length == 0:
            raise UsageError("the data set is empty")
        if self._job is None:
            return
        told = self._job.info.samples
        if told is None:
            raise UsageError(
                f"the job does not know how many samples there are: start it with `antdt run --data samples:{self._length} …`"
            )
        if told != self._length:
            raise UsageError(
                f"the data set has {self._length} samples and the job was told {told}: start it with "
                f"`antdt run --data samples:{self._length} …`"
            )
        if self._job.has_sampler:
            raise UsageError("a job has one antdt.BatchSampler: evaluate with an ordinary DataLoader")
        self._job.has_sampler = True

    @property
    def is_borrowed(self) -> bool:
        """Whether the newest batch is one sample whose gradient does not count: leave its loss out of what the script reports."""
        model = None if self._job is None else self._job.model
        return model is not None and model.is_borrowed

    @property
    def is_over(self) -> bool:
        """Whether no batch follows in any epoch."""
        return self._job is not None and self._job.ended is not None

    def __len__(self) -> int:
        """Number of batches of an epoch: in a job, of the steps that all workers take together, if no worker dies."""
        size = self._batch_size if self._job is None else self._job.info.global_batch_size
        return -(-self._length // size)

    def __iter__(self) -> Iterator[List[int]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._alone(epoch) if self._job is None else self._leased(self._job, epoch)

    def _alone(self, epoch: int) -> Iterator[List[int]]:
        order = list(range(self._length))
        random.Random(self._seed + epoch).shuffle(order)
        for begin in range(0, self._length, self._batch_size):
            yield order[begin : begin + self._batch_size]

    def _leased(self, job: Job, epoch: int) -> Iterator[List[int]]:
        if epoch >= job.info.epochs:
            warnings.warn(
                f"the job has {job.info.epochs} epoch(s) and this is number {epoch + 1}, without samples: "
                f"start it with `antdt run --epochs {epoch + 1} …`",
                stacklevel=2,
            )
        model = job.start()
        while True:
            asked = model.pulled()
            if asked == "late":
                _ends_without_model()
            if asked == "over":
                return
            if asked == "drained":
                # Another life takes over what is left: nothing after the training loop is to run here.
                raise SystemExit(0)
            if asked == "step":
                # The others take a step without samples of this worker.
                yield model.borrowed()
                continue
            samples, of_epoch, self.upcoming = job.session.batch()
            if of_epoch > epoch:
                return
            # From here on the time is that of the batch: of reading it, too.
            if model.pull(samples):
                yield samples


def _ends_without_model() -> None:
    """Ends a worker that came when the last sample was trained: what the script does then is for those that have the model."""
    why = "antdt: the training ended before this worker had the model, so that it runs nothing after it"
    if os.environ.get("RANK") == "0":
        raise SystemExit(f"{why}; RANK 0 was replaced too late: what it was to write, nobody has written")
    print(why, file=sys.stderr)
    raise SystemExit(0)
