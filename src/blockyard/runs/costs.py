"""The costs of a run, read from its summary: sizes, computation, time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.config.tree import is_number

COSTS = {  # name -> the better direction, and the unit
    "parameters": ("min", ""),
    "active_parameters": ("min", "parameters that a token uses"),
    "flops_per_sample": ("min", "FLOPs, forward and backward"),
    "step_seconds": ("min", "s"),
    "samples_per_second": ("max", "1/s"),
    "mfu": ("max", "share of peak"),
    "peak_memory": ("min", "bytes"),
    "cache_bytes_per_token": ("min", "bytes"),
    "decode_tokens_per_second": ("max", "1/s"),
    "seconds": ("min", "s"),
}


def costs(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the costs in a run's summary that are finite numbers."""
    values = {key: summary.get(key) for key in COSTS}
    # Summaries of older runs have a number where newer ones have a mapping.
    parameters, flops, memory = values["parameters"], values["flops_per_sample"], values["peak_memory"]
    values["active_parameters"] = None
    if isinstance(parameters, dict):
        values["parameters"] = parameters.get("trainable")
        values["active_parameters"] = parameters.get("active")
    if isinstance(flops, dict):
        values["flops_per_sample"] = flops.get("training")
    if isinstance(memory, dict):
        values["peak_memory"] = memory.get("bytes")
    finite = {}
    for key, value in values.items():
        if is_number(value):
            finite[key] = float(value)
    return finite
