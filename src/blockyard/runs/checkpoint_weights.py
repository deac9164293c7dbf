"""The weights in a checkpoint's content: those of the model, or an average that a callback kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.runs.checkpoint import BadCheckpointError
from blockyard.runs.checkpoint_content import check_weights

if TYPE_CHECKING:
    from torch import nn


PREFIX = "model."
LOOP = "LoopCallback"  # whose state in a checkpoint holds those of the run's callbacks


def average_in(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The weights that callbacks.NAME averaged, as a checkpoint names weights. Raises UserError where it has none."""
    states = (content.get("callbacks") or {}).get(LOOP) or {}
    watchers = states.get("watchers") if isinstance(states, dict) else None
    averages = {
        str(key): state["average"]
        for key, state in (watchers if isinstance(watchers, dict) else {}).items()
        if isinstance(state, dict) and isinstance(state.get("average"), dict)
    }
    if name not in averages:
        kept = f"it has {', '.join(averages)}" if averages else "it has none; callbacks=ema keeps one in a new run"
        raise UserError(f"{path} has no average {name!r} of the weights: {kept}")
    return {f"{PREFIX}{key}": tensor for key, tensor in averages[name].items()}


def load_weights(model: nn.Module, content: Mapping[str, Any], path: Path) -> None:
    """Load the weights in a checkpoint's content. Raises BadCheckpointError where they do not fit or are not finite."""
    saved = content["state_dict"]
    if not isinstance(saved, dict):
        raise BadCheckpointError(path, "its weights are not tensors by name")
    weights = {str(k).removeprefix(PREFIX): v for k, v in saved.items() if str(k).startswith(PREFIX)}
    check_weights(path, weights, model.state_dict(), [name for name, _ in model.named_parameters()])
    model.load_state_dict(weights)
