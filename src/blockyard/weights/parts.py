"""Parts of a model by name: the frozen ones of a run, and the steps at which they are trained again.

Source: Howard and Ruder 2018, Universal Language Model Fine-tuning (arXiv 1801.06146), section 3.3, gradual unfreezing

A part is a module of the model by its dotted path: embedder, position, blocks, blocks.0, final_norm, head; `*` in it
stands for any characters (`model/_part_names.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from blockyard.model._layer_numbers import layer_numbers
from blockyard.model._part_names import is_in

HEAD = "head"


def parameters_in(model: nn.Module, parts: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters of the parts, by name. A shared parameter, such as a tied table, has its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if is_in(name, parts)}


@dataclass(frozen=True)
class Thaw:
    """Trains frozen parameters again from a step on.

    starts: parameters, and the first step that trains them
    """

    starts: tuple[tuple[int, tuple[nn.Parameter, ...]], ...] = ()

    def set(self, step: int) -> None:
        """Freeze or train the parameters for step `step` (from 0)."""
        for start, parameters in self.starts:
            for parameter in parameters:
                parameter.requires_grad_(step >= start)


NEVER = Thaw()


def thaw(model: nn.Module, parts: Sequence[str], first: int, every: int | None) -> Thaw:
    """Return the schedule that trains frozen parts again: all at step `first`, or layer by layer.

    every: steps from one layer to the next, from the output to the input; None trains them all together
    """
    frozen = parameters_in(model, parts)
    if every is None:
        return Thaw(((first, tuple(frozen.values())),))
    numbers = layer_numbers(model)
    layers = sorted({numbers[name] for name in frozen}, reverse=True)
    starts = []
    for wait, layer in enumerate(layers):
        parameters = tuple(parameter for name, parameter in frozen.items() if numbers[name] == layer)
        starts.append((first + every * wait, parameters))
    return Thaw(tuple(starts))
