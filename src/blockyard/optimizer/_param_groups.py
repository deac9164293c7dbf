"""Parameter groups: which parameters weight decay applies to, and which are Muon's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Embedder, NoWeightDecay, Position, iter_blocks
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


def decay_groups(decay: list[nn.Parameter], no_decay: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """The non-empty parameter groups of a torch optimizer."""
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


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
