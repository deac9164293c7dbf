"""The plain keys of a sweep file, one function each: the value, with problems appended."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from blockyard.errors import near
from blockyard.sweep.spec import override_text

_METRIC = re.compile(r"(test|val)/[A-Za-z_][\w./@-]*")
_EXPECT = re.compile(r"\s*(>=|<=|>|<|~)\s*")


def text(content: dict[str, Any], key: str, problems: list[str]) -> str | None:
    """A text, or None where it may be left out and is."""
    value = content.get(key)
    if value is None and key != "claim":
        return None
    if key in content and not (isinstance(value, str) and value.strip()):
        problems.append(f"{key}: {override_text.shown(value)} is no text")
        return None
    return value.strip() if isinstance(value, str) else None


def base(value: Any, problems: list[str]) -> tuple[str, ...]:
    """The overrides that all arms share."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(
            f"base: {override_text.shown(value)} is no list of overrides; write [experiment=vit_digits, ...]"
        )
        return ()
    found = [problem for item in value if (problem := override_text.problem(item, "base"))]
    problems += found
    return () if found else tuple(value)


def baseline(content: dict[str, Any], names: list[str], problems: list[str]) -> str | None:
    """The arm that is named to compare with."""
    value = content.get("baseline")
    if value is None:
        return None
    if not names or value in names:
        return str(value)
    problems.append(f"baseline: {no_arm(value, names)}")
    return None


def no_arm(value: Any, names: list[str]) -> str:
    """What to say of an arm that is not there."""
    nearest = near(str(value), names)
    hint = f"; nearest: {nearest[0]}" if nearest else ""
    listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"there is no arm {override_text.shown(value)}{hint} (arms: {listed})"


def one_of(content: dict[str, Any], key: str, legal: Sequence[str], problems: list[str]) -> str | None:
    """One of a few words, or None."""
    value = content.get(key)
    if value is None or value in legal:
        return value
    hint = "".join(f"; nearest: {word}" for word in near(str(value), legal)[:1])
    problems.append(f"{key}: {override_text.shown(value)} is none of {', '.join(legal)}{hint}")
    return None


def metric(content: dict[str, Any], tuned: bool, problems: list[str]) -> str | None:
    """The metric that is reported, or None for the objective's own."""
    value = content.get("metric")
    if value is None:
        return None
    if not isinstance(value, str) or not _METRIC.fullmatch(value):
        problems.append(
            f"metric: {override_text.shown(value)} names no metric; write test/NAME, such as test/accuracy or test/loss"
        )
        return None
    if tuned and value.startswith("val/"):
        problems.append(f"metric: {value} chooses the settings, so it cannot judge them too; report test/{value[4:]}")
    return value


def margin(content: dict[str, Any], problems: list[str]) -> float | None:
    """The smallest difference that matters, in the metric's unit, or None."""
    value = content.get("margin")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        problems.append(
            f"margin: {override_text.shown(value)} is no difference; give a number above 0 "
            "in the metric's unit, such as 0.01"
        )
        return None
    return float(value)


def expect(content: dict[str, Any], names: list[str], problems: list[str]) -> str | None:
    """What is expected; the arms that it names must be there."""
    value = content.get("expect")
    if value is None:
        return None
    form = 'write "a > b", "a >= b" or "a ~ b" (no difference), joined by `and`'
    if not isinstance(value, str) or not value.strip():
        problems.append(f"expect: {override_text.shown(value)} is no expectation; {form}")
        return None
    for part in re.split(r"\s+and\s+", value.strip()):
        terms = _EXPECT.split(part)
        arms = [term.strip() for term in terms[::2]]
        if len(arms) < 2 or not all(arms):
            problems.append(f"expect: {override_text.shown(part)} compares nothing; {form}")
        elif names:
            problems += [f"expect: {no_arm(arm, names)}" for arm in dict.fromkeys(arms) if arm not in names]
        if any(left and left == right for left, right in itertools.pairwise(arms)):
            problems.append(f"expect: {override_text.shown(part)} compares an arm with itself; {form}")
    return value.strip()
