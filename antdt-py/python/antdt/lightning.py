"""Lightning's ``Trainer`` as a worker of AntDT, by a strategy::

from antdt.lightning import Strategy

antdt.init()
loader = DataLoader(dataset, batch_sampler=antdt.BatchSampler(dataset))
Trainer(strategy=Strategy(), max_epochs=3).fit(module, loader)
"""

import os
from typing import Any, Callable, Iterator, Optional

from lightning.pytorch import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from ._job import Job, UsageError, current
from .data import BatchSampler
from .ddp import DDP, carry, wrap


class Strategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Trains on one device, takes the steps that all workers take; ``RANK`` 0 logs and saves.

    An epoch of Lightning has ``len(loader)`` steps on each worker. Steps that are more, such as those that come again after a death, are
    in a further, shorter epoch at the end, after which there is no validation.

    ``device`` and further arguments are those of ``SingleDeviceStrategy``. Raises ``UsageError`` for settings of the ``Trainer`` that a
    job cannot follow.
    """

    def __init__(self, device: Any = "cpu", **kwargs: Any) -> None:
        self._job: Optional[Job] = current()
        super().__init__(device, **kwargs)
        if self._job is not None:
            self.global_rank = int(os.environ["RANK"])
            self.local_rank = int(os.environ["LOCAL_RANK"])

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if self._job is None or trainer.state.fn != TrainerFn.FITTING:
            return
        _check(trainer, self._job)
        DDP(self.lightning_module)
        for optimizer in self.optimizers:
            wrap(optimizer)
        carry(*(config.scheduler for config in self.lr_scheduler_configs))
        trainer.callbacks.insert(0, _Extension(self._job))

    def process_dataloader(self, dataloader: Any) -> Any:
        if self._job is None or not isinstance(getattr(dataloader, "batch_sampler", None), BatchSampler):
            return dataloader
        return _Epochs(dataloader, self._job.info.epochs)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        if self._job is not None:
            # The backward pass is here, and says whether there is a step to take.
            result = closure()
            return super().optimizer_step(optimizer, lambda: result, model, **kwargs)
        return super().optimizer_step(optimizer, closure, model, **kwargs)


def _check(trainer: Any, job: Job) -> None:
    if trainer.max_epochs != job.info.epochs:
        raise UsageError(
            f"max_epochs is {trainer.max_epochs} and the job has {job.info.epochs} epoch(s): "
            f"start it with `antdt run --epochs {trainer.max_epochs} …`"
        )
    if trainer.max_steps != -1:
        raise UsageError("max_steps is set, and a job trains all samples: leave it out, and set max_epochs")
    if trainer.accumulate_grad_batches != 1:
        raise UsageError(
            "accumulate_grad_batches adds up several batches, which AntDT does not: set it to 1, and "
            "`antdt run --global-batch-size` to the samples of a step"
        )


class _Epochs:
    """All batches of this worker, in epochs of the same length on all workers: Lightning wants to know which batch is an epoch's last."""

    def __init__(self, loader: DataLoader, epochs: int) -> None:
        self.loader = loader
        self._batches = (batch for _ in range(epochs) for batch in loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            try:
                yield next(self._batches)
            except StopIteration:
                return


class _Extension(Callback):  # type: ignore[misc]
    """Has the training go on with a further epoch while there are steps to take."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs and self._job.start().pulled() not in (
            "over",
            "late",
            "drained",
        ):
            trainer.fit_loop.max_epochs += 1
