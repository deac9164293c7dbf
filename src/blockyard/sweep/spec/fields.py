"""Readers of the plain keys of a sweep file. Each returns the value and appends problems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from blockyard.errors import near
from blockyard.runs.costs import COSTS
from blockyard.sweep.spec.expectation import FORM, parse_expectation, unknown_arm
from blockyard.sweep.spec.override_text import override_problem, quote
from blockyard.sweep.spec.threshold import Kind, Threshold, threshold

LARGEST_FLOAT = 3.4e38  # of float32, as in contracts.option_types, whose import takes torch
_METRIC = re.compile(r"(test|val)/[A-Za-z_][\w./@-]*")


def text(content: Mapping[str, object], key: str, problems: list[str]) -> str | None:
    """A text; None for an optional key that is missing."""
    value = content.get(key)
    if value is None and key != "claim":
        return None
    if key in content and not (isinstance(value, str) and value.strip()):
        problems.append(f"{key}: {quote(value)} is not a text")
        return None
    return value.strip() if isinstance(value, str) else None


def override_list(value: Any, where: str, problems: list[str]) -> tuple[str, ...]:
    """A list of overrides; a missing one is empty."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(f"{where}: {quote(value)} is not a list of overrides; write [key=value, ...]")
        return ()
    issues = [problem for item in value if (problem := override_problem(item, where))]
    problems += issues
    return () if issues else tuple(value)


def baseline(content: Mapping[str, object], names: list[str], problems: list[str]) -> str | None:
    """The arm that the others are compared with, where the file names one."""
    value = content.get("baseline")
    if value is None:
        return None
    if not names or value in names:
        return str(value)
    problems.append(f"baseline: {unknown_arm(value, names)}")
    return None


def one_of(content: Mapping[str, object], key: str, allowed: Sequence[str], problems: list[str]) -> str | None:
    """One of a few words, or None."""
    value = content.get(key)
    if value is None:
        return None
    if value in allowed:
        return str(value)
    problems.append(f"{key}: {not_one_of(value, allowed)}")
    return None


def flag(content: Mapping[str, object], key: str, problems: list[str]) -> bool | None:
    """True, or None where the key is missing or false."""
    value = content.get(key)
    if value is None or isinstance(value, bool):
        return value or None
    problems.append(f"{key}: expected true or false, not {quote(value)}")
    return None


def not_one_of(value: Any, allowed: Sequence[str]) -> str:
    """The message for a value that is not among the allowed ones."""
    return f"{quote(value)} is not one of {', '.join(allowed)}{did_you_mean(value, allowed)}"


def did_you_mean(value: Any, allowed: Sequence[str]) -> str:
    """The nearest allowed word as the end of a message; empty where none is near."""
    nearest = near(str(value), allowed)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def metric(content: Mapping[str, object], tuned: bool, problems: list[str]) -> str | None:
    """The metric that is reported, or None for the objective's own."""
    value = content.get("metric")
    if value is None:
        return None
    if isinstance(value, str) and value in COSTS:
        if tuned:
            problems.append(
                f"metric: {value} is a cost, and settings are chosen by a metric of validation; report that one, and "
                f"print the cost by `blockyard compare --metric {value}`"
            )
        return value
    if not isinstance(value, str) or not _METRIC.fullmatch(value):
        problems.append(
            f"metric: {quote(value)} is not a metric's name; write test/NAME, such as test/accuracy or test/loss, or a "
            f"cost: {', '.join(COSTS)}"
        )
        return None
    if tuned and value.startswith(("test/written_", "test/inspect_")):
        problems.append(
            f"metric: {value} is measured at the end of a run, and settings are chosen by a metric of validation; "
            "report that one, or drop tune and search"
        )
    if tuned and value.startswith("val/"):
        problems.append(f"metric: {value} chooses the settings, so it cannot judge them too; report test/{value[4:]}")
    return value


def reached(content: Mapping[str, object], problems: list[str]) -> Threshold | None:
    """What `success` or `steps_to` says of whole runs, or None."""
    keys = [kind for kind in ("success", "steps_to", "metric") if content.get(kind) is not None]
    if len(keys) > 1:
        problems.append(f"{keys[0]}: {' and '.join(keys)} all say what is compared; keep one of them")
    examples: dict[Kind, str] = {"success": "test/exact >= 0.9", "steps_to": "val/accuracy >= 0.9"}
    for kind, example in examples.items():
        value = content.get(kind)
        if value is None:
            continue
        parsed = threshold(kind, value) if isinstance(value, str) else None
        if parsed is None:
            problems.append(f"{kind}: {quote(value)} is not a metric and the value that it must reach; write {example}")
        if re.search(r"~|>=|<=", str(content.get("expect") or "")):
            problems.append(f"expect: {kind} is compared by signs, which have no interval; use > and < alone")
        return parsed
    return None


class ExternalValue(TypedDict):
    """A value from a paper or another tool: of how many runs, and their standard deviation, where that is known."""

    value: float
    source: str
    n: NotRequired[int | None]
    sd: NotRequired[float | None]


def external(content: Mapping[str, object], problems: list[str]) -> dict[str, ExternalValue] | None:
    """Figures from papers and other tools: name -> value and source, and n and sd where they are known."""
    value, form = content.get("external"), "{paper: {value: 0.91, source: Author 2020 table 2, n: 5, sd: 0.004}}"
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        problems.append(f"external: {quote(value)} is not a mapping of figures; write {form}")
        return None
    for name, figure in value.items():
        where = f"external.{name}"
        problems += [f"{where}.{key}: unknown key (keys: value, source, n, sd)" for key in figure if key not in FIGURE]
        if not is_number(figure.get("value")):
            problems.append(f"{where}.value: expected a number, not {quote(figure.get('value'))}")
        if not isinstance(figure.get("source"), str) or not figure["source"].strip():
            problems.append(f"{where}.source: missing; say where the figure is from")
        n, sd = figure.get("n"), figure.get("sd")
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            problems.append(f"{where}.n: expected a number of runs, not {quote(n)}")
        if sd is not None and (not is_number(sd) or sd < 0 or not isinstance(n, int) or n < 2):
            problems.append(f"{where}.sd: expected a standard deviation of n runs, two or more, not {quote(sd)}")
    return value


FIGURE = ("value", "source", "n", "sd")


def is_number(value: Any) -> bool:
    """Whether a value is a number that float32 holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT


def margin(content: Mapping[str, object], problems: list[str]) -> float | None:
    """The smallest difference that matters, in the metric's unit, or None."""
    value = content.get("margin")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        problems.append(f"margin: expected a number above 0 in the metric's unit, such as 0.01, not {quote(value)}")
        return None
    return float(value)


def expect(content: Mapping[str, object], names: list[str], problems: list[str]) -> str | None:
    """The expected comparisons, as text; the arms that it names must exist."""
    value = content.get("expect")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        problems.append(f"expect: {quote(value)} is not an expectation; {FORM}")
        return None
    parse_expectation(value, names, problems)
    return value.strip()
