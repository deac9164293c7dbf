"""From the ways of asking to a list of arms: given, crossed, paired, one at a time, one left out.

    arms            {name: [overrides]}         as they stand; the baseline is the first
    grid            {factor: levels}            every combination; the baseline has the first level of each
    zip             {factor: levels}            first with first, second with second, ...
    one_at_a_time   {factor: levels}            `reference` (the first levels), and each other level alone
    leave_one_out   {name: [overrides]}         `full` (all of them), and each one left out

A factor is a key with values (`optimizer.lr: [1e-3, 3e-3]`, `block: [pre_norm, parallel]`), or a word
with named levels (`width: {narrow: [model.dim=32], wide: [model.dim=64]}`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from blockyard.sweep.plan.sweep_plan import Arm
from blockyard.sweep.spec import override_text

KINDS = ("arms", "grid", "zip", "one_at_a_time", "leave_one_out")
REFERENCE, FULL = "reference", "full"
MOST = 10_000  # arms
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
NAMES = "letters, digits and _ . + -, at most 100 of them"


@dataclass(frozen=True)
class Factor:
    """What is varied. levels: label -> the overrides that make it; named: whether the file gave the labels."""

    name: str
    levels: dict[str, tuple[str, ...]]
    named: bool


def expand(kind: str, body: Any, problems: list[str]) -> list[Arm]:
    """The arms, with problems appended; of a body with problems the arms that can be known."""
    if not isinstance(body, dict) or not body:
        what = "a name and a list of overrides for each arm" if kind in ("arms", "leave_one_out") else "factors"
        problems.append(f"{kind}: {override_text.shown(body)} holds none; give {what}")
        return []
    if kind in ("arms", "leave_one_out"):
        parts = {str(name): _overrides(value, f"{kind}.{name}", problems) for name, value in body.items()}
        problems += [problem for name in parts if (problem := name_problem(name, kind))]
        return [Arm(name, part) for name, part in parts.items()] if kind == "arms" else _left_out(parts, problems)
    factors = [factor for name, value in body.items() if (factor := _factor(str(name), value, kind, problems))]
    _disjoint(factors, kind, problems)
    if len(factors) < len(body):
        return []
    return {"grid": _grid, "zip": _zip, "one_at_a_time": _one_at_a_time}[kind](factors, problems)


def default_baseline(arms: list[Arm]) -> str | None:
    """The arm that others are compared with where the file names none: the first."""
    return arms[0].name if arms else None


def name_problem(name: str, where: str) -> str | None:
    """Why an arm cannot be called so, or None. Names stand in file names, tables and `expect`."""
    if not _NAME.fullmatch(name) or name in (".", "..", "and"):
        return f"{where}: {name!r} is no name for an arm; take {NAMES}"
    return None


def _overrides(value: Any, where: str, problems: list[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if value is None:
        value = []
    if not isinstance(value, list):
        problems.append(f"{where}: {override_text.shown(value)} is no list of overrides; write [key=value, ...]")
        return ()
    found = [problem for item in value if (problem := override_text.problem(item, where))]
    problems += found
    return () if found else tuple(value)


def _factor(name: str, value: Any, kind: str, problems: list[str]) -> Factor | None:
    where, before = f"{kind}.{name}", len(problems)
    least = 2 if kind == "one_at_a_time" else 1
    if not isinstance(value, list | dict) or len(value) < least:
        few = "; the first value is the reference, so give two or more" if least == 2 else ""
        problems.append(f"{where}: {override_text.shown(value)} is no list of values{few}")
        return None
    levels: dict[str, tuple[str, ...]] = {}
    if isinstance(value, dict):
        for level, overrides in value.items():
            levels[str(level)] = _overrides(overrides, f"{where}.{level}", problems)
            problems += [problem] if (problem := name_problem(str(level), where)) else []
    else:
        problems += [problem] if (problem := override_text.key_problem(name, where)) else []
        for item in value:
            override = (override_text.word(name, item),)
            if override in levels.values():
                problems.append(f"{where}: {override_text.shown(item)} stands there twice")
            levels[_free(override_text.label(item), levels)] = override
    return Factor(name, levels, isinstance(value, dict)) if len(problems) == before else None


def _disjoint(factors: list[Factor], kind: str, problems: list[str]) -> None:
    """Two factors that set one key would undo each other."""
    owners: dict[str, str] = {}
    for factor in factors:
        for key in sorted({override_text.key_of(word) for level in factor.levels.values() for word in level}):
            if owners.setdefault(key, factor.name) != factor.name:
                problems.append(f"{kind}: {owners[key]} and {factor.name} both set {key}; the last would win")


def _grid(factors: list[Factor], problems: list[str]) -> list[Arm]:
    count = 1
    for factor in factors:
        count *= len(factor.levels)
    if count > MOST:
        problems.append(f"grid: {count:,} arms; at most {MOST:,} are planned")
        return []
    return _named(factors, itertools.product(*(factor.levels for factor in factors)))


def _zip(factors: list[Factor], problems: list[str]) -> list[Arm]:
    lengths = {factor.name: len(factor.levels) for factor in factors}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        problems.append(f"zip: factors are paired level by level, so they need equally many: {said}")
        return []
    return _named(factors, zip(*(factor.levels for factor in factors), strict=True))


def _one_at_a_time(factors: list[Factor], _: list[str]) -> list[Arm]:
    first = {factor.name: next(iter(factor.levels)) for factor in factors}
    labels = _labels(factors)
    arms = [_arm(REFERENCE, factors, first)]
    for factor in factors:
        for level in list(factor.levels)[1:]:
            arms.append(_arm(labels[factor.name, level], factors, first | {factor.name: level}))
    return _unique(arms)


def _left_out(parts: dict[str, tuple[str, ...]], problems: list[str]) -> list[Arm]:
    if FULL in parts:
        problems.append(f"leave_one_out: {FULL!r} is what all of them together are called; take another name")
    problems += [
        f"leave_one_out.{name}: changes nothing, so leaving it out does neither" for name in parts if not parts[name]
    ]
    arms = [Arm(FULL, tuple(itertools.chain(*parts.values())), dict.fromkeys(parts, "with"))]
    for left in parts:
        kept = tuple(itertools.chain(*(part for name, part in parts.items() if name != left)))
        arms.append(Arm(f"no_{left}", kept, dict.fromkeys(parts, "with") | {left: "without"}))
    return arms


def _named(factors: list[Factor], rows: Iterator[tuple[str, ...]]) -> list[Arm]:
    labels = _labels(factors)
    arms = []
    for row in rows:
        levels = dict(zip((factor.name for factor in factors), row, strict=True))
        arms.append(_arm("-".join(labels[item] for item in levels.items()), factors, levels))
    return _unique(arms)


def _arm(name: str, factors: list[Factor], levels: dict[str, str]) -> Arm:
    return Arm(name, tuple(itertools.chain(*(f.levels[levels[f.name]] for f in factors))), levels)


def _labels(factors: list[Factor]) -> dict[tuple[str, str], str]:
    """A name for each level: its own word where that tells enough, with the factor's last word where not."""
    counts: dict[str, int] = {}
    for factor in factors:
        for level in factor.levels:
            counts[level] = counts.get(level, 0) + 1
    found = {}
    for factor in factors:
        short = override_text.label(factor.name.rsplit(".", 1)[-1])
        for level in factor.levels:
            speaks = factor.named or (level[0].isalpha() and level not in ("true", "false", "null", "none"))
            speaks = speaks and counts[level] == 1
            found[factor.name, level] = (
                level if speaks else f"{short}_{level}" if level[0].isalpha() else f"{short}{level}"
            )
    return found


def _unique(arms: list[Arm]) -> list[Arm]:
    """Names cut to length, and with a number where two are the same (two factors that end in one word)."""
    found: dict[str, Arm] = {}
    for arm in arms:
        name = _free(arm.name[:90].strip("-."), found)
        found[name] = Arm(name, arm.overrides, arm.levels)
    return list(found.values())


def _free(name: str, taken: Container[str]) -> str:
    if name not in taken:
        return name
    return next(f"{name}.{number}" for number in itertools.count(2) if f"{name}.{number}" not in taken)
