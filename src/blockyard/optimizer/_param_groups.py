"""Parameter groups: which parameters weight decay applies to, which are Muon's, and the learning rate of each layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Embedder, NoWeightDecay, Position, iter_blocks
from blockyard.model._layer_numbers import layer_numbers
from blockyard.model._prefix import PrefixTokens

# These modules own tables (of token ids, of positions) and learned tokens. They are looked up or added, never
# multiplied by, so pulling them to zero would not limit the norm of a linear map.
_TABLES = (nn.Embedding, Embedder, Position, PrefixTokens)


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters with weight decay, and those without.

    Decay applies to parameters of two or more dimensions, except those owned by the model itself or by a module that
    keeps tables, and those that their module lists in `no_weight_decay`. A parameter with several owners (a tied
    head) decays only if this holds for all of them.
    """
    owners = list(_owners(model))
    exempt = {id(p) for owner, name, p in owners if p.ndim < 2 or owner is model or _is_exempt(owner, name)}
    unique = {id(p): p for _, _, p in owners if p.requires_grad}
    decay = [p for key, p in unique.items() if key not in exempt]
    no_decay = [p for key, p in unique.items() if key in exempt]
    return decay, no_decay


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices inside the blocks that are linear maps."""
    inside = {id(p) for block in iter_blocks(model) for p in block.parameters()}
    decay, _ = split_by_decay(model)
    return [p for p in decay if id(p) in inside and p.ndim == 2]


def decay_groups(
    decay: list[nn.Parameter],
    no_decay: list[nn.Parameter],
    weight_decay: float,
    rates: Rates | None = None,
) -> list[dict[str, Any]]:
    """The non-empty parameter groups of a torch optimizer, those of the highest rate first.

    rates: of `layer_rates`; None leaves one rate for all
    """
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return groups if rates is None else by_rate(groups, rates)


Rates = dict[int, float]  # the learning rate of a parameter, by its `id`


def layer_rates(model: nn.Module, lr: float, layer_decay: float) -> Rates | None:
    """Learning rates that fall by the factor `layer_decay` with each layer from the output to the input.

    The head and the final norm have `lr`, the last block lr * layer_decay, and what stands before the first of n blocks
    lr * layer_decay^(n + 1), as in BEiT. None for a factor of 1.
    """
    if layer_decay == 1:
        return None
    numbers, parameters = layer_numbers(model), dict(model.named_parameters())
    last = sum(1 for _ in iter_blocks(model)) + 1
    return {id(parameters[name]): lr * layer_decay ** (last - number) for name, number in numbers.items()}


def by_rate(groups: list[dict[str, Any]], rates: Rates) -> list[dict[str, Any]]:
    """Parameter groups split by learning rate, the highest first; the order within a rate stays."""
    split = [
        {**group, "params": [p for p in group["params"] if rates[id(p)] == rate], "lr": rate}
        for rate in sorted({rates[id(p)] for group in groups for p in group["params"]}, reverse=True)
        for group in groups
    ]
    return [group for group in split if group["params"]]


def fused_available(parameters: list[nn.Parameter]) -> bool:
    """Whether torch has a fused kernel for these parameters' device and dtype."""
    devices = {p.device.type for p in parameters}
    return devices in ({"cpu"}, {"cuda"}) and all(torch.is_floating_point(p) for p in parameters)


def _is_exempt(owner: nn.Module, name: str) -> bool:
    return isinstance(owner, _TABLES) or (isinstance(owner, NoWeightDecay) and name in owner.no_weight_decay)


def _owners(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter
