"""Replicas of a PyTorch model in all workers: ``DDP`` adds up gradients, ``wrap`` takes the steps that all workers take."""

import contextlib
import functools
import struct
import sys
import types
from itertools import zip_longest
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.autograd import Variable

from ._job import Job, Model, UsageError, current
from ._state import described, outlined, restored


def _is_in(gradient: Optional[torch.Tensor], piece: torch.Tensor) -> bool:
    """Whether a gradient lies in this piece of the flat memory."""
    return gradient is not None and gradient.layout is torch.strided and gradient.data_ptr() == piece.data_ptr()


def _fits(parameter: torch.nn.Parameter, piece: torch.Tensor) -> bool:
    """Whether a gradient of a parameter may lie in the flat memory: it is of its type, on its device, and not sparse."""
    is_dense = parameter.grad is None or parameter.grad.layout is torch.strided
    return is_dense and parameter.dtype is piece.dtype and parameter.device == piece.device


def _is_scaler(thing: Any) -> bool:
    """Whether this is a GradScaler, of any of the modules of torch that have one."""
    return hasattr(thing, "get_scale") and hasattr(thing, "unscale_")


def _is_scaled() -> bool:
    """Whether a GradScaler calls ``optimizer.step()``. Nothing else tells an optimizer that its gradients were scaled."""
    frame: Optional[types.FrameType] = sys._getframe(2)
    # Between are at most the wrapper of a scheduler and that of an optimizer of another package.
    for _ in range(4):
        if frame is None:
            return False
        caller: Any = frame.f_locals.get("self")
        if _is_scaler(caller):
            return bool(caller.is_enabled())
        frame = frame.f_back
    return False


