"""Solves a model's size for a budget: the width, depth or expansion that comes nearest to it.

    blockyard train match.params=1.2e6                 # solves model.dim
    blockyard check match.flops=5e7 match.by=depth     # model.depth; by=expansion: that of the channel mixer,
                                                       # or of the token mixer where the other has none

The solved size is what a config holds and a run freezes. Sizes are whole, so what is missed is recorded. Sweeps use
the same search to match the size of each arm to that of their baseline.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from blockyard.config.build import Components
from blockyard.config.match_keys import BUDGETS, KEY, KEYS, SIZES
from blockyard.config.model_size import ModelSizes
from blockyard.config.placed_nodes import are_sound
from blockyard.config.size_search import SizeSearch
from blockyard.config.targets import locate
from blockyard.contracts import Issue
from blockyard.contracts.option_types import DEEPEST, LARGEST_EXPANSION, WIDEST
from blockyard.errors import quoted

__all__ = ["BUDGETS", "KEY", "KEYS", "SIZES", "Axis", "axis", "describe_match", "nearest", "solve"]

LARGEST = {"dim": WIDEST, "depth": DEEPEST, "expansion": LARGEST_EXPANSION}
MAX_FACTOR = 2.0  # a size whose count is further from the budget than this factor is refused


@dataclass(frozen=True)
class Axis:
    """The size that is solved for: the option at `key`, in whole numbers n that stand for n times `unit`.

    current: the n nearest to the config's own value
    """

    by: str
    key: str  # dotted
    unit: float
    current: int

    def value(self, n: int) -> int | float:
        """The option's value for n."""
        return round(n * self.unit, 6) if self.by == "expansion" else n * int(self.unit)

    def put(self, config: dict[str, Any], n: int) -> dict[str, Any]:
        """The config with that size."""
        family, _, name = self.key.partition(".")
        return config | {family: config[family] | {name: self.value(n)}}


def axis(config: dict[str, Any], by: str = "dim") -> Axis | None:
    """The size to solve for, or None where the config has none.

    Widths are multiples of the number of heads; expansions go in hidden channels, as many as the mixer needs at a time.
    """
    dim = config["model"].get("dim")
    for key in SIZES[by] if _is_size(dim) else ():
        family, _, name = key.partition(".")
        current = config[family].get(name)
        if not _is_size(current):
            continue
        if by == "expansion":
            unit = getattr(locate(config[family]["_target_"]), "hidden_multiple", 1) / dim
        else:
            heads = config["model"].get("heads")
            unit = int(heads) if by == "dim" and _is_size(heads) else 1
        return Axis(by, key, unit, max(1, round(current / unit)))
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def nearest(config: dict[str, Any], what: str, target: int, sizes: ModelSizes, along: Axis) -> tuple[int, int] | None:
    """The n along an axis whose count is nearest to the target, and its count; None where no model can be built."""
    search = SizeSearch(lambda n: sizes.measure(along.put(config, n), what), target, LARGEST[along.by] / along.unit)
    n = search.solve(along.current)
    count = None if n is None else search.counts[n]
    return None if n is None or count is None else (n, count)


def solve(config: dict[str, Any], overridden: Collection[str], issues: list[Issue]) -> dict[str, Any]:
    """Take `match` out of a complete config and put the solved size in; returns the record, {} without `match`.

    overridden: the keys of the command line, which must not name the size that is solved for
    The record is {by, over, target, value, off, size, vocabulary}; a problem becomes an issue. A vocabulary that is
    learned from the data counts as large as it may become.
    """
    match = config.pop(KEY, None) or {}
    if all(match.get(each) is None for each in BUDGETS) and match.get("by") in (None, "dim"):
        return {}
    if issues or not are_sound(config):
        return {}  # `check` reports the issues
    budgets = {what: match[what] for what in BUDGETS if match.get(what) is not None}
    by = match.get("by") or "dim"
    along = axis(config, by) if _is_known(by) and isinstance(config.get("model"), dict) else None
    problems = _problems(match, budgets, overridden, along)
    issues += problems
    if problems or not budgets:
        return {}

    (what, budget), sizes = next(iter(budgets.items())), ModelSizes()
    key = f"{KEY}.{what}"
    if along is None:
        others = [f"{KEY}.by={other}" for other in SIZES if axis(config, other) is not None]
        issues.append(Issue(key, f"the config has no {' or '.join(SIZES[by])} to solve for", others))
        return {}
    target = round(budget)
    solved = nearest(config, what, target, sizes, along)
    if solved is None:
        reason = sizes.failure(along.put(config, along.current), what)
        issues.append(Issue(key, f"no model can be built near {along.key}={along.value(along.current)} ({reason})"))
        return {}
    size, count = along.value(solved[0]), solved[1]
    if not target / MAX_FACTOR <= count <= target * MAX_FACTOR:
        problem = f"{target:,} {BUDGETS[what]} are out of reach by {along.key}; the nearest is {size:g}: {count:,}"
        issues.append(Issue(key, problem, [f"{key}={count}"]))
        return {}
    config.update(along.put(config, solved[0]))
    record = {"by": what, "over": along.key, "target": target, "value": count, "off": count / target - 1}
    return record | {"size": size, "vocabulary": Components(config).tokens().vocabulary}


def describe_match(record: dict[str, Any]) -> str:
    """The size that was solved for, and how far its count is from the budget, in one line."""
    vocabulary = f", counted with a vocabulary of {record['vocabulary']:,}" if record["vocabulary"] else ""
    return (
        f"{record['target']:,} {BUDGETS[record['by']]} by {record['over']}={record['size']:g}: "
        f"{record['value']:,}, {record['off']:+.2%}{vocabulary}"
    )


def _is_known(by: Any) -> bool:
    return isinstance(by, str) and by in SIZES


def _problems(
    match: dict[str, Any], budgets: dict[str, Any], overridden: Collection[str], along: Axis | None
) -> list[Issue]:

    issues = []
    by = match.get("by") or "dim"
    if not _is_known(by):
        issues.append(Issue(f"{KEY}.by", f"unknown size {quoted(by)}", list(SIZES)))
    elif match.get("by") not in (None, "dim") and not budgets:
        issues.append(Issue(f"{KEY}.by", "has an effect only together with match.params or match.flops"))
    if len(budgets) > 1:
        issues.append(Issue(KEY, "one size cannot meet two budgets; set params or flops"))
    for what, value in budgets.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 1:
            text = f"invalid value {quoted(value)}: expected a number of {BUDGETS[what]} >= 1"
            issues.append(Issue(f"{KEY}.{what}", text, [f"{KEY}.{what}=1.2e6"]))
    if budgets and along is not None and along.key in overridden:
        issues.append(Issue(along.key, f"is solved for by {KEY}; leave one of them out"))
    return issues
