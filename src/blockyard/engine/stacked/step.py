"""One training step of several learners: their weights stacked, their losses and gradients computed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from blockyard.contracts import Batch
from blockyard.engine.module import Learner
from blockyard.errors import first_line

TOLERANCE = 1e-3  # of a gradient, as a share of the largest one of its weight, in float32
COARSE_TOLERANCE = 0.1  # under autocast, or in another type


class StackedWeights:
    """The weights and buffers of learners of one shape, stacked. The weights of a learner become parts of the stack.

    So an optimizer, an evaluation or a checkpoint of one learner reads and writes its part in place.

    Raises NotStackableError where the learners differ in more than the values of their weights.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        _check_alike(self.learners)
        self._losses = _Losses(self.learners[0])
        parts = [dict(_Losses(learner).named_parameters()) for learner in self.learners]
        self.weights: dict[str, Tensor] = {}
        self._parts: list[tuple[nn.Parameter, Tensor, int]] = []
        for name in parts[0]:
            learner_weights = [weights[name] for weights in parts]
            stack = torch.stack([weight.detach() for weight in learner_weights])
            for weight, part in zip(learner_weights, stack.unbind(), strict=True):
                weight.data = part
                self._parts.append((weight, part, part.data_ptr()))
            self.weights[name] = stack.requires_grad_(learner_weights[0].requires_grad)
        buffers = [dict(_Losses(learner).named_buffers()) for learner in self.learners]
        # Buffers of one value, such as tables of positions, are not stacked: `vmap` computes with them once.
        self._shared: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        for name, first in buffers[0].items():
            values = [learner_buffers[name] for learner_buffers in buffers]
            if all(torch.equal(first, value) for value in values[1:]):
                self._shared[name] = first
            else:
                self._buffers[name] = torch.stack(values)

    def step(self, batches: Sequence[Batch]) -> StackedResult:
        """Return the losses and gradients of each learner on its batch.

        A model must compute nothing from random numbers or from values that Python reads.

        Raises UnlikeBatchesError if the batches differ in shape.
        """
        names, values = _stacked(batches)
        first = batches[0]
        self._take_back()

        def losses(state: dict[str, Tensor], tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
            batch = replace(first, **dict(zip(names, tensors, strict=True)))
            return functional_call(self._losses, state | self._shared, (batch,))

        trained = {name: weight for name, weight in self.weights.items() if weight.requires_grad}
        with refusing():
            with _FoldAttention():
                loss, *auxiliary = vmap(losses)(self.weights | self._buffers, values)
            # No loss reads the weights of another learner: the gradient of the sum holds the gradients of all.
            whole = torch.stack([loss, *auxiliary]).sum()
            computed = torch.autograd.grad(whole, list(trained.values()), allow_unused=True)
        gradients: dict[str, Tensor | None] = dict.fromkeys(trained)
        for name, gradient in zip(trained, computed, strict=True):
            if gradient is not None:
                gradients[name] = gradient.contiguous()  # fused optimizers read them in the layout of the weights
        auxiliary_loss = auxiliary[0].detach() if auxiliary else None
        return StackedResult(loss.detach(), auxiliary_loss, gradients)

    def by_parameter(self) -> dict[int, Tensor]:
        """Return the stacks by the `id` of the first learner's parameters."""
        first = _Losses(self.learners[0])
        return {id(weight): self.weights[name] for name, weight in first.named_parameters()}

    def spread(self, gradients: dict[str, Tensor | None]) -> None:
        """Set the gradient of each parameter of each learner."""
        for number, learner in enumerate(self.learners):
            for name, weight in learner.model.named_parameters():
                stack = gradients.get(f"model.{name}")
                weight.grad = None if stack is None else stack[number]

    def _take_back(self) -> None:
        """Make weights parts of the stack again if they were given other storage meanwhile."""
        for weight, part, address in self._parts:
            if weight.data_ptr() != address:
                with torch.no_grad():
                    part.copy_(weight)
                weight.data = part


def check_first_step(weights: StackedWeights, batches: Sequence[Batch]) -> list[StepResult]:
    """Compute a step together and each learner's step alone, and return the latter, to the bit.

    Raises NotStackableError if they differ by more than rounding, or if a forward pass draws random numbers or writes
    to a buffer: a step together cannot do that for each learner.
    """
    learners = weights.learners
    alone = [_alone(learner, batch) for learner, batch in zip(learners, batches, strict=True)]
    together = weights.step(batches)
    exact = not torch.is_autocast_enabled(together.loss.device.type)
    tolerance = TOLERANCE if exact else COARSE_TOLERANCE
    for number, result in enumerate(alone):
        gap = _gap(result, together.of(number), tolerance)
        if gap is not None:
            raise NotStackableError(f"stacked, {gap}")
    return alone


class NotStackableError(Exception):
    """Learners cannot take steps together; the message says why."""


class UnlikeBatchesError(NotStackableError):
    """The batches of a step have different shapes; the batches of another step may have equal ones."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn an error of an operation that cannot be stacked, or of the memory, into NotStackableError."""
    try:
        yield
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise NotStackableError(f"{type(error).__name__}: {first_line(error)}") from error


class StepResult(NamedTuple):
    """The losses and gradients of one learner in a step.

    gradients: by the name of the weight; None for a weight without a gradient
    """

    loss: Tensor
    auxiliary: Tensor | None
    gradients: dict[str, Tensor | None]


class StackedResult(NamedTuple):
    """The losses and gradients of all learners in a step. Each tensor has one axis more, in front."""

    loss: Tensor
    auxiliary: Tensor | None
    gradients: dict[str, Tensor | None]

    def of(self, number: int) -> StepResult:
        """Return the part of learner number `number`."""
        gradients = {name: None if stack is None else stack[number] for name, stack in self.gradients.items()}
        auxiliary = None if self.auxiliary is None else self.auxiliary[number]
        return StepResult(self.loss[number], auxiliary, gradients)


def _check_alike(learners: Sequence[Learner]) -> None:
    """Raise NotStackableError if a learner cannot be stacked, or differs from the first one in form."""
    for learner in learners:
        if reason := _obstacle(learner):
            raise NotStackableError(reason)
    forms = [_form(learner.model) for learner in learners]
    for form in forms[1:]:
        differing = [name for name in forms[0] | form if forms[0].get(name) != form.get(name)]
        if differing:
            raise NotStackableError(f"the models differ in the shape or kind of {differing[0]}")


def _obstacle(learner: Learner) -> str | None:
    """Return why no step of this learner can be taken together with others, or None."""
    settings = learner.settings
    if learner.teacher is not None:
        return "a teacher is called at each step"
    if learner.after_step:
        return f"{next(iter(learner.after_step))} changes itself after each step"
    if settings.thaw.starts:
        return "parts of the model are trained from a later step on"
    if settings.half:
        return "gradients in float16 are scaled by a factor of each run"
    return None


def _form(model: nn.Module) -> dict[str, Any]:
    """Return the kind of each module and the shape, type and use of each weight and buffer, by name."""
    form: dict[str, Any] = {name or "model": type(module) for name, module in model.named_modules()}
    for name, weight in model.named_parameters():
        form[name] = weight.shape, weight.dtype, weight.device, weight.requires_grad
    return form | {name: (value.shape, value.dtype) for name, value in model.named_buffers()}


def _stacked(batches: Sequence[Batch]) -> tuple[list[str], tuple[Any, ...]]:
    """Return the names of the fields that batches have, and their tensors stacked. Raises UnlikeBatchesError."""
    names = []
    stacks = []
    for field in fields(Batch):
        values = [getattr(batch, field.name) for batch in batches]
        missing = sum(value is None for value in values)
        if missing == len(values):
            continue
        if missing:
            raise UnlikeBatchesError(f"some batches have {field.name} and others none")
        names.append(field.name)
        stacks.append(_stack(field.name, values))
    return names, tuple(stacks)


def _stack(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if any(not isinstance(value, Tensor) or value.shape != first.shape for value in values):
            raise UnlikeBatchesError(f"batches have different shapes in {name}")
        return torch.stack(list(values))
    if isinstance(first, tuple):
        return type(first)(*(_stack(name, part) for part in zip(*values, strict=True)))
    raise NotStackableError(f"{name} of a batch is a {type(first).__name__}")


def _alone(learner: Learner, batch: Batch) -> StepResult:
    device = learner.device
    buffers = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    before = _generators(device)
    with refusing():  # a learner that is broken raises the error again when it takes the step itself
        loss, auxiliary = learner.loss_and_auxiliary(batch)
    drawn = any(not torch.equal(*pair) for pair in zip(before, _generators(device), strict=True))
    written = [name for name, buffer in learner.model.named_buffers() if not torch.equal(buffer, buffers[name])]
    # If either is so, the learner takes the step itself, and must not notice that this one was tried.
    _set_generators(device, before)
    with torch.no_grad():
        for name in written:
            learner.model.get_buffer(name).copy_(buffers[name])
    if drawn:
        raise NotStackableError("the forward pass draws random numbers, such as those of dropout")
    if written:
        raise NotStackableError(f"the forward pass writes to the buffer {written[0]}")
    weights = {f"model.{name}": weight for name, weight in learner.model.named_parameters() if weight.requires_grad}
    whole = loss if auxiliary is None else loss + auxiliary
    computed = torch.autograd.grad(whole, list(weights.values()), allow_unused=True)
    rest = None if auxiliary is None else auxiliary.detach()
    return StepResult(loss.detach(), rest, dict(zip(weights, computed, strict=True)))


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        return [*states, torch.cuda.get_rng_state(device)]
    return states


def _set_generators(device: torch.device, states: list[Tensor]) -> None:
    torch.random.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def _gap(alone: StepResult, together: StepResult, tolerance: float) -> str | None:
    """Return the value of a learner's results that differs by more than rounding, or None."""
    pairs = {"the loss": (alone.loss, together.loss)}
    for name, gradient in alone.gradients.items():
        other = together.gradients[name]
        if gradient is not None and other is not None:
            pairs[f"the gradient of {name}"] = gradient, other
            continue
        # A gradient of zeros may be left out on one side.
        present = other if gradient is None else gradient
        if present is not None and float(present.abs().max()):
            return f"the gradient of {name} is missing"
    for name, (alone_value, together_value) in pairs.items():
        size = float(alone_value.abs().max())
        gap = float((alone_value - together_value).abs().max())
        is_nan = size != size  # the guard against values that are not finite speaks about it
        if not gap <= tolerance * size + 1e-12 and not is_nan:
            share = gap / size if size else gap
            return f"{name} differs by {share:.1e} of its largest entry"
    return None


class _Folded(torch.autograd.Function):
    """`scaled_dot_product_attention` under `vmap`: the axis of the learners becomes part of the batch.

    torch's kernels take one axis of batches, and have no rule for another one.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, settings: dict[str, Any]) -> Tensor:
        """q (B, H, N, K), k (B, H', M, K), v (B, H', M, V) -> (B, H, N, V)."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing: only the operations in `vmap` are differentiated."""

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Any) -> tuple[Tensor, int]:
        *qkv, mask, settings = tensors
        count = info.batch_size
        q, k, v = (_leading(x, axis, count).flatten(0, 1) for x, axis in zip(qkv, dims, strict=False))  # (L B, H, N, K)
        if mask is not None:
            stacked = _leading(mask, dims[3], count)
            heads_first = stacked.reshape(count, *[1] * (5 - stacked.dim()), *stacked.shape[1:])  # (L, B|1, H|1, N, M)
            mask = heads_first.expand(count, len(q) // count, *heads_first.shape[2:]).flatten(0, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **settings)
        return out.unflatten(0, (count, -1)), 0


def _leading(x: Tensor, axis: int | None, count: int) -> Tensor:
    """Return x with the axis of the learners in front; expanded where it has none."""
    if axis is None:
        return x.expand(count, *x.shape)
    return x.movedim(axis, 0)


class _FoldAttention(TorchFunctionMode):
    """Inside this context attention is `_Folded`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            return self._fold(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _fold(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **settings: Any) -> Tensor:
        return _Folded.apply(q, k, v, attn_mask, settings)


class _Losses(nn.Module):
    """Compute the losses of a learner from a batch; a module, because `functional_call` takes one."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.model = learner.model
        self._function = learner.loss_and_auxiliary  # a bound method: no part of this module

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        loss, auxiliary = self._function(batch, defer_logits=False)
        return (loss,) if auxiliary is None else (loss, auxiliary)