class _TorchModel(Model):
    """The parameters and the optimizers of this worker, and the step that is open."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.modules: List["DDP"] = []
        self.optimizers: List[Any] = []
        self._own_steps: Dict[int, Callable[..., Any]] = {}
        self.carried: List[Any] = []
        self.trainable: List[torch.nn.Parameter] = []
        self.parameters = 0
        self.marks = 0
        self._flat = torch.zeros(0)
        self._batch: List[int] = []
        self.is_borrowed = False
        #: Whether a backward pass is under way, at whose end gradients are added up.
        self.is_queued = False
        #: Whether backward passes are of parts of the batch, after which another follows; and whether there was one in this batch.
        self.is_partial = False
        self._has_parts = False
        #: Scales losses, each worker's at its own time: gradients are added up without the scale.
        self._scaler: Any = None
        #: What the backward pass of this batch led to: "step", or "void" if there is no step to take with it.
        self._outcome: Optional[str] = None
        #: Optimizers that have taken the open step.
        self._stepped: Set[int] = set()
        #: Steps since this process began, or took the model.
        self._steps = 0
        #: Number of batches whose gradients make a step of the optimizers, and what is known of those there are.
        self.accumulate = 1
        self._gathered: Optional[Dict[str, Any]] = None
        #: Rates of the open step, of all groups of parameters.
        self._rates: List[float] = []
        #: The model that is taken over, and what of it comes into force with the next batch.
        self._taken: Any = None
        self._late: Any = None

    # What the worker knows of the model

    def add_module(self, module: "DDP") -> None:
        self._must_not_run("antdt.DDP")
        self.modules.append(module)
        self._measure()

    def add_optimizer(self, optimizer: Any, step: Callable[..., Any], accumulate: int) -> None:
        self._must_not_run("antdt.wrap")
        if self.optimizers and accumulate != self.accumulate:
            raise UsageError(
                f"accumulate is {accumulate} for one optimizer and {self.accumulate} for another: all take a step together"
            )
        self.accumulate = accumulate
        self.optimizers.append(optimizer)
        self._own_steps[id(optimizer)] = step
        self._measure()

    def add_carried(self, carried: Any) -> None:
        self._must_not_run("antdt.carry")
        if _is_scaler(carried):
            if self._scaler is not None:
                raise UsageError("two GradScalers are carried: have one scale the losses of all optimizers")
            self._scaler = carried
        self.carried.append(carried)

    def _must_not_run(self, what: str) -> None:
        if self.job.runs:
            raise UsageError(f"{what} was called after the first batch: call it before the training loop")

    def _measure(self) -> None:
        known: Dict[int, torch.nn.Parameter] = {}
        for module in self.modules:
            for parameter in module.module.parameters():
                if parameter.requires_grad:
                    known.setdefault(id(parameter), parameter)
        self.trainable = list(known.values())
        self.parameters = sum(parameter.numel() for parameter in self.trainable)
        groups = sum(len(optimizer.param_groups) for optimizer in self.optimizers)
        self.marks = 1 + -(-len(self.trainable) // 64) + groups

    # The training loop

    def pulled(self) -> str:
        if not self.optimizers:
            raise UsageError(
                "the optimizer is not known: call optimizer = antdt.wrap(optimizer) before the training loop"
            )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise UsageError(
                "torch.distributed.init_process_group was called: a collective of its group waits for ever once a worker has died, and a "
                "replacement cannot join it; leave the group out, antdt.DDP needs none"
            )
        if self._outcome == "step":
            # The loop did not step, such as a GradScaler whose gradients are not finite: so it is on all workers.
            self._step_over()
        self._outcome = None
        if self._batch and self._has_parts:
            raise UsageError(
                "a batch was taken and the one before had backward passes in no_sync() only: have its last one outside; to take a step "
                "with the gradients of several batches, antdt.wrap(optimizer, accumulate=N)"
            )
        if self._batch:
            raise UsageError(
                "a batch was taken before the step with the one before: call loss.backward() and optimizer.step() for each batch; have "
                "antdt.DataLoader(dataset, num_workers=…) read ahead in place of torch's, and give torch's an antdt.IterableDataset with "
                "batch_size=None"
            )
        asked = self.job.next()
        if asked == "over" and self._gathered is not None:
            self._rest()
        if asked == "gradient":
            raise UsageError(
                "a batch was taken before the backward pass of the one before: call loss.backward() for each batch"
            )
        return asked

    def pull(self, samples: List[int]) -> bool:
        self.job.session.loaded()
        self.job.answered()
        if self.job.next() != "gradient":
            # The group broke meanwhile, and the batch comes again.
            return False
        self._begin(samples, is_borrowed=False)
        return True

    def borrowed(self) -> List[int]:
        self._begin([0], is_borrowed=True)
        return [0]

    def _begin(self, samples: List[int], is_borrowed: bool) -> None:
        self._batch, self.is_borrowed, self._has_parts = samples, is_borrowed, False
        if self._late is not None:
            # Until here the loop of a worker that joins has run through the epochs before, and stepped its schedulers.
            for group, rate in zip(self._groups(), self._late["rates"]):
                group["lr"] = rate
            for carried, state in zip(self.carried, self._late["carried"]):
                carried.load_state_dict(state)
            self._late = None

    def backward_begins(self, parameter: torch.nn.Parameter) -> None:
        """The first gradient of a backward pass comes, that of this parameter, which has the one of before."""
        if self._outcome is not None and not self._batch:
            raise UsageError("two backward passes for one batch: add the losses up and call backward() once")
        if not self._batch:
            raise UsageError("a backward pass without a batch of antdt.BatchSampler: its gradient is no sample's")
        if self._has_parts:
            return
        self._has_parts = self.is_partial
        if parameter.grad is not None and bool(parameter.grad.any()):
            raise UsageError(
                "the gradient of the batch before is still there: call optimizer.zero_grad() for each batch; to take a step with the "
                "gradients of several batches, antdt.wrap(optimizer, accumulate=N)"
            )

    def backward_ends(self) -> None:
        """All gradients of the batch are there: adds them up over all workers."""
        self.is_queued = False
        job, session = self.job, self.job.session
        if not self.is_borrowed:
            flat = self._gather()
            session.gradient(flat.data_ptr(), flat.numel(), len(self._batch) / self._loss_scale(), self._marks())
            job.answered()
        self._batch = []
        if job.next() == "step":
            self._outcome = "step"
            self._scatter()
        else:
            self._no_step()

    def _loss_scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def _no_step(self) -> None:
        """There is no step to take with this batch."""
        self._outcome = "void"
        for parameter in self.trainable:
            if self._scaler is None:
                parameter.grad = None
            elif parameter.grad is not None:
                # A GradScaler wants gradients to look at.
                parameter.grad.zero_()

    def _flat_memory(self) -> torch.Tensor:
        if self._flat.numel() != self.parameters:
            self._flat = torch.zeros(self.parameters, dtype=torch.float32)
        return self._flat

    def _pieces(self) -> Iterator[Tuple[torch.nn.Parameter, torch.Tensor]]:
        flat, begin = self._flat_memory(), 0
        for parameter in self.trainable:
            end = begin + parameter.numel()
            yield parameter, flat[begin:end].view(parameter.shape)
            begin = end

    def _gather(self) -> torch.Tensor:
        with torch.no_grad():
            for parameter, piece in self._pieces():
                if parameter.grad is None:
                    piece.zero_()
                elif not _is_in(parameter.grad, piece):
                    piece.copy_(parameter.grad)
        return self._flat

    def _marks(self) -> List[int]:
        words = [0] * -(-len(self.trainable) // 64)
        for index, parameter in enumerate(self.trainable):
            if parameter.grad is not None:
                words[index // 64] |= 1 << (index % 64)
        rates = [struct.unpack("<Q", struct.pack("<d", float(group["lr"])))[0] for group in self._groups()]
        return [self._steps, *words, *rates]

    def _groups(self) -> List[Dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _scatter(self) -> None:
        """Gradients become those of the mean loss over the samples of all workers."""
        shares, rate_share = self.job.session.step()
        brought = [(marks[0], marks[1:]) for samples, marks in shares if samples > 0]
        total = sum(samples for samples, _ in shares)
        if total == 0:
            # Nobody had samples, as at the end of the data: there is no step to take.
            self._step_over()
            self._no_step()
            return
        words = -(-len(self.trainable) // 64)
        known = [0] * words
        for _, marks in brought:
            for index in range(words):
                known[index] |= marks[index]
        # All workers take a step at the same rates: those of the worker that has taken most of them; its schedulers know best.
        _, leading = max(brought, key=lambda taken: taken[0])
        rates = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in leading[words:]]
        self._rates = [rate * rate_share for rate in rates]
        flat = self._flat_memory()
        if self.accumulate == 1:
            self.job.session.sums(flat.data_ptr(), flat.numel(), self._loss_scale() / total)
        else:
            self.job.session.sums(flat.data_ptr(), flat.numel(), 1.0)
            before = self._gathered or {"batches": 0, "samples": 0, "known": [0] * words}
            if before["batches"]:
                flat += before["sums"]
            known = [one | other for one, other in zip(known, before["known"])]
            batches, total = before["batches"] + 1, before["samples"] + total
            if batches < self.accumulate:
                self._gathered = {
                    "batches": batches,
                    "samples": total,
                    "known": known,
                    "rates": self._rates,
                    "sums": flat.clone(),
                }
                self._step_over()
                self._no_step()
                return
            self._gathered = None
            flat *= self._loss_scale() / total
        self._set_gradients(known)
        self._stepped = set()

    def _set_gradients(self, known: List[int]) -> None:
        """What lies in the flat memory becomes the gradient of the parameters that have one, where it lies if it can."""
        with torch.no_grad():
            for index, (parameter, piece) in enumerate(self._pieces()):
                if not known[index // 64] >> (index % 64) & 1:
                    parameter.grad = None
                elif _is_in(parameter.grad, piece):
                    pass
                elif _fits(parameter, piece):
                    parameter.grad = piece
                elif parameter.grad is None:
                    parameter.grad = piece.to(parameter.device, parameter.dtype, copy=True)
                else:
                    parameter.grad.copy_(piece)

    def _rest(self) -> None:
        """The data end with fewer batches than make a step: it is taken with those there are."""
        rest, self._gathered = self._gathered, None
        assert rest is not None
        flat = self._flat_memory()
        torch.mul(rest["sums"], 1.0 / rest["samples"], out=flat)
        if self._scaler is not None and not bool(flat.isfinite().all()):
            # A GradScaler leaves such a step out.
            return
        self._set_gradients(rest["known"])
        self._rates = rest["rates"]
        for optimizer in self.optimizers:
            self._at_rates(optimizer, self._own_steps[id(optimizer)])
            optimizer.zero_grad()

    def step(self, optimizer: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the open step with one optimizer, or leaves it out if there is none."""
        if self._scaler is None and _is_scaled():
            raise UsageError(
                "a GradScaler takes the step, whose scale a worker that joins would not have: call antdt.carry(scaler) before the training "
                "loop"
            )
        if self._outcome == "void":
            return None
        if self._outcome is None and self._has_parts:
            raise UsageError(
                "a step after backward passes in no_sync() only: have the last one of each batch outside; to take a step with the "
                "gradients of several batches, antdt.wrap(optimizer, accumulate=N)"
            )
        if self._outcome != "step":
            raise UsageError("a step without a gradient: call loss.backward() for each batch before optimizer.step()")
        result = self._at_rates(optimizer, lambda: step(*args, **kwargs))
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self.optimizers):
            self._step_over()
        return result

    def _at_rates(self, optimizer: Any, step: Callable[[], Any]) -> Any:
        """Takes a step with one optimizer at the rates that all workers take it at."""
        begin = 0
        for other in self.optimizers:
            if other is optimizer:
                break
            begin += len(other.param_groups)
        groups = optimizer.param_groups
        own = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates[begin : begin + len(groups)]):
            group["lr"] = rate
        try:
            return step()
        finally:
            for group, rate in zip(groups, own):
                group["lr"] = rate

    def _step_over(self) -> None:
        self._steps += 1
        self.job.session.stepped()
        self.job.answered()
        self._outcome = None

    # The model on its way to another worker or a checkpoint

    def _state(self) -> Dict[str, Any]:
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        carried = [carried.state_dict() for carried in self.carried]
        if self._late is not None:
            # What was taken over and is not in force yet is the newer.
            carried = self._late["carried"]
            groups = (group for optimizer in optimizers for group in optimizer["param_groups"])
            for group, rate in zip(groups, self._late["rates"]):
                group["lr"] = rate
        return {
            "modules": [module.module.state_dict() for module in self.modules],
            "trainable": self._shapes(),
            "optimizers": optimizers,
            "carried": carried,
            "gathered": self._gathered,
        }

    def _shapes(self) -> List[Any]:
        """What must be the same on all workers: the shapes of the parameters that have a gradient, by name."""
        return [
            [name, list(parameter.shape)]
            for module in self.modules
            for name, parameter in module.module.named_parameters()
            if parameter.requires_grad
        ]

    def give(self) -> Tuple[str, List[Tuple[str, str, List[int], int]], Any]:
        outline, tensors = outlined(self._state())
        return outline, [(name, *described(tensor)) for name, tensor in tensors.items()], tensors

    def take(self, outline: str) -> List[Tuple[int, int]]:
        self._taken, tensors = restored(outline)
        return [(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in tensors]

    def taken(self) -> None:
        state, self._taken, self._steps = self._taken, None, 0
        for what, ours in (("modules", self.modules), ("optimizers", self.optimizers), ("carried", self.carried)):
            if len(state[what]) != len(ours):
                raise UsageError(f"this worker has {len(ours)} {what} and the others {len(state[what])}")
        # A checkpoint of an earlier version does not say them.
        for mine, theirs in zip_longest(self._shapes(), state.get("trainable", self._shapes())):
            if mine != theirs:
                raise UsageError(
                    f"the model differs between workers: this one has {_said(mine)} where the others have {_said(theirs)}: build the same "
                    "model in all of them, with the same parameters frozen"
                )
        for module, values in zip(self.modules, state["modules"]):
            module.module.load_state_dict(values)
        for optimizer, values in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(values)
        self._gathered = state["gathered"]
        self._late = {"rates": [group["lr"] for group in self._groups()], "carried": state["carried"]}


def _said(shape: Optional[List[Any]]) -> str:
    """A parameter and its shape; without one, the end of the list."""
    return "no further parameter" if shape is None else f"{shape[0]} of {shape[1]}"


def _of(job: Job) -> _TorchModel:
    if not isinstance(job.model, _TorchModel):
        job.model = _TorchModel(job)
    return job.model


class DDP(torch.nn.Module):  # type: ignore[misc]
    """A model of which every worker has a replica.

    After ``loss.backward()``, ``parameter.grad`` is the gradient of the mean loss over the samples of all workers' batches, whatever
    their sizes: the loss must be the mean over the batch. All workers begin with the model of the first one.

    Gradients are added up as ``float32``, whatever the type of the parameters.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        job = current()
        self._model: Optional[_TorchModel] = None if job is None else _of(job)
        if self._model is not None:
            self._model.add_module(self)
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(functools.partial(self._gradient, parameter))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside are of parts of a batch, whose gradients stay here: the next one outside is of its last part, and adds the
        sum up over all workers. The loss of a part is its mean times its share of the batch: ``loss * len(part) / len(batch)``.
        """
        model = self._model
        if model is None:
            yield
            return
        before, model.is_partial = model.is_partial, True
        try:
            yield
        finally:
            model.is_partial = before

    def _gradient(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        model = self._model
        if model is not None and not model.is_queued:
            model.backward_begins(parameter)
            if model.is_partial:
                return gradient
            model.is_queued = True
            Variable._execution_engine.queue_callback(model.backward_ends)
        return gradient


def wrap(optimizer: torch.optim.Optimizer, accumulate: int = 1) -> torch.optim.Optimizer:
    """Has ``optimizer.step()`` take the steps that all workers take: at the rate that the plan in force says, and none for a batch whose
    group broke, which comes again. Returns the same optimizer.

    With ``accumulate``, so many batches make a step, with the gradient of the mean loss over all their samples; ``step()`` and
    ``zero_grad()`` are called for each batch all the same. A step that the end of the data leaves incomplete is taken there.
    """
    if accumulate < 1:
        raise UsageError(f"accumulate = {accumulate}: must be at least 1")
    job = current()
    if job is None:
        return optimizer if accumulate == 1 else _accumulating(optimizer, accumulate)
    model = _of(job)
    step = optimizer.step
    model.add_optimizer(optimizer, step, accumulate)

    # A scheduler leaves a mark on the method, by which it knows that the optimizer calls what it put in its place.
    @functools.wraps(step)
    def stepped(_: Any, *args: Any, **kwargs: Any) -> Any:
        return model.step(optimizer, step, *args, **kwargs)

    # A method of the instance, so that it is still one of torch's optimizers to a scheduler or a GradScaler.
    optimizer.step = types.MethodType(stepped, optimizer)
    return optimizer


def _accumulating(optimizer: Any, accumulate: int) -> Any:
    """The same in a program that trains alone, whose batches have one size."""
    step, zero_grad, batches = optimizer.step, optimizer.zero_grad, 0

    def stepped(_: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches % accumulate:
            return None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= accumulate
        return step(*args, **kwargs)

    def zeroed(_: Any, *args: Any, **kwargs: Any) -> None:
        if batches % accumulate == 0:
            zero_grad(*args, **kwargs)

    optimizer.step = types.MethodType(stepped, optimizer)
    optimizer.zero_grad = types.MethodType(zeroed, optimizer)
    return optimizer


def carry(*objects: Any) -> None:
    """Has further state go with the model to a worker that joins: of schedulers, a GradScaler, anything with ``state_dict()`` and
    ``load_state_dict()``. Call it before the training loop.
    """
    job = current()
    if job is not None:
        model = _of(job)
        for carried in objects:
            model.add_carried(carried)
