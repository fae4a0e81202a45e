"""Hugging Face's ``Trainer`` as a worker of AntDT: names of this module in place of those of ``transformers``::

from antdt.huggingface import Trainer, TrainingArguments

antdt.init()
Trainer(model, TrainingArguments("out", num_train_epochs=3), train_dataset=dataset).train()
"""

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Tuple

import transformers
from ._job import Job, UsageError, current
from .ddp import DDP, carry, wrap
from .loader import DataLoader

#: Variables by which accelerate takes this process for one of a group of torch.distributed.
_OF_A_GROUP = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


@contextmanager
def _no_process_group() -> Iterator[None]:
    """Has accelerate see a process alone: workers of AntDT form no group of torch.distributed."""
    held = {name: os.environ.pop(name) for name in _OF_A_GROUP if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


@dataclass
class TrainingArguments(transformers.TrainingArguments):  # type: ignore[misc]
    """Arguments of a ``Trainer`` whose process is a worker: ``RANK`` 0 logs and saves."""

    def __post_init__(self) -> None:
        if current() is None:
            super().__post_init__()
            return
        with _no_process_group():
            super().__post_init__()

    @property
    def process_index(self) -> int:
        return int(os.environ.get("RANK", "0"))

    @property
    def local_process_index(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A ``Trainer`` that takes samples from the leases of this worker and steps that all workers take.

    The loss that it logs is of the batches of ``RANK`` 0. In a program that trains alone it is that of ``transformers``.

    Raises ``UsageError`` for arguments that a job cannot follow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._job: Optional[Job] = current()
        super().__init__(*args, **kwargs)
        if self._job is None:
            return
        _check(self.args, self._job)
        self._loader: Optional[_Loader] = None
        # There are more steps than were foreseen if batches come again.
        self.pop_callback(transformers.trainer_callback.DefaultFlowCallback)
        self.callback_handler.callbacks.insert(0, _Flow(self))

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        if self._job is None:
            return loader
        # The loader of accelerate takes a batch ahead, of which nothing is known here.
        further = {}
        if self.args.dataloader_prefetch_factor is not None:
            further["prefetch_factor"] = self.args.dataloader_prefetch_factor
        self._loader = _Loader(
            self,
            DataLoader(
                loader.dataset,
                num_workers=self.args.dataloader_num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=self.args.dataloader_pin_memory,
                **further,
            ),
        )
        return self._loader

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Tuple[Any, ...]:
        epochs, steps, *others = super().set_initial_training_values(*args, **kwargs)
        # The data end an epoch.
        return (epochs, steps if self._job is None else sys.maxsize, *others)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self._job is not None:
            carry(scheduler, _Steps(self))
        return scheduler

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._job is not None:
            # The hooks of the parameters are all that is wanted of it: the Trainer goes on with the plain model.
            DDP(self.model)
            wrap(optimizer)
        return optimizer

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        # The others would write some of its files, too.
        if self._job is None or self.args.should_save:
            super()._save_checkpoint(*args, **kwargs)

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        if self._job is not None and resume_from_checkpoint:
            raise UsageError("a job does not resume a checkpoint of the Trainer: leave resume_from_checkpoint out")
        return super().train(resume_from_checkpoint, **kwargs)


def _check(arguments: Any, job: Job) -> None:
    if not isinstance(arguments, TrainingArguments):
        raise UsageError("args are those of transformers: make them with antdt.huggingface.TrainingArguments")
    if arguments.max_steps > 0:
        raise UsageError("max_steps is set, and a job trains all samples: leave it out, and set num_train_epochs")
    if arguments.num_train_epochs != job.info.epochs:
        raise UsageError(
            f"num_train_epochs is {arguments.num_train_epochs} and the job has {job.info.epochs} epoch(s): "
            f"start it with `antdt run --epochs {arguments.num_train_epochs:g} …`"
        )
    if arguments.gradient_accumulation_steps != 1:
        raise UsageError(
            "gradient_accumulation_steps adds up several batches, which AntDT does not: set it to 1, and "
            "`antdt run --global-batch-size` to the samples of a step"
        )


class _Loader:
    """The batches of an epoch; tells the Trainer when there are no more."""

    def __init__(self, trainer: Trainer, loader: Any) -> None:
        self.trainer, self.loader = trainer, loader
        self.dataset = loader.dataset
        self.has_yielded = False

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.has_yielded = False
        for batch in self.loader:
            self.has_yielded = True
            yield batch
        self.trainer.control.should_epoch_stop = True


class _Flow(transformers.trainer_callback.DefaultFlowCallback):  # type: ignore[misc]
    """When to log, evaluate and save is as it was; the data end the training, and not a number of steps."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.epochs = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        foreseen, state.max_steps = state.max_steps, sys.maxsize
        super().on_step_end(args, state, control, **kwargs)
        state.max_steps = foreseen
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.epochs += 1
        loader = self.trainer._loader
        if loader is not None and not loader.has_yielded:
            # A worker that joins runs through the epochs before, which have no samples for it.
            control.should_training_stop = False
            return control
        if self.epochs == args.num_train_epochs:
            # The last step is known to be the last only now.
            state.max_steps = state.global_step
            super().on_step_end(args, state, control, **kwargs)
        return super().on_epoch_end(args, state, control, **kwargs)


class _Steps:
    """Steps of the job so far: they go to a worker that joins, which saves and logs by their number."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def state_dict(self) -> Dict[str, int]:
        return {"steps": self.trainer.state.global_step}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        self.trainer.state.global_step = self.trainer._globalstep_last_logged = state["steps"]
