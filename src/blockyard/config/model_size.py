"""The size of a config's model, counted on the meta device: parameters, and FLOPs of a forward pass.

FLOPs are two for each multiply-add of every matmul, convolution and attention, as `ops.flops` counts them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from blockyard.config.build import CONTRACTS, SOURCE_CONTRACTS, Components
from blockyard.contracts import Context
from blockyard.model._example_batch import example, full
from blockyard.ops.flops import counter
from blockyard.ops.meta import without_compiler

# The families that a model is made of; the optimizer and its schedule have no effect on its size.
OF_MODEL = (*(family for family in CONTRACTS if family not in ("optimizer", "schedule")), *SOURCE_CONTRACTS)


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_by_module(model: nn.Module, ctx: Context) -> dict[str, int]:
    """FLOPs of one forward pass of one full sample, by path of the module; "" is the whole model.

    model: on the meta device; a forward pass of a real one works as well
    ctx: the Context that the model was built from, which says what it is called with
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("meta"))
    with without_compiler(), torch.no_grad(), counter() as counted:
        model.eval()(example(full(ctx), device))
    root = type(model).__name__
    by_path = {path: sum(ops.values()) for path, ops in counted.get_flop_counts().items()}
    inside = {path.removeprefix(f"{root}."): n for path, n in by_path.items() if path.startswith(f"{root}.")}
    return {"": int(counted.get_total_flops()), **inside}


@dataclass
class ModelSizes:
    """Measures configs and caches the results.

    failed: (model of the config, what) -> why it could not be measured
    """

    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    _sizes: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def measure(self, config: dict[str, Any], what: str) -> int | None:
        """`params`: the trainable parameters; `flops`: those of one forward pass of a full sample.

        A vocabulary that is learned from the data counts as large as it may become. None where the model cannot be
        built or needs real tensors to run; `failure` then says what went wrong.
        """
        key = model_key(config), what
        if key not in self._sizes:
            try:
                self._sizes[key] = {"params": _parameters, "flops": _flops}[what](Components(config))
            except Exception as error:  # a width that does not divide; a user's own component may fail in any way
                self._sizes[key], self.failed[key] = None, describe_error(error)
        return self._sizes[key]

    def failure(self, config: dict[str, Any], what: str) -> str | None:
        """Why a config could not be measured, or None."""
        return self.failed.get((model_key(config), what))


def describe_error(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}".removesuffix(": ")


def model_key(config: dict[str, Any]) -> str:
    """Equal for configs whose models are built alike."""
    return json.dumps([config.get("allow"), *(config.get(family) for family in OF_MODEL)], sort_keys=True)


def _parameters(components: Components) -> int:
    return count_parameters(components.meta_model())


def _flops(components: Components) -> int:
    return flops_by_module(components.meta_model(), components.context())[""]
