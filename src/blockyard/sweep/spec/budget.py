"""The parts of a sweep file that say how much is tried: seeds, tune, search."""

from __future__ import annotations

import itertools
import math
from typing import Any

from blockyard.errors import near
from blockyard.sweep.spec import override_text

MOST_SEEDS, MOST_SETTINGS, MOST_TRIALS = 10_000, 1_000, 10_000
SAMPLERS, PRUNERS = ("random", "tpe"), ("none", "median", "halving")
SEARCH = {"trials": None, "sampler": "tpe", "pruner": "none", "space": None}
RANGE = ("low", "high", "log", "int", "step")


def seeds(value: Any, problems: list[str]) -> tuple[int, ...]:
    """The seeds of `seeds: 5` or `seeds: [0, 7]`."""
    if _whole(value) and 1 <= value <= MOST_SEEDS:
        return tuple(range(value))
    if isinstance(value, list) and value and all(_whole(item) and item >= 0 for item in value):
        twice = sorted({item for item in value if value.count(item) > 1}) if len(value) <= MOST_SEEDS else []
        if len(value) > MOST_SEEDS:
            problems.append(f"seeds: {len(value):,} of them; at most {MOST_SEEDS:,}")
        if twice:
            problems.append(f"seeds: {', '.join(map(str, twice))} stand there twice; each is one replicate")
        return tuple(value)
    problems.append(
        f"seeds: {override_text.shown(value)} is neither a number of seeds, such as 5, nor a list, such as [0, 1, 2]"
    )
    return ()


def tune(value: Any, problems: list[str]) -> dict[str, list[Any]]:
    """The grid of settings that every arm tries: {key: [values]}."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not value:
        problems.append(
            f"tune: {override_text.shown(value)} holds no {{key: [values]}}, such as {{optimizer.lr: [1e-3, 3e-3]}}"
        )
        return {}
    before = len(problems)
    for key, values in value.items():
        problems += [problem] if (problem := override_text.key_problem(str(key), "tune")) else []
        if not isinstance(values, list) or not values:
            problems.append(f"tune.{key}: {override_text.shown(values)} is no list of values")
            continue
        said = [override_text.text(item) for item in values]
        problems += [f"tune.{key}: {text} stands there twice" for text in sorted(set(said)) if said.count(text) > 1]
    if len(problems) > before:
        return {}
    count = math.prod(len(values) for values in value.values())
    if count > MOST_SETTINGS:
        problems.append(f"tune: {count:,} settings for each arm; at most {MOST_SETTINGS:,}, or search: draws from them")
        return {}
    return {str(key): list(values) for key, values in value.items()}


def settings(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every setting of a grid, in order; one empty setting where nothing is tuned."""
    return [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]


def tune_seeds(value: Any, tuned: bool, planned: int, problems: list[str]) -> int | None:
    """On how many of the first seeds settings are tried; None for all."""
    if value is None:
        return None
    if not tuned:
        problems.append("tune_seeds: nothing is tuned; give tune: {key: [values]}, or leave it out")
    elif not _whole(value) or value < 1:
        problems.append(f"tune_seeds: {override_text.shown(value)} is no number of seeds; 1 or more, or null for all")
    elif planned and value > planned:
        problems.append(f"tune_seeds: {value} are more than the {planned} seeds there are; at most {planned}")
    else:
        return value if value < planned else None
    return None


def search(value: Any, problems: list[str]) -> dict[str, Any] | None:
    """The search, complete: trials, sampler, pruner, space."""
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append(f"search: {override_text.shown(value)} is no mapping of {', '.join(SEARCH)}")
        return None
    for key in value:
        if key not in SEARCH:
            hint = "".join(f"; nearest: {word}" for word in near(str(key), SEARCH)[:1])
            problems.append(f"search.{key}: nothing reads this key{hint} (keys: {', '.join(SEARCH)})")
    found = SEARCH | value
    trials = found["trials"]
    if not _whole(trials) or not 1 <= trials <= MOST_TRIALS:
        problems.append(
            f"search.trials: {override_text.shown(trials)} is no number of trials for each arm, 1 to {MOST_TRIALS:,}"
        )
    for key, legal in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if found[key] not in legal:
            hint = "".join(f"; nearest: {word}" for word in near(str(found[key]), legal)[:1])
            problems.append(f"search.{key}: {override_text.shown(found[key])} is none of {', '.join(legal)}{hint}")
    space = found["space"]
    if not isinstance(space, dict) or not space:
        problems.append(
            f"search.space: {override_text.shown(space)} holds no key, such as "
            "{optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}"
        )
        return None
    for key, of in space.items():
        problems += [problem] if (problem := override_text.key_problem(str(key), "search.space")) else []
        _dimension(f"search.space.{key}", of, problems)
    return found


def _dimension(where: str, of: Any, problems: list[str]) -> None:
    if isinstance(of, list):
        said = [override_text.text(item) for item in of]
        if not of:
            problems.append(f"{where}: [] offers nothing; give choices")
        problems += [f"{where}: {text} stands there twice" for text in sorted(set(said)) if said.count(text) > 1]
        return
    if not isinstance(of, dict):
        problems.append(f"{where}: {override_text.shown(of)} is neither a list of choices nor {{low: , high: }}")
        return
    for key in of:
        if key not in RANGE:
            hint = "".join(f"; nearest: {word}" for word in near(str(key), RANGE)[:1])
            problems.append(f"{where}.{key}: nothing reads this key{hint} (keys: {', '.join(RANGE)})")
    for key in ("log", "int"):
        if not isinstance(of.get(key, False), bool):
            problems.append(f"{where}.{key}: {override_text.shown(of[key])} is neither true nor false")
    number = _whole if of.get("int") is True else _number
    bad = [
        key for key in ("low", "high", "step") if (key != "step" or of.get(key) is not None) and not number(of.get(key))
    ]
    kind = "whole number" if of.get("int") is True else "number"
    problems += [f"{where}.{key}: {override_text.shown(of.get(key))} is no {kind}" for key in bad]
    if bad:
        return
    if not of["low"] < of["high"]:
        problems.append(f"{where}: low {of['low']} is not under high {of['high']}")
    if of.get("log") is True and of["low"] <= 0:
        problems.append(f"{where}: log needs low over 0, it is {of['low']}")
    if of.get("step") is not None and of["step"] <= 0:
        problems.append(f"{where}.step: {of['step']} is not over 0")
    if of.get("step") is not None and of.get("log") is True and of["step"] != 1:
        problems.append(f"{where}.step: steps are even, log is not; leave one of them out")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
