"""Reads the arms of a sweep file, and checks them against its other keys."""

from __future__ import annotations

from typing import Any

from blockyard.sweep.plan.sweep_plan import Arm
from blockyard.sweep.spec.arms import KINDS, expand_arms
from blockyard.sweep.spec.override_text import key_of


def read_arms(content: dict[str, Any], problems: list[str]) -> tuple[str, list[Arm]]:
    """Return which key defines the arms, and the arms; append what is wrong with them to `problems`."""
    kinds = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        which = f"this file has {' and '.join(kinds)}" if kinds else "this file has none"
        problems.append(f"arms: exactly one of {', '.join(KINDS)} must define the arms; {which}")
    arms = [expand_arms(kind, content[kind], problems) for kind in kinds]
    return (kinds[0], arms[0]) if kinds else ("arms", [])


def check_owners(arms: list[Arm], keys: list[str], content: dict[str, Any], problems: list[str]) -> None:
    """Append a problem for each arm that sets a key which is tuned, searched or matched."""
    which = "search" if content.get("search") is not None else "tune"
    owners = dict.fromkeys(keys, f"{which}: every arm tries the same settings")
    if content.get("match"):
        owners["model.dim"] = "match: it solves for the width"
        if "model.dim" in keys:
            problems.append(f"match: it solves for the width, so {which} cannot contain model.dim")
    for key, reason in owners.items():
        setting = [arm.name for arm in arms if key in map(key_of, arm.overrides)]
        if setting:
            more = f" and {len(setting) - 3} more" if len(setting) > 3 else ""
            problems.append(f"{reason}, so no arm may set {key}; remove it from {', '.join(setting[:3])}{more}")
