"""What a config's model weighs, on the meta device: parameters, and FLOPs of a forward pass.

Source: FLOPs as `engine.cost_card` counts them, two per multiply-add of every matmul, convolution and attention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from blockyard.config.build import CONTRACTS, Components
from blockyard.ops.flops import counter

# What a model is made of; the optimizer and its schedule have no say.
OF_MODEL = tuple(family for family in CONTRACTS if family not in ("optimizer", "schedule"))


@dataclass
class ModelSizes:
    """Weighs configs and remembers what it weighed.

    failed: (config's model, what) -> why it could not be weighed
    """

    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    _weights: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def weigh(self, config: dict[str, Any], what: str) -> int | None:
        """`params`: the numbers that are learned; `flops`: of one forward pass of a full sample.

        A vocabulary that is learned from the data counts as large as it may become. None where the model
        cannot be built, or needs real tensors to run; `why` then says what went wrong.
        """
        key = model_key(config), what
        if key not in self._weights:
            try:
                self._weights[key] = {"params": _parameters, "flops": _flops}[what](Components(config))
            except Exception as error:  # a width that does not divide; one's own component may fail in any way
                self._weights[key], self.failed[key] = None, describe_error(error)
        return self._weights[key]

    def why(self, config: dict[str, Any], what: str) -> str | None:
        """Why a config could not be weighed, or None."""
        return self.failed.get((model_key(config), what))


def describe_error(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}".removesuffix(": ")


def model_key(config: dict[str, Any]) -> str:
    """Equal for configs whose models are built alike."""
    return json.dumps([config.get("allow"), *(config.get(family) for family in OF_MODEL)], sort_keys=True)


def _parameters(plan: Components) -> int:
    return sum(p.numel() for p in plan.meta_model().parameters() if p.requires_grad)


def _flops(plan: Components) -> int:
    model, ctx = plan.meta_model(), plan.context()
    with torch.device("meta"):
        if ctx.tokens.vocabulary:
            inputs = torch.zeros(1, ctx.tokens.max_len, dtype=torch.long)
        else:
            inputs = torch.zeros(1, *ctx.data.shape)
    with torch.no_grad(), counter() as counted:
        model.eval()(inputs)
    return int(counted.get_total_flops())
