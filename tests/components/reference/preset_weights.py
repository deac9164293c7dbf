"""Weights of libraries' models under our names, for the comparisons of presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

TEXT = ["data=code", "data.context=6", "tokenizer=byte"]
SINGLE = {"rtol": 1e-4, "atol": 1e-5}  # transformers computes norms and angles of these models in float32
IMAGE = ["data=digits", "tokenizer=patch", "tokenizer.size=2"]


def token_ids(model: nn.Module) -> Tensor:
    """Token ids (3, 6)."""
    return torch.randint(model.ctx.tokens.vocabulary, (3, 6), generator=torch.Generator().manual_seed(0))


def renamed(theirs: Mapping[str, Tensor], names: Mapping[str, str], layers: str) -> dict[str, Tensor]:
    """Their weights under our names: `names` maps modules, `layers` is a pattern with one group, the layer."""
    weights = {}
    for name, value in theirs.items():
        module, _, kind = name.rpartition(".")
        inside = re.fullmatch(rf"{layers}\.(.+)", module)
        to = names.get(inside[2] if inside else module)
        if to is not None:
            weights[f"blocks.{inside[1]}.{to}.{kind}" if inside else f"{to}.{kind}"] = value
    return weights


def concatenate(weights: dict[str, Tensor], to: str, parts: tuple[str, ...]) -> None:
    """Stacks matrices (and biases) that we store as one, in place."""
    for name in [name for name in weights if f".{parts[0]}." in name]:
        matrices = [weights.pop(name.replace(parts[0], part)) for part in parts]
        weights[name.replace(parts[0], to)] = torch.cat(matrices)


def differ(model: nn.Module, call: Callable[[], Tensor], expected: Tensor) -> None:
    """Asserts that the comparison depends on the weights."""
    with torch.no_grad():
        model.blocks[1].token_norm.weight[::2] += 0.5
    with pytest.raises(AssertionError):
        assert_close(call(), expected)
