"""A function of a run's model and one of its splits, under the settings that the run recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from blockyard.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from blockyard.contracts import Split
    from blockyard.runs.load import Loaded

Result = TypeVar("Result")

log = logging.getLogger("blockyard")

SPLITS = ("test", "validation", "train")
PARTS = {"test": "test", "validation": "val", "train": "train"}  # as they are named in metrics
_LIMIT = {"test": "limit_test", "validation": "limit_val"}


def as_recorded(loaded: Loaded, split: str, function: Callable[[nn.Module, Split, dict[str, Any]], Result]) -> Result:
    """Call `function` with the model, a split and the settings that the run recorded, and return its result.

    The settings are batch_size, device, precision and limit, the largest number of batches or None. The run's number
    of threads is used during the call.

    Raises UserError where the data are missing.
    """
    missing = loaded.data.missing()
    if missing:
        raise UserError(missing)
    # An unfinished run has no summary, but its precision and threads are in run.json.
    facts = loaded.folder.facts()
    summary = {key: facts[key] for key in ("precision", "data") if key in facts} | loaded.folder.summary()
    if "threads" not in summary and isinstance(facts.get("threads"), dict):
        summary["threads"] = facts["threads"].get("threads")
    options = loaded.components.node("trainer")
    threads = _use_threads(summary.get("threads"))
    try:
        loaded.data.prepare()
        splits = loaded.components.load()
        _same_data(loaded.data.fingerprint(), summary)
        device = _device(summary, options.accelerator)
        settings = {
            "batch_size": loaded.data.eval_batch_size,
            "device": device,
            "precision": _precision(summary, options.precision),
            "limit": getattr(options, _LIMIT[split]) if split in _LIMIT else None,
        }
        return function(loaded.model.to(device), getattr(splits, split), settings)
    finally:
        _use_threads(threads)


def _precision(summary: dict[str, Any], configured: str | int) -> str:
    recorded = summary.get("precision")
    if isinstance(recorded, dict) and recorded.get("precision"):
        return str(recorded["precision"])
    return "32" if configured == "auto" else str(configured)


def _device(summary: dict[str, Any], accelerator: str) -> str:
    import torch

    recorded = summary.get("device")
    wants_gpu = recorded != "cpu" if recorded else accelerator != "cpu"
    if wants_gpu and torch.cuda.is_available():
        return "cuda"
    if recorded and recorded != "cpu":
        log.warning("the run was on %s, this is the CPU: values may differ in the last digits", recorded)
    return "cpu"


def _use_threads(threads: int | None) -> int:
    """Set the run's number of threads, on which the order of additions depends; return the number before."""
    import torch

    before = torch.get_num_threads()
    if threads and threads != before:
        torch.set_num_threads(int(threads))
    return before


def _same_data(fingerprint: str, summary: dict[str, Any]) -> None:
    recorded = (summary.get("data") or {}).get("fingerprint")
    if recorded and recorded != fingerprint:
        log.warning("the data differs from what the run was trained on (%s, now %s)", recorded[:12], fingerprint[:12])


def check_split(split: str) -> None:
    """Raises UserError for a split that no data have."""
    if split not in SPLITS:
        raise UserError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
