"""Reads run.json and summary.json of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.errors import UserError


def read_facts(path: Path) -> dict[str, Any]:
    """The content of a run.json; empty if it is missing or damaged."""
    try:
        facts = read_json(path)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a summary.json; empty if there is none. Raises UserError if it is damaged."""
    try:
        summary = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or remove it") from error
    if not isinstance(summary, dict):
        raise UserError(f"{path} is damaged (expected a mapping); restore it, or remove it")
    metrics = summary.get("metrics")
    if isinstance(metrics, dict):  # JSON has no NaN
        summary["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
    return summary
