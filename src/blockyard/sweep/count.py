"""What a config's model weighs, on the meta device: parameters, and FLOPs of a forward pass.

Source: FLOPs as `engine.cost` counts them, two per multiply-add of every matmul, convolution and attention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from blockyard.assemble import CONTRACTS, Plan
from blockyard.engine.cost import counter

# What a model is made of; the optimizer and its schedule have no say.
OF_MODEL = tuple(family for family in CONTRACTS if family not in ("optimizer", "schedule"))


@dataclass
class Scales:
    """Weighs configs and remembers what it weighed."""

    _weights: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def weigh(self, config: dict[str, Any], what: str) -> int | None:
        """`params`: the numbers that are learned; `flops`: of one forward pass of a full sample.

        A vocabulary that is learned from the data counts as large as it may become. None where the model
        cannot be built, or needs real tensors to run.
        """
        key = model_key(config), what
        if key not in self._weights:
            try:
                self._weights[key] = {"params": _parameters, "flops": _flops}[what](Plan(config))
            except Exception:  # a width that does not divide; a component of the user's own may fail in any way
                self._weights[key] = None
        return self._weights[key]


def model_key(config: dict[str, Any]) -> str:
    """Equal for configs whose models are built alike."""
    return json.dumps([config.get("allow"), *(config.get(family) for family in OF_MODEL)], sort_keys=True)


def _parameters(plan: Plan) -> int:
    return sum(p.numel() for p in plan.sketch().parameters() if p.requires_grad)


def _flops(plan: Plan) -> int:
    model, ctx = plan.sketch(), plan.context()
    with torch.device("meta"):
        if ctx.tokens.vocabulary:
            inputs = torch.zeros(1, ctx.tokens.max_len, dtype=torch.long)
        else:
            inputs = torch.zeros(1, *ctx.data.shape)
    with torch.no_grad(), counter() as counted:
        model.eval()(inputs)
    return int(counted.get_total_flops())
