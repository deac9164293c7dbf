"""Conditions on runs: `position=rope`, `optimizer.lr<0.01`, `test/accuracy>=0.9`, `state=failed`, `tags=good`."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.config.override_grammar import to_text
from blockyard.config.tree import is_number
from blockyard.errors import UserError, did_you_mean
from blockyard.runs.record import RunRecord

_CONDITION = re.compile(r"(?P<key>[^<>=!]+)(?P<sign><=|>=|!=|=|<|>)(?P<value>.*)", re.S)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A key, one of = != < > <= >=, and the text that its value is compared with."""

    key: str
    sign: str
    text: str

    def holds(self, record: RunRecord) -> bool:
        """Return whether a run meets it; a run without the key meets only `!=`."""
        value = record.value(self.key)
        if self.sign in _ORDER:
            return is_number(value) and _ORDER[self.sign](value, float(self.text))
        # A list is equal to the text of any of its items, and to its own text.
        values = [*value, value] if isinstance(value, list | tuple) else [value]
        is_equal = any(self._equals(candidate) for candidate in values)
        return is_equal == (self.sign == "=")

    def _equals(self, value: Any) -> bool:
        if value is None:
            return self.text in ("", "null", "none")
        if isinstance(value, bool):
            return self.text.lower() == str(value).lower()
        number = _number(self.text)
        if is_number(value) and number is not None:
            return bool(value == number)
        if isinstance(value, list | tuple):  # as a whole
            return to_text(list(value)) == self.text.replace(" ", "")
        return fnmatch.fnmatchcase(str(value), self.text.replace("[", "[[]"))  # * and ? stand for letters, [ for itself


def parse(text: str) -> Condition:
    """Return a condition from the command line. A bare word asks for runs with it in their name. Raises UserError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        return Condition("run", "=", f"*{text}*")
    condition = Condition(match["key"].strip(), match["sign"], match["value"].strip())
    if condition.sign in _ORDER and _number(condition.text) is None:
        raise UserError(f"{text}: {condition.sign} compares with a number, not {condition.text!r}")
    return condition


def select(records: Sequence[RunRecord], conditions: Sequence[Condition]) -> list[RunRecord]:
    """Return the runs that meet every condition, in their order. Raises UserError for a key that no run has."""
    check_keys(records, [condition.key for condition in conditions])
    return [record for record in records if all(condition.holds(record) for condition in conditions)]


def check_keys(records: Sequence[RunRecord], keys: Sequence[str]) -> None:
    """Raise UserError for a key that none of the runs has."""
    for key in keys:
        if records and not any(key in record.keys for record in records):
            keys_of_runs = set().union(*(record.keys for record in records))
            raise UserError(
                f"{key}: no run has it{did_you_mean(key, sorted(keys_of_runs))} (a fact, metric, family or option)"
            )


def ordered(records: Sequence[RunRecord], key: str, *, descending: bool) -> list[RunRecord]:
    """Return the runs sorted by a key, numbers before texts and runs without it last. Equal ones keep their order."""

    def rank(record: RunRecord) -> tuple[int, Any]:
        value = record.value(key)
        if is_number(value):
            return 0, float(value)
        return 1, str(value)

    with_key = [record for record in records if record.value(key) is not None]
    without_key = [record for record in records if record.value(key) is None]
    return [*sorted(with_key, key=rank, reverse=descending), *without_key]


def direction(records: Sequence[RunRecord], metric: str) -> str:
    """Return the better direction of a metric, max or min, by the runs. Raises UserError if none has it."""
    for record in records:
        if record.directions.get(metric) in ("max", "min"):
            return record.directions[metric]
    metrics = sorted({name for record in records for name in record.directions})
    raise UserError(
        f"--best {metric}: no run says whether more of it is better{did_you_mean(metric, metrics)}; "
        f"--sort {metric} or --sort=-{metric} orders by any key"
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
