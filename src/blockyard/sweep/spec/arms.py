"""The arms of a sweep file: listed, or built from factors.

    arms            {name: [overrides]}         as listed; the baseline is the first
    grid            {factor: levels}            every combination; the baseline has the first level of each factor
    zip             {factor: levels}            first levels together, second levels together, ...
    one_at_a_time   {factor: levels}            `reference` (all first levels), and every other level alone
    leave_one_out   {name: [overrides]}         `full` (all of them), and each one left out

A factor is a config key with values (`optimizer.lr: [1e-3, 3e-3]`, `block: [pre_norm, parallel]`), or a
name with named levels (`width: {narrow: [model.dim=32], wide: [model.dim=64]}`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from blockyard.config.override_grammar import to_override
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec import override_text

REFERENCE = "reference"  # the arm of one_at_a_time with all first levels
FULL = "full"  # the arm of leave_one_out with all parts
MAX_ARMS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_NAME_RULE = "letters, digits and _ . + -, at most 100 of them"
_LONGEST = 90  # characters of a generated name


@dataclass(frozen=True)
class Factor:
    """A config key, or a name with named levels, that varies between arms.

    levels: label -> the overrides of that level
    named: whether the file names the levels
    """

    name: str
    levels: dict[str, tuple[str, ...]]
    named: bool


def expand_arms(kind: str, body: Any, problems: list[str]) -> list[Arm]:
    """Return the arms of one of KINDS, or with problems the ones that could be read. Appends to `problems`."""
    listed = kind in ("arms", "leave_one_out")
    if not isinstance(body, dict) or not body:
        wanted = "a name and a list of overrides for each arm" if listed else "factors"
        problems.append(f"{kind}: {override_text.quote(body)} is empty or not a mapping; give {wanted}")
        return []
    if listed:
        parts: dict[str, tuple[str, ...]] = {}
        for name, value in body.items():
            parts[str(name)] = tuple(override_list(_as_list(value), f"{kind}.{name}", problems))
        problems += [problem for name in parts if (problem := name_problem(name, kind))]
        if kind == "leave_one_out":
            return _leave_one_out(parts, problems)
        return [Arm(name, overrides) for name, overrides in parts.items()]
    factors = []
    for name, value in body.items():
        factor = _factor(str(name), value, kind, problems)
        if factor is not None:
            factors.append(factor)
    _check_disjoint(factors, kind, problems)
    if len(factors) < len(body):
        return []
    if kind == "grid":
        return _grid(factors, problems)
    if kind == "zip":
        return _zip(factors, problems)
    return _one_at_a_time(factors)


def override_list(value: Any, where: str, problems: list[str]) -> list[str]:
    """Return the overrides of the base or of an arm; append problems to `problems`. A missing list is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        problems.append(f"{where}: {override_text.quote(value)} is not a list of overrides; write [key=value, ...]")
        return []
    issues = [problem for item in value if (problem := override_text.override_problem(item, where))]
    problems += issues
    return [] if issues else value


def name_problem(name: str, where: str) -> str | None:
    """Return why an arm cannot have this name, or None. Names appear in file names, tables and `expect`."""
    if not _NAME.fullmatch(name) or name in (".", "..", "and"):
        return f"{where}: invalid arm name {name!r}; use {_NAME_RULE}"
    return None


def _as_list(value: Any) -> Any:
    """Return the overrides of a name as a list; a single override needs none."""
    return [value] if isinstance(value, str) else value


def _factor(name: str, value: Any, kind: str, problems: list[str]) -> Factor | None:
    """Return a factor of the file; None with problems appended."""
    where = f"{kind}.{name}"
    num_problems = len(problems)
    least = 2 if kind == "one_at_a_time" else 1
    if not isinstance(value, list | dict) or len(value) < least:
        hint = "; the first value is the reference, so give two or more" if least == 2 else ""
        problems.append(f"{where}: expected a list of values, not {override_text.quote(value)}{hint}")
        return None
    levels: dict[str, tuple[str, ...]] = {}
    if isinstance(value, dict):
        for level, overrides in value.items():
            levels[str(level)] = tuple(override_list(_as_list(overrides), f"{where}.{level}", problems))
            problem = name_problem(str(level), where)
            if problem:
                problems.append(problem)
    else:
        problem = override_text.key_problem(name)
        if problem:
            problems.append(f"{where}: {problem}")
        for item in value:
            override = (to_override(name, item),)
            if override in levels.values():
                problems.append(f"{where}: {override_text.quote(item)} is listed twice")
            levels[_unused(override_text.to_label(item), levels)] = override
    if len(problems) > num_problems:
        return None
    return Factor(name, levels, isinstance(value, dict))


