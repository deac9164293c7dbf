"""Readers of the keys that say how much is tried: seeds, budget, tune, tune_seeds, search."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict, cast

from blockyard.config.override_grammar import to_text
from blockyard.sweep.cells import Setting
from blockyard.sweep.spec.fields import LARGEST_FLOAT, did_you_mean, is_number, not_one_of
from blockyard.sweep.spec.override_text import key_problem, quote

MAX_SEEDS, MAX_SETTINGS, MAX_TRIALS = 10_000, 1_000, 10_000
SAMPLERS, PRUNERS = ("random", "tpe"), ("none", "median", "halving")
SEARCH: Mapping[str, Any] = {"trials": None, "sampler": "tpe", "pruner": "none", "space": None}
FURTHER = ("seeds", "only")  # keys of a search that plans have only where the file has them
RANGE = ("low", "high", "log", "int", "step")
_WHOLE = 2**53  # up to which Optuna, which computes with floats, has every integer
_STEPS = 10**9  # values of a range with a step


class Until(TypedDict):
    """Where seeds are given out one after another until every comparison is decided: how many at first, at most."""

    first: int
    most: int


FIRST, MOST, MOST_UNTIL = 3, 20, 200
UNTIL_FORM = "{first: 3, most: 20, until: decided}"


def parse_until(value: Any, problems: list[str]) -> Until | None:
    """The mapping of `seeds: {first: 3, most: 20, until: decided}`; None for seeds of another form."""
    if not isinstance(value, dict):
        return None
    for key in value:
        if key not in ("first", "most", "until"):
            problems.append(
                f"seeds.{key}: unknown key{did_you_mean(key, ('first', 'most', 'until'))} (keys: first, most, until)"
            )
    if value.get("until") != "decided":
        problems.append(f"seeds.until: {quote(value.get('until'))} is not `decided`; write seeds: {UNTIL_FORM}")
    first, most = value.get("first", FIRST), value.get("most", MOST)
    for key, count, low in (("first", first, 2), ("most", most, 3)):
        if not _is_int(count) or not low <= count <= MOST_UNTIL:
            problems.append(f"seeds.{key}: expected a number of seeds, {low} to {MOST_UNTIL:,}, not {quote(count)}")
            return None
    if first > most:
        problems.append(f"seeds.first: {first} is more than seeds.most, which is {most}")
        return None
    return Until(first=first, most=most)


BUDGETS = ("cells", "flops", "hours")


def parse_budget(value: Any, until: bool, problems: list[str]) -> dict[str, float] | None:
    """The most that a sweep may spend before it stops undecided, in one unit: `budget: {cells: 60}`."""
    if value is None:
        return None
    form = "write budget: {cells: 60}, {flops: 1e15} or {hours: 2}"
    if not until:
        problems.append(f"budget: has no effect with a fixed number of seeds; remove it, or write seeds: {UNTIL_FORM}")
    elif not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in BUDGETS:
        problems.append(f"budget: {quote(value)} is not one limit; {form}")
    elif not is_number(limit := next(iter(value.values()))) or limit <= 0:
        problems.append(f"budget.{next(iter(value))}: expected a number above 0, not {quote(limit)}; {form}")
    else:
        return {next(iter(value)): float(limit)}
    return None


def parse_seeds(value: Any, problems: list[str]) -> tuple[int, ...]:
    """The seeds of `seeds: 5` or `seeds: [0, 7]`."""
    if _is_int(value) and 1 <= value <= MAX_SEEDS:
        return tuple(range(value))
    if isinstance(value, list) and value and all(_is_int(item) and item >= 0 for item in value):
        if len(value) > MAX_SEEDS:
            problems.append(f"seeds: {len(value):,} seeds are too many; at most {MAX_SEEDS:,}")
            return tuple(value)
        if twice := sorted({item for item in value if value.count(item) > 1}):
            problems.append(f"seeds: {', '.join(map(str, twice))} listed twice; each seed is one replicate")
        return tuple(value)
    problems.append(
        f"seeds: expected a number of seeds, such as 5, a list, such as [0, 1, 2], or {UNTIL_FORM}, not {quote(value)}"
    )
    return ()


def parse_tune(value: Any, problems: list[str]) -> dict[str, list[Any]]:
    """The grid of settings that every arm tries: {key: [values]}."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not value:
        problems.append(f"tune: expected {{key: [values]}}, such as {{optimizer.lr: [1e-3, 3e-3]}}, not {quote(value)}")
        return {}
    before = len(problems)
    for key, values in value.items():
        problems += [problem] if (problem := key_problem(str(key), "tune")) else []
        if not isinstance(values, list) or not values:
            problems.append(f"tune.{key}: expected a list of values, not {quote(values)}")
            continue
        if len(values) > MAX_SETTINGS:
            problems.append(f"tune.{key}: {len(values):,} values are too many; at most {MAX_SETTINGS:,}")
            continue
        problems += [f"tune.{key}: {text} is listed twice" for text in _duplicates(values)]
    if len(problems) > before:
        return {}
    count = math.prod(len(values) for values in value.values())
    if count > MAX_SETTINGS:
        problems.append(
            f"tune: {count:,} settings for each arm are too many; at most {MAX_SETTINGS:,}. `search:` samples from more"
        )
        return {}
    return {str(key): list(values) for key, values in value.items()}


