"""Solving the width of each arm, so that all have the baseline's parameters, or FLOPs.

The width is `model.dim`, a multiple of the heads, and of whatever else the arm's parts need: a width
that the model refuses is passed over. What is left over, because widths are whole, is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockyard.config.compose import Composed
from blockyard.config.model_size import ModelSizes
from blockyard.config.size_matching import BUDGETS as WORDS
from blockyard.config.size_matching import axis, nearest

_FAR = 0.05  # of the target: a mismatch that is said aloud


def solve(
    what: str,
    baseline: str,
    lines: dict[str, list[str]],
    compose: Callable[[Sequence[str]], Composed],
    scales: ModelSizes,
) -> tuple[dict[str, int], dict[str, Any]]:
    """Widths by arm, and the record {by, target, arms: {name: {dim, value, off}}}.

    lines: the words of each arm. One whose model cannot be built is left out: judging it says why.
    """
    arms = {name: composed.config for name, line in lines.items() if not (composed := compose(line)).issues}
    arms = {name: config for name, config in arms.items() if isinstance(config["model"].get("dim"), int)}
    target = scales.weigh(arms[baseline], what) if baseline in arms else None
    if target is None:
        return {}, {}
    found: dict[str, int] = {}
    record: dict[str, Any] = {"by": what, "target": target, "arms": {}}
    for name, config in arms.items():
        along = axis(config)
        if along is None:
            continue
        solved = nearest(config, what, target, scales, along) if name != baseline else None
        if solved is None and name != baseline:
            continue
        width, value = (int(along.value(solved[0])), solved[1]) if solved else (config["model"]["dim"], target)
        found[name] = width
        record["arms"][name] = {"dim": width, "value": value, "off": value / target - 1}
    return found, record


def notes(record: dict[str, Any]) -> list[str]:
    """What is to be told of the match: the widths that are far from it."""
    if not record:
        return []
    arms = record["arms"]
    worst = max(arms, key=lambda name: abs(arms[name]["off"]))
    said = f"arms are matched in {WORDS[record['by']]} to {record['target']:,} by model.dim"
    far = {name: arm["off"] for name, arm in arms.items() if abs(arm["off"]) > _FAR}
    if far:
        listed = ", ".join(f"{name} {off:+.1%}" for name, off in far.items())
        return [f"{said}; widths are whole, so some are far: {listed}"]
    return [f"{said}; the farthest is {worst} with {arms[worst]['off']:+.1%}"]
