"""Solving the width of each arm, so that all have the baseline's parameters, or FLOPs.

The width is `model.dim`, a multiple of the heads, and of whatever else the arm's parts need: a width
that the model refuses is passed over. What is left over, because widths are whole, is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockyard.compose import Composed
from blockyard.sweep.count import Scales

WIDEST = 65_536
_GAP = 8  # multiples of the heads that are tried to find one that a model can be built with
_FAR = 0.05  # of the target: a mismatch that is said aloud
WORDS = {"params": "parameters", "flops": "FLOPs per sample"}


def solve(
    what: str,
    baseline: str,
    lines: dict[str, list[str]],
    compose: Callable[[Sequence[str]], Composed],
    scales: Scales,
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
        width = config["model"]["dim"] if name == baseline else _Width(config, what, target, scales).solve()
        if width is None:
            continue
        value = _weight(config, width, what, scales)
        assert value is not None
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


@dataclass
class _Width:
    """The search for one arm's width, in multiples of its heads. What a model weighs grows with its width."""

    config: dict[str, Any]
    what: str
    target: int
    scales: Scales
    known: dict[int, int | None] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return int(self.config["model"].get("heads") or 1)

    def weight(self, multiple: int) -> int | None:
        if multiple not in self.known:
            self.known[multiple] = _weight(self.config, multiple * self.step, self.what, self.scales)
        return self.known[multiple]

    def solve(self) -> int | None:
        """The nearest width; None where no model can be built near the arm's own."""
        own = max(1, round(self.config["model"]["dim"] / self.step))
        low = high = self._built(own, 1, own + _GAP)
        if low is None or high is None:
            return None
        while self._over(low) and (less := self._built(int(low / 1.4), 1, low - 1)):
            low = less
        while not self._over(high) and (more := self._built(int(high * 1.4), high + 1, WIDEST // self.step)):
            high = more
        while high - low > 1:
            middle = (low + high) // 2
            candidate = self._built(middle, low + 1, high - 1)
            if candidate is None:
                break
            low, high = (low, candidate) if self._over(candidate) else (candidate, high)
        tried = {n: abs(weight - self.target) for n, weight in self.known.items() if weight is not None}
        return min(tried, key=lambda n: (tried[n], n)) * self.step

    def _over(self, multiple: int) -> bool:
        weight = self.weight(multiple)
        return weight is not None and weight > self.target

    def _built(self, wanted: int, least: int, most: int) -> int | None:
        """The nearest multiple, within bounds, that a model can be built with; a few are tried."""
        wanted = min(max(wanted, least), most)
        legal = range(max(least, wanted - _GAP), min(most, wanted + _GAP) + 1)
        return next((n for n in sorted(legal, key=lambda n: abs(n - wanted)) if self.weight(n) is not None), None)


def _weight(config: dict[str, Any], width: int, what: str, scales: Scales) -> int | None:
    """What the model weighs at a width; None where it cannot be built so."""
    return scales.weigh(config | {"model": config["model"] | {"dim": width}}, what)