def settings(grid: dict[str, list[Any]]) -> list[Setting]:
    """Every setting of a grid in order; one empty setting where nothing is tuned."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def parse_tune_seeds(value: Any, tuned: bool, searched: bool, seeds: int, problems: list[str]) -> int | None:
    """The number of first seeds on which settings are tried; None for all.

    seeds: how many the file has; 0 where that could not be read
    """
    if value is None:
        return None
    if searched:
        problems.append(f"tune_seeds: has no effect on a search; write search: {{seeds: {quote(value)}}}")
    elif not tuned:
        problems.append("tune_seeds: has no effect without tune: {key: [values]}; remove it")
    elif not _is_int(value) or value < 1:
        problems.append(f"tune_seeds: expected a number of seeds, 1 or more, or null for all, not {quote(value)}")
    elif seeds and value > seeds:
        problems.append(f"tune_seeds: {value} is more than the {seeds} seeds of the sweep; at most {seeds}")
    else:
        return value if value < seeds else None
    return None


class Range(TypedDict, total=False):
    """The range of a searched key; whole numbers where `int`. low and high are always there."""

    low: Required[float]
    high: Required[float]
    log: bool
    int: bool
    step: float | None


Space = dict[str, list[Any] | Range]  # what is searched: config key -> its choices, or their range


class Search(TypedDict):
    """The search of a sweep file with its defaults.

    space: of every arm: key -> choices, or a range (`RANGE`); only: arm -> the space that it has besides
    seeds: on how many of the first seeds each setting is tried; missing for one
    """

    trials: int
    sampler: str
    pruner: str
    space: Space
    seeds: NotRequired[int]
    only: NotRequired[dict[str, Space]]


def space_of(search: Search, arm: str) -> Space:
    """What is searched for an arm: the space that all arms share, and what only this one has."""
    return search["space"] | search.get("only", {}).get(arm, {})


def parse_search(value: Any, seeds: int, problems: list[str]) -> Search | None:
    """The search with its defaults. seeds: how many the file has; 0 where that could not be read"""
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append(f"search: expected a mapping of {', '.join(SEARCH)}, not {quote(value)}")
        return None
    for key in value:
        if key not in (*SEARCH, *FURTHER):
            keys = (*SEARCH, *FURTHER)
            problems.append(f"search.{key}: unknown key{did_you_mean(key, keys)} (keys: {', '.join(keys)})")
    search = {**SEARCH, **value}
    trials = search["trials"]
    if not _is_int(trials) or not 1 <= trials <= MAX_TRIALS:
        problems.append(
            f"search.trials: expected a number of trials for each arm, 1 to {MAX_TRIALS:,}, not {quote(trials)}"
        )
    for key, allowed in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if search[key] not in allowed:
            problems.append(f"search.{key}: {not_one_of(search[key], allowed)}")
    space = search["space"]
    if not isinstance(space, dict) or not space:
        problems.append(
            f"search.space: {quote(space)} has no key; give one, such as "
            "{optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}"
        )
        return None
    _check_space("search.space", space, problems)
    result = Search(trials=trials, sampler=search["sampler"], pruner=search["pruner"], space=space)
    count = search.get("seeds")
    if count is not None and (not _is_int(count) or count < 1 or (seeds and count > seeds)):
        problems.append(
            f"search.seeds: expected on how many of the {seeds} seeds a setting is tried, not {quote(count)}"
        )
    elif count is not None and count > 1:
        result["seeds"] = count
    if search.get("only") is not None:
        result["only"] = _only(search["only"], space, problems)
    return result


def _only(value: Any, shared: Space, problems: list[str]) -> dict[str, Space]:
    """Spaces of single arms, by their names."""
    if not isinstance(value, dict) or not value or not all(isinstance(own, dict) and own for own in value.values()):
        form = "{ARM: {KEY: [values]}}"
        problems.append(f"search.only: {quote(value)} is not a space for single arms; write {form}")
        return {}
    for arm, own in value.items():
        _check_space(f"search.only.{arm}", own, problems)
        problems += [f"search.only.{arm}.{key}: search.space has it for every arm" for key in own if key in shared]
    return value


def _check_space(where: str, space: Mapping[str, object], problems: list[str]) -> None:
    for key, dimension in space.items():
        problems += [problem] if (problem := key_problem(str(key), where)) else []
        _check_dimension(f"{where}.{key}", dimension, problems)


def _check_dimension(where: str, dimension: Any, problems: list[str]) -> None:
    """Append what is wrong with one key of the space: a list of choices or a range."""
    if isinstance(dimension, list):
        if not dimension:
            problems.append(f"{where}: [] has no choices")
        if len(dimension) > MAX_TRIALS:
            problems.append(f"{where}: {len(dimension):,} choices are too many; at most {MAX_TRIALS:,}")
            return
        problems += [f"{where}: {text} is listed twice" for text in _duplicates(dimension)]
        return
    if not isinstance(dimension, dict):
        problems.append(f"{where}: expected a list of choices or {{low: , high: }}, not {quote(dimension)}")
        return
    for key in dimension:
        if key not in RANGE:
            hint = "; the option says whether its values are whole" if key == "type" else did_you_mean(key, RANGE)
            problems.append(f"{where}.{key}: unknown key{hint} (keys: {', '.join(RANGE)})")
    for key in ("log", "int"):
        if not isinstance(dimension.get(key, False), bool):
            problems.append(f"{where}.{key}: expected true or false, not {quote(dimension[key])}")
    whole = dimension.get("int") is True
    bounds = ("low", "high", "step") if dimension.get("step") is not None else ("low", "high")
    bad = [key for key in bounds if not (_is_int if whole else is_number)(dimension.get(key))]
    kind = "an integer" if whole else "a number"
    for key in bad:
        bound = f" (at most {LARGEST_FLOAT:g})" if isinstance(dimension.get(key), int | float) and not whole else ""
        problems.append(f"{where}.{key}: expected {kind}, not {quote(dimension.get(key))}{bound}")
    if not bad:
        _check_range(where, cast("Range", dimension), problems)


def _check_range(where: str, dimension: Range, problems: list[str]) -> None:
    low, high, step, log = dimension["low"], dimension["high"], dimension.get("step"), dimension.get("log") is True
    if isinstance(low, int) and isinstance(high, int) and max(abs(low), abs(high)) > _WHOLE:
        problems.append(f"{where}: integers beyond 2^53 are not exact; choose a smaller range")
    elif step is not None and step > 0 and (high - low) / step > _STEPS:
        problems.append(
            f"{where}.step: more than {_STEPS:,} values from {low} to {high} with {step}; choose a larger one"
        )
    if not low < high:
        problems.append(f"{where}: low {low} must be below high {high}")
    if log and low <= 0:
        problems.append(f"{where}: log needs low above 0, not {low}")
    if step is not None and step <= 0:
        problems.append(f"{where}.step: expected a number above 0, not {step}")
    if step is not None and low < high and step > high - low:
        problems.append(f"{where}.step: {step} is more than high - low, so {low} would be the only value")
    if step is not None and log and step != 1:
        problems.append(f"{where}.step: has no effect on a log scale; remove step or log")


def _duplicates(values: list[Any]) -> list[str]:
    counts = Counter(to_text(value) for value in values)
    return sorted(text for text, count in counts.items() if count > 1)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
