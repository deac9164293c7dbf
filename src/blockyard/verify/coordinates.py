"""The coordinate check: how the sizes of activations depend on the width of a model, before and after a few steps.

Source: Yang et al. 2022, Tensor Programs V (arXiv 2203.03466), appendix D.1 and figure 5; Yang and Hu 2021, Feature
    Learning in Infinite-Width Neural Networks (arXiv 2011.14522)
Reference: mup.coord_check.get_coord_data

Under a right parametrization the root mean square of the output of each part, and of its change by training, does not
depend on the width. Under a wrong exponent it grows or shrinks as a power of the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Block, ChannelMixer, TokenMixer

PARTS = (Block, TokenMixer, ChannelMixer)
# Exponents that pass as flat, as few widths measure them with noise. A factor that is forgotten gives 0.5 or more.
GROWTH = 0.3
SHRINKING = 0.4


class Trainee(NamedTuple):
    """A model with its optimizer.

    loss: computes the loss of one batch, the same batch each time
    outputs: the number of the predictions that it reads; None for all
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module], Tensor]
    outputs: int | None = None


class Sizes(NamedTuple):
    """Root mean squares of the output of a part: before training, of the change by training, and after training."""

    start: float
    change: float
    end: float


def coordinates(trainee: Trainee, updates: int) -> dict[str, Sizes]:
    """Train for some steps, and return the sizes of the output of each part on the batch, by the part's name.

    The output of a block is measured without its input, unless they differ in shape. A part that runs more than once
    has an entry for each run. "prediction" is the output of the model. A linear map has an entry more, by the name of
    its weight: the outputs that the change of this weight alone adds.
    """
    first = {name: p.detach().clone() for name, p in trainee.model.named_parameters()}
    before = _outputs(trainee)
    for _ in range(updates):
        trainee.optimizer.zero_grad()
        trainee.loss(trainee.model).backward()
        trainee.optimizer.step()
    moved: dict[str, float] = {}
    with _moved(trainee.model, first, moved):
        after = _outputs(trainee)
    sizes = {}
    for name, start in before.items():
        end = after[name]
        sizes[name] = Sizes(_rms(start), _rms(end - start), _rms(end))
    for name, change in moved.items():
        sizes[name] = Sizes(0.0, change, 0.0)
    return sizes


def exponents(sizes: dict[int, list[dict[str, Sizes]]]) -> dict[str, Sizes]:
    """Return the exponent of the width in each size: the slope of log(size) over log(width).

    sizes: by width, one entry for each seed; the slope is fitted to the mean of the logarithms over seeds. A size that
        is zero at any width has the exponent 0
    """
    widths = sorted(sizes)
    result = {}
    for name in sizes[widths[0]][0]:
        slopes = []
        for kind in range(len(Sizes._fields)):
            values = []
            for width in widths:
                values.append([of_seed[name][kind] for of_seed in sizes[width]])
            slopes.append(_slope(widths, values))
        result[name] = Sizes(*slopes)
    return result


def growth(
    make: Callable[[int, int], Trainee], widths: Sequence[int], seeds: Sequence[int], updates: int = 10
) -> dict[str, Sizes]:
    """Return the exponents of the sizes of each part, for the models that `make(width, seed)` builds."""
    sizes = {}
    for width in widths:
        sizes[width] = [coordinates(make(width, seed), updates) for seed in seeds]
    return exponents(sizes)


def fading(model: nn.Module) -> dict[str, str]:
    """Return the reason of each part that may be smaller in wider models, by its name."""
    reasons = {path: getattr(part, "fades", None) for path, part in model.named_modules()}
    return {path: reason for path, reason in reasons.items() if reason}


def problems(slopes: dict[str, Sizes], fades: Mapping[str, str], shrinking: float = SHRINKING) -> list[str]:
    """Return a text for each size that grows with the width, and each change by training that grows or shrinks.

    Sizes themselves may shrink: predictions of a wide model are small before the first steps.

    fades: the parts with changes that may shrink; so may the modules inside them, and the blocks that they are in
    """
    faults = []
    for name, slope in slopes.items():
        part = name.split("#")[0]
        fading = any(f"{part}.".startswith(f"{path}.") or path.startswith(f"{part}.") for path in fades)
        if slope.change > GROWTH or (slope.change < -shrinking and not fading):
            faults.append(f"the change of {name} by training is as width^{slope.change:.2f}")
        size = max(slope.start, slope.end)
        if size > GROWTH:
            faults.append(f"the size of {name} is as width^{size:.2f}")
    return faults


def _outputs(trainee: Trainee) -> dict[str, Tensor]:
    """Return the output of each part in a forward pass, in float64."""
    outputs: dict[str, Tensor] = {}
    with torch.no_grad(), _kept(trainee.model, outputs):
        trainee.loss(trainee.model)
    if "prediction" in outputs:
        outputs["prediction"] = outputs["prediction"][..., : trainee.outputs]
    return outputs


@contextmanager
def _kept(model: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    """Put the outputs of the parts of a model, and of the model itself, into `outputs` while the context is open."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor):
                return
            # The residual stream passes through a block; its size would hide the size of the added branches.
            if isinstance(module, Block) and inputs and inputs[0].shape == output.shape:
                output = output - inputs[0]
            run = sum(key.split("#")[0] == name for key in outputs)
            key = name if run == 0 else f"{name}#{run}"
            outputs[key] = output.detach().double().clone()

        return hook

    experts = _experts(model)
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, PARTS) and not path.startswith(experts):
            handles.append(module.register_forward_hook(keep(path)))
    handles.append(model.register_forward_hook(keep("prediction")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _moved(model: nn.Module, first: Mapping[str, Tensor], moved: dict[str, float]) -> Iterator[None]:
    """Put the size of the outputs that the change of each linear map since `first` adds into `moved`.

    It happens in each forward pass while the context is open.
    """

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001 - torch passes it
            change = module.weight.detach() - first[name]
            moved[name] = _rms(F.linear(inputs[0] * getattr(module, "factor", 1.0), change).double())

        return hook

    experts = _experts(model)
    handles = []
    for path, module in model.named_modules():
        # The weight of a map may be missing in `first`: a shared one has the name of its first owner.
        if isinstance(module, nn.Linear) and not path.startswith(experts) and f"{path}.weight" in first:
            handles.append(module.register_forward_hook(keep(f"{path}.weight")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _experts(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of channel mixers inside others.

    Each gets few tokens, and other tokens after each step, so that its outputs before and after cannot be compared.
    """
    mixers = [path for path, module in model.named_modules() if isinstance(module, ChannelMixer)]
    inner = []
    for path in mixers:
        if any(path.startswith(f"{outer}.") for outer in mixers):
            inner.append(path)
    return tuple(inner)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _slope(widths: Sequence[int], values: Sequence[Sequence[float]]) -> float:
    """Return the least-squares slope of log2(value) over log2(width), with the mean over seeds at each width."""
    if any(min(of_width) < 1e-12 for of_width in values):  # a zero has no logarithm
        return 0.0
    x = [math.log2(width) for width in widths]
    y = [sum(map(math.log2, of_width)) / len(of_width) for of_width in values]
    mean_x = sum(x) / len(x)
    mean_y = sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    variance = sum((a - mean_x) ** 2 for a in x)
    return covariance / variance
