"""LoRA: a trained low-rank addition to the weight of a linear layer, whose own weight is frozen.

Source: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models (arXiv 2106.09685), section 4.1
Reference: peft LoraConfig (r, lora_alpha, target_modules); torch.nn.utils.parametrize
Equation: W + (alpha / rank) B A, with A (rank, in) uniform in +-1/sqrt(in) and B (out, rank) zero at first

The addition is a parametrization of the weight, so that it counts wherever a layer's weight is read, in a fused block
too. It costs a product of B and A at each of these places, and nothing once it is merged. A table that the head shares
with the embedder is frozen like all weights that were taken. It gets no addition, which would untie the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from blockyard.contracts import CountOrZero, Positive, Text
from blockyard.weight_init import Init

ORIGINAL = "parametrizations.weight.original"  # of torch.nn.utils.parametrize
ADDED = "parametrizations.weight.0"


@dataclass(frozen=True)
class Lora:
    """rank: of the addition, 0 for none; alpha: its scale is alpha / rank

    layers: the linear layers with an addition, each by a part of its dotted path: blocks, token_mixer, blocks.0
    """

    rank: CountOrZero = 0
    alpha: Positive = 16.0
    layers: tuple[Text, ...] = ("blocks",)

    # By default pydantic ignores a misspelt key.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


class LowRank(nn.Module):
    """The weight of a linear layer with its addition: weight (out, in) -> (out, in)."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        d_out, d_in = weight.shape
        dtype, device = weight.dtype, weight.device
        self.a = nn.Parameter(torch.empty(rank, d_in, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.empty(d_out, rank, dtype=dtype, device=device))
        # A buffer, so that a checkpoint can be merged alone.
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(alpha / rank, dtype=dtype, device=device))

    def init_weights(self, init: Init) -> None:
        """A is uniform, B is zero: the addition is zero at first."""
        init.uniform("a", 1 / math.sqrt(self.a.shape[1]))
        init.zeros("b")

    def forward(self, weight: Tensor) -> Tensor:
        """weight (out, in) -> (out, in)."""
        return weight + self.scale * (self.b @ self.a)


def linear_layers(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Linear]:
    """Return the linear layers of a model with one of the names in their dotted path."""
    linear = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {path: module for path, module in linear.items() if any(f".{name}." in f".{path}." for name in names)}


def tied_layer(model: nn.Module, names: tuple[str, ...]) -> str | None:
    """Return the first of these layers that shares its weight with another module; None without any."""
    owners = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    layers = linear_layers(model, names).items()
    return next((path for path, layer in layers if owners[id(layer.weight)] > 1), None)


def add_lora(model: nn.Module, lora: Lora, seed: int) -> None:
    """Give the layers that `lora` names their addition; its first values depend on the seed and on the path."""
    for path, layer in linear_layers(model, lora.layers).items():
        addition = LowRank(layer.weight, lora.rank, lora.alpha)
        addition.init_weights(Init(addition, f"{path}.{ADDED}", seed, set(), 0.0))
        parametrize.register_parametrization(layer, "weight", addition, unsafe=True)  # the shape stays


def added_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters of all additions of a model."""
    return (parameter for module in model.modules() if isinstance(module, LowRank) for parameter in module.parameters())


def plain_name(name: str) -> str | None:
    """Return the name of a tensor in a model without additions; None for a tensor of an addition."""
    if f".{ADDED}." in name:
        return None
    return name.replace(f".{ORIGINAL}", ".weight")


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model by name, with each addition merged into its weight."""
    tensors = {}
    for name, tensor in state.items():
        plain = plain_name(name)
        if plain is None:
            continue
        layer = name.removesuffix(f".{ORIGINAL}")
        if layer != name:
            addition = f"{layer}.{ADDED}"
            tensor = tensor + state[f"{addition}.scale"] * (state[f"{addition}.b"] @ state[f"{addition}.a"])
        tensors[plain] = tensor
    return tensors


def merged_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model with its additions merged, for an export."""
    return merged({name: tensor.detach() for name, tensor in model.state_dict().items()})


def merge(model: nn.Module) -> bool:
    """Merge each addition into its weight, in place and for good; return whether there were any."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers = [layer for layer in layers if parametrize.is_parametrized(layer, "weight")]
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return bool(layers)
