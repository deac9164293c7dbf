"""Solving a model's size for a budget: the width, depth or expansion that comes nearest to it.

    blockyard train match.params=1.2e6                 # model.dim is solved for
    blockyard check match.flops=5e7 match.by=depth     # model.depth; by=expansion: that of the channel mixer,
                                                       # or of the token mixer where the other has none

The solved size is what a config holds and a run freezes; what is left over, because sizes are whole, is
recorded. Sweeps solve each arm for the weight of their baseline with the same search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.config.model_size import ModelSizes
    from blockyard.contracts import Issue

KEY = "match"  # of the config; taken out once it is solved
BUDGETS = {"params": "parameters", "flops": "FLOPs per sample"}
KEYS = (*BUDGETS, "by")
# The options of each size; the first that the config has is solved for.
SIZES = {
    "dim": ("model.dim",),
    "depth": ("model.depth",),
    "expansion": ("channel_mixer.expansion", "token_mixer.expansion"),
}
LARGEST = {"dim": 65_536, "depth": 1_024, "expansion": 1_048_576}
FAR = 2.0  # times a budget; a size that misses it by more has not met it
_GAP = 8  # sizes that are tried to find one that a model can be built with


@dataclass(frozen=True)
class Axis:
    """What is solved for: the option at `key`, in whole numbers n that stand for n times `unit`."""

    by: str
    key: str  # dotted
    unit: float
    own: int  # the n nearest to what the config says

    def value(self, n: int) -> int | float:
        """What the option is for n."""
        return round(n * self.unit, 6) if self.by == "expansion" else n * int(self.unit)

    def put(self, config: dict[str, Any], n: int) -> dict[str, Any]:
        """The config with that size."""
        family, _, name = self.key.partition(".")
        return config | {family: config[family] | {name: self.value(n)}}


def axis(config: dict[str, Any], by: str = "dim") -> Axis | None:
    """Widths go in multiples of the heads, expansions in hidden channels, as many as the mixer takes at a time.

    None where the config has no such size.
    """
    from blockyard.config.schema import locate

    dim = config["model"].get("dim")
    for key in SIZES[by] if isinstance(dim, int) else ():
        family, _, name = key.partition(".")
        now = config[family].get(name)
        if isinstance(now, bool) or not isinstance(now, int | float):
            continue
        if by == "expansion":
            unit = getattr(locate(config[family]["_target_"]), "hidden_multiple", 1) / dim
        else:
            unit = int(config["model"].get("heads") or 1) if by == "dim" else 1
        return Axis(by, key, unit, max(1, round(now / unit)))
    return None


def nearest(config: dict[str, Any], what: str, target: int, scales: ModelSizes, along: Axis) -> tuple[int, int] | None:
    """The n along an axis that weighs nearest to the target, and its weight; None where no model can be built."""
    search = _Search(lambda n: scales.weigh(along.put(config, n), what), target, LARGEST[along.by] / along.unit)
    found = search.solve(along.own)
    weight = None if found is None else search.known[found]
    return None if found is None or weight is None else (found, weight)


def solve(config: dict[str, Any], given: Collection[str], issues: list[Issue]) -> dict[str, Any]:
    """Take `match` out of a complete config and put the solved size in; the record of it, {} where none is asked.

    given: the keys of the command line, which must not name the size that is solved for
    Returns {by, over, target, value, off, size, vocabulary}; a problem becomes an issue. A vocabulary that is
    learned from the data is counted as large as it may become.
    """
    asked = config.pop(KEY, None) or {}
    if issues or not asked:
        return {}
    budgets = {what: asked[what] for what in BUDGETS if asked.get(what) is not None}
    by = asked.get("by") or "dim"
    along = axis(config, by) if by in SIZES and isinstance(config.get("model"), dict) else None
    problems = list(_problems(asked, budgets, given, along))
    issues += problems
    if problems or not budgets:
        return {}
    from blockyard.config.build import Components
    from blockyard.config.model_size import ModelSizes
    from blockyard.contracts import Issue

    (what, target), scales = next(iter(budgets.items())), ModelSizes()
    key = f"{KEY}.{what}"
    if along is None:
        there = [f"{KEY}.by={each}" for each in SIZES if axis(config, each) is not None]
        issues.append(Issue(key, f"there is no {' or '.join(SIZES[by])} to solve for here", there))
        return {}
    target = round(target)
    found = nearest(config, what, target, scales, along)
    if found is None:
        why = scales.why(along.put(config, along.own), what)
        issues.append(Issue(key, f"no model can be built near {along.key}={along.value(along.own)} ({why})"))
        return {}
    size, weight = along.value(found[0]), found[1]
    if not target / FAR <= weight <= target * FAR:
        problem = f"{target:,} {BUDGETS[what]} are out of reach by {along.key}; the nearest is {size:g}: {weight:,}"
        issues.append(Issue(key, problem, [f"{key}={weight}"]))
        return {}
    config.update(along.put(config, found[0]))
    record = {"by": what, "over": along.key, "target": target, "value": weight, "off": weight / target - 1}
    return record | {"size": size, "vocabulary": Components(config).tokens().vocabulary}


def told(record: dict[str, Any]) -> str:
    """What was solved, and what is left over, in one line."""
    symbols = f", counted with {record['vocabulary']:,} symbols" if record["vocabulary"] else ""
    return (
        f"{record['target']:,} {BUDGETS[record['by']]} by {record['over']}={record['size']:g}: "
        f"{record['value']:,}, {record['off']:+.2%}{symbols}"
    )


def _problems(
    asked: dict[str, Any], budgets: dict[str, Any], given: Collection[str], along: Axis | None
) -> list[Issue]:
    from blockyard.contracts import Issue

    found = []
    by = asked.get("by") or "dim"
    if by not in SIZES:
        found.append(Issue(f"{KEY}.by", f"{by!r} is no size to solve for", list(SIZES)))
    if len(budgets) > 1:
        found.append(Issue(KEY, "one size cannot meet two budgets; give params or flops"))
    if asked.get("by") not in (None, "dim") and not budgets:
        found.append(Issue(f"{KEY}.by", "has a say only beside match.params or match.flops"))
    for what, value in budgets.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 1:
            found.append(Issue(f"{KEY}.{what}", f"{value!r} is no number of {BUDGETS[what]}", [f"{KEY}.{what}=1.2e6"]))
    if budgets and along is not None and along.key in given:
        found.append(Issue(along.key, f"is solved for by {KEY}; leave one of them out"))
    return found


@dataclass
class _Search:
    """The search for a whole number; what a model weighs grows with its size."""

    weigh: Callable[[int], int | None]
    target: int
    most: float
    known: dict[int, int | None] = field(default_factory=dict)

    def weight(self, n: int) -> int | None:
        if n not in self.known:
            self.known[n] = self.weigh(n)
        return self.known[n]

    def solve(self, own: int) -> int | None:
        """The nearest number; None where no model can be built near `own`."""
        low = high = self._built(own, 1, own + _GAP)
        if low is None or high is None:
            return None
        while self._over(low) and (less := self._built(int(low / 1.4), 1, low - 1)):
            low = less
        while not self._over(high) and (more := self._built(int(high * 1.4), high + 1, int(self.most))):
            high = more
        while high - low > 1:
            middle = (low + high) // 2
            candidate = self._built(middle, low + 1, high - 1)
            if candidate is None:
                break
            low, high = (low, candidate) if self._over(candidate) else (candidate, high)
        tried = {n: abs(weight - self.target) for n, weight in self.known.items() if weight is not None}
        return min(tried, key=lambda n: (tried[n], n))

    def _over(self, n: int) -> bool:
        weight = self.weight(n)
        return weight is not None and weight > self.target

    def _built(self, wanted: int, least: int, most: int) -> int | None:
        """The nearest number, within bounds, that a model can be built with; a few are tried."""
        wanted = min(max(wanted, least), most)
        legal = range(max(least, wanted - _GAP), min(most, wanted + _GAP) + 1)
        return next((n for n in sorted(legal, key=lambda n: abs(n - wanted)) if self.weight(n) is not None), None)
