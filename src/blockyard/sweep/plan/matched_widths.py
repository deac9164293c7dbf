"""Solves the width of each arm so that all arms have the baseline's parameters, FLOPs, active parameters or state.

The state is the cache of a decoder, in bytes after a full sequence of the arm's data.

The width is `model.dim`. It must be a multiple of the heads and of whatever else the arm's components
need: a width that the model refuses is skipped. Widths are integers, so sizes agree only approximately;
the remaining mismatch is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from blockyard.config.compose import Composed
from blockyard.config.size_matching import BUDGETS as QUANTITIES
from blockyard.config.size_matching import ModelSizes, axis, nearest

_LARGE = 0.05  # of the target: a larger mismatch is pointed out


class MatchedWidth(TypedDict):
    """The width of one arm, its size, and by which part of the target the size is off."""

    dim: int
    value: int
    off: float


class MatchedSizes(TypedDict, total=False):
    """The size that the arms share: by which quantity, the baseline's, and each arm's width. Empty where none is."""

    by: str
    target: int
    arms: dict[str, MatchedWidth]


def solve_widths(
    quantity: str,
    baseline: str,
    overrides: dict[str, list[str]],
    compose: Callable[[Sequence[str]], Composed],
    sizes: ModelSizes,
) -> tuple[dict[str, int], MatchedSizes]:
    """Widths by arm, and their record.

    quantity: "params", "flops", "active" or "state"; overrides: by arm. An arm whose model cannot be
    built is left out: checking it gives the reason.
    """
    composed = {name: compose(line) for name, line in overrides.items()}
    arms = {name: each.config for name, each in composed.items() if not each.issues}
    arms = {name: config for name, config in arms.items() if isinstance(config["model"].get("dim"), int)}
    target = sizes.measure(arms[baseline], quantity) if baseline in arms else None
    if target is None:
        return {}, {}
    widths: dict[str, int] = {}
    record: MatchedSizes = {"by": quantity, "target": target, "arms": {}}
    for name, config in arms.items():
        along = axis(config)
        if along is None:
            continue
        if name == baseline:
            width, value = config["model"]["dim"], target
        elif solved := nearest(config, quantity, target, sizes, along):
            width, value = int(along.value(solved[0])), solved[1]
        else:
            continue
        widths[name] = width
        record["arms"][name] = {"dim": width, "value": value, "off": value / target - 1}
    return widths, record


def width_notes(record: MatchedSizes) -> list[str]:
    """The note about matched sizes, with the arms whose mismatch is large."""
    if not record:
        return []
    arms = record["arms"]
    matched = f"model.dim of each arm is solved to match {record['target']:,} {QUANTITIES[record['by']]}"
    large = {name: arm["off"] for name, arm in arms.items() if abs(arm["off"]) > _LARGE}
    if large:
        listed = ", ".join(f"{name} {off:+.1%}" for name, off in large.items())
        return [f"{matched}; widths are integers, so some sizes differ much: {listed}"]
    worst = max(arms, key=lambda name: abs(arms[name]["off"]))
    return [f"{matched}; the largest mismatch is {arms[worst]['off']:+.1%} ({worst})"]
