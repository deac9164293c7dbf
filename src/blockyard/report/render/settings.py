"""The settings in which a few runs differ, side by side."""

from __future__ import annotations

from typing import Any

from blockyard.report.changes import FEW_ARMS
from blockyard.report.load.arm_names import format_value

MAX_SETTINGS = 30
_WIDTH = 40  # characters of a value


def settings(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a choice or option that differs, with a column for each arm.

    No rows for a sweep, whose arms say what they change, nor for many arms. data: `Comparison.as_dict()`.
    """
    arms = data["arms"]
    header = ["setting", *(arm["name"] for arm in arms)]
    if data["question"] is not None or not 2 <= len(arms) <= FEW_ARMS:
        return header, []
    changed = {arm["name"]: arm["changes"]["config"] for arm in arms}
    keys = list(dict.fromkeys(key for config in changed.values() for key in config))
    rows = []
    for key in keys[:MAX_SETTINGS]:
        of_baseline = next(config[key][0] for config in changed.values() if key in config)
        values = [changed[arm["name"]].get(key, (None, of_baseline))[1] for arm in arms]
        rows.append([key, *map(_text, values)])
    if len(keys) > MAX_SETTINGS:
        rows.append([f"and {len(keys) - MAX_SETTINGS} more, see --html", *("" for _ in arms)])
    return header, rows


def _text(value: Any) -> str:
    text = "" if value is None else format_value(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