def _check_disjoint(factors: list[Factor], kind: str, problems: list[str]) -> None:
    """Append a problem for each key that two factors set."""
    owners: dict[str, str] = {}
    for factor in factors:
        overrides = itertools.chain(*factor.levels.values())
        for key in sorted(set(map(override_text.key_of, overrides))):
            if owners.setdefault(key, factor.name) != factor.name:
                problems.append(f"{kind}: {owners[key]} and {factor.name} both set {key}; only the last would count")


def _grid(factors: list[Factor], problems: list[str]) -> list[Arm]:
    count = math.prod(len(factor.levels) for factor in factors)  # before the arms are made: they could be billions
    if count > MAX_ARMS:
        problems.append(f"grid: {count:,} arms are too many; at most {MAX_ARMS:,}")
        return []
    return _combine(factors, itertools.product(*(factor.levels for factor in factors)))


def _zip(factors: list[Factor], problems: list[str]) -> list[Arm]:
    lengths = {factor.name: len(factor.levels) for factor in factors}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        problems.append(f"zip: all factors need the same number of levels: {counts}")
        return []
    return _combine(factors, zip(*(factor.levels for factor in factors), strict=True))


def _one_at_a_time(factors: list[Factor]) -> list[Arm]:
    first = {factor.name: next(iter(factor.levels)) for factor in factors}
    labels = _level_labels(factors)
    arms = [_arm(REFERENCE, factors, first)]
    for factor in factors:
        for level in list(factor.levels)[1:]:
            arms.append(_arm(labels[factor.name, level], factors, first | {factor.name: level}))
    return _unique(arms)


def _leave_one_out(parts: dict[str, tuple[str, ...]], problems: list[str]) -> list[Arm]:
    if FULL in parts:
        problems.append(f"leave_one_out: {FULL!r} is the arm with all parts; use another name")
    for name, part in parts.items():
        if not part:
            problems.append(f"leave_one_out.{name}: has no overrides, so nothing can be left out")
    arms = [Arm(FULL, tuple(itertools.chain(*parts.values())), dict.fromkeys(parts, "with"))]
    for omitted in parts:
        others = [part for name, part in parts.items() if name != omitted]
        levels = dict.fromkeys(parts, "with") | {omitted: "without"}
        arms.append(Arm(f"no_{omitted}", tuple(itertools.chain(*others)), levels))
    return arms


def _combine(factors: list[Factor], combinations: Iterable[tuple[str, ...]]) -> list[Arm]:
    """Return an arm for each combination of levels, named after them."""
    labels = _level_labels(factors)
    arms = []
    for combination in combinations:
        levels = {factor.name: level for factor, level in zip(factors, combination, strict=True)}
        name = "-".join(labels[factor, level] for factor, level in levels.items())
        arms.append(_arm(name, factors, levels))
    return _unique(arms)


def _arm(name: str, factors: list[Factor], levels: dict[str, str]) -> Arm:
    overrides = [factor.levels[levels[factor.name]] for factor in factors]
    return Arm(name, tuple(itertools.chain(*overrides)), levels)


def _level_labels(factors: list[Factor]) -> dict[tuple[str, str], str]:
    """Return a label for each level: the level if it is unambiguous, else after the end of the factor's name."""
    counts = Counter(level for factor in factors for level in factor.levels)
    labels = {}
    for factor in factors:
        short = override_text.to_label(factor.name.rsplit(".", 1)[-1])
        for level in factor.levels:
            # A number or a bare `true` says nothing without its key.
            is_clear = factor.named or (level[0].isalpha() and level not in ("true", "false", "null", "none"))
            if is_clear and counts[level] == 1:
                labels[factor.name, level] = level
            elif level[0].isalpha():
                labels[factor.name, level] = f"{short}_{level}"
            else:
                labels[factor.name, level] = f"{short}{level}"
    return labels


def _unique(arms: list[Arm]) -> list[Arm]:
    """Return the arms with names cut to length, and numbered where two are the same."""
    unique: dict[str, Arm] = {}
    for arm in arms:
        name = _unused(arm.name[:_LONGEST].strip("-."), unique)
        unique[name] = Arm(name, arm.overrides, arm.levels)
    return list(unique.values())


def _unused(name: str, used: Container[str]) -> str:
    """Return the name, or with the first number that makes it new."""
    unused = name
    for number in itertools.count(2):
        if unused not in used:
            break
        unused = f"{name}.{number}"
    return unused
