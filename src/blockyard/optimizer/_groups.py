"""Which parameters are matrices that decay, as the module that owns them says, whatever their number of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Embedder, NoWeightDecay, Position, iter_blocks
from blockyard.model._prefix import PrefixTokens

# What these modules own directly are tables (of symbols, of places) and learned tokens: looked up
# or added, never multiplied by, so pulling them to zero does not limit a map's size.
_TABLES = (nn.Embedding, Embedder, Position, PrefixTokens)


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters that decay, and those that do not.

    A parameter decays if it has two dimensions or more, and neither the model itself nor a module
    that keeps tables owns it, nor one that names it in `no_weight_decay`. A parameter with several owners
    (a tied head) decays only if all of its owners say so. Biases, gains and scales never decay: they have
    one dimension, or their module says so.
    """
    owners = list(_owners(model))
    kept = {id(p) for owner, name, p in owners if p.ndim < 2 or owner is model or _is_kept(owner, name)}
    unique = {id(p): p for _, _, p in owners if p.requires_grad}
    decay = [p for key, p in unique.items() if key not in kept]
    plain = [p for key, p in unique.items() if key in kept]
    return decay, plain


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices inside the blocks that are maps from vectors to vectors."""
    inside = {id(p) for block in iter_blocks(model) for p in block.parameters()}
    decay, _ = split_by_decay(model)
    return [p for p in decay if id(p) in inside and p.ndim == 2]


def decay_groups(decay: list[nn.Parameter], plain: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of a torch optimizer; empty ones are left out."""
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def fused_available(parameters: list[nn.Parameter]) -> bool:
    """Whether torch has a fused kernel for these parameters' device and dtype."""
    kinds = {p.device.type for p in parameters}
    return kinds in ({"cpu"}, {"cuda"}) and all(torch.is_floating_point(p) for p in parameters)


def _is_kept(owner: nn.Module, name: str) -> bool:
    return isinstance(owner, _TABLES) or (isinstance(owner, NoWeightDecay) and name in owner.no_weight_decay)


def _owners(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter
