"""The coordinate check: how the sizes of activations depend on the width of a model, before and after a few updates.

Source: Yang et al. 2022, Tensor Programs V (arXiv 2203.03466), appendix D.1 and figure 5; Yang and Hu 2021, Feature
    Learning in Infinite-Width Neural Networks (arXiv 2011.14522)
Reference: mup.coord_check.get_coord_data

Under a right parametrization the root mean square of what a part of a model gives, and how far training has moved it,
do not depend on the width. Under a wrong exponent they grow or shrink as a power of it.
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
# Of an exponent, which is measured over few widths. A factor that is forgotten gives 0.5 or more.
GROWTH, SHRINKING = 0.3, 0.4


class Trainee(NamedTuple):
    """A model with its optimizer.

    loss: computes that of one batch, the same one each time; outputs: how many of the predictions it reads, None is all
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module], Tensor]
    outputs: int | None = None


class Sizes(NamedTuple):
    """Root mean squares of what a part gives: before training, of its change by training, and after it."""

    start: float
    change: float
    end: float


def coordinates(trainee: Trainee, updates: int) -> dict[str, Sizes]:
    """Train for some updates, and return the sizes of what each part gives on the batch, by the part's name.

    Of a block it is what it adds to its input, or its output where that has another shape. A part that runs more than
    once counts once for each run. "prediction" is what the model returns. A linear map also counts by the name of its
    weight, with what the change of this weight alone adds to its outputs.
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
    sizes = {name: Sizes(_rms(x), _rms(after[name] - x), _rms(after[name])) for name, x in before.items()}
    return sizes | {name: Sizes(0.0, change, 0.0) for name, change in moved.items()}


def exponents(sizes: dict[int, list[dict[str, Sizes]]]) -> dict[str, Sizes]:
    """Return the exponent of the width in each size: its slope over widths, both as logarithms.

    sizes: by width, one entry for each seed, of which the mean of the logarithms counts; a size that is zero at any
        width has the exponent 0
    """
    widths = sorted(sizes)
    result = {}
    for name in sizes[widths[0]][0]:
        slopes = [_slope(widths, [[of[name][kind] for of in sizes[width]] for width in widths]) for kind in range(3)]
        result[name] = Sizes(*slopes)
    return result


def growth(
    make: Callable[[int, int], Trainee], widths: Sequence[int], seeds: Sequence[int], updates: int = 10
) -> dict[str, Sizes]:
    """Return the exponents of the sizes of each part, of models that `make(width, seed)` gives."""
    return exponents({width: [coordinates(make(width, seed), updates) for seed in seeds] for width in widths})


def fading(model: nn.Module) -> dict[str, str]:
    """Return the reason of each part that may be smaller in wider models, by its name."""
    return {path: reason for path, part in model.named_modules() if (reason := getattr(part, "fades", None))}


def problems(slopes: dict[str, Sizes], fades: Mapping[str, str], shrinking: float = SHRINKING) -> list[str]:
    """Return what is not flat: a size or its change by training that grows, and a change that shrinks with the width.

    Sizes alone may shrink: predictions of a wide model are small before the first updates.
    fades: parts that may shrink; with them what is inside them, and blocks that they are in
    """
    faults = []
    for name, each in slopes.items():
        part = name.split("#")[0]
        fading = any(f"{part}.".startswith(f"{path}.") or path.startswith(f"{part}.") for path in fades)
        if each.change > GROWTH or (each.change < -shrinking and not fading):
            faults.append(f"the change of {name} by training is as width^{each.change:.2f}")
        if max(each.start, each.end) > GROWTH:
            faults.append(f"the size of {name} is as width^{max(each.start, each.end):.2f}")
    return faults


def _outputs(trainee: Trainee) -> dict[str, Tensor]:
    """Return what each part gives in a forward pass, in float64."""
    outputs: dict[str, Tensor] = {}
    with torch.no_grad(), _kept(trainee.model, outputs):
        trainee.loss(trainee.model)
    if "prediction" in outputs:
        outputs["prediction"] = outputs["prediction"][..., : trainee.outputs]
    return outputs


@contextmanager
def _kept(model: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    """While inside, what the parts of a model and the model itself give is put into `outputs`."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                added = isinstance(module, Block) and inputs and inputs[0].shape == output.shape
                value = (output - inputs[0] if added else output).detach().double().clone()
                run = sum(key.split("#")[0] == name for key in outputs)
                outputs[name if run == 0 else f"{name}#{run}"] = value

        return hook

    experts = _experts(model)
    modules = {path: module for path, module in model.named_modules() if not path.startswith(experts)}
    parts = {path: module for path, module in modules.items() if isinstance(module, PARTS)}
    handles = [module.register_forward_hook(keep(path)) for path, module in parts.items()]
    handles.append(model.register_forward_hook(keep("prediction")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _moved(model: nn.Module, first: Mapping[str, Tensor], moved: dict[str, float]) -> Iterator[None]:
    """While inside, `moved` gets the size of what the change of a linear map since `first` adds to its outputs."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001 - torch passes it
            change = module.weight.detach() - first[name]
            moved[name] = _rms(F.linear(inputs[0] * getattr(module, "factor", 1.0), change).double())

        return hook

    experts = _experts(model)
    modules = {path: module for path, module in model.named_modules() if not path.startswith(experts)}
    linear = {path: module for path, module in modules.items() if isinstance(module, nn.Linear)}
    names = {path: f"{path}.weight" for path in linear if f"{path}.weight" in first}
    handles = [linear[path].register_forward_hook(keep(name)) for path, name in names.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _experts(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of channel mixers inside others, which get a few tokens each, other ones after each update."""
    mixers = [path for path, module in model.named_modules() if isinstance(module, ChannelMixer)]
    return tuple(path for path in mixers if any(path.startswith(f"{outer}.") for outer in mixers))


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _slope(widths: Sequence[int], values: Sequence[Sequence[float]]) -> float:
    """Return the least-squares slope of log2(value) over log2(width), of the mean over seeds."""
    if any(value < 1e-12 for of_width in values for value in of_width):
        return 0.0
    x = [math.log2(width) for width in widths]
    y = [sum(map(math.log2, of_width)) / len(of_width) for of_width in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / sum((a - middle_x) ** 2 for a in x)
