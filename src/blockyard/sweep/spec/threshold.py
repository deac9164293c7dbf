"""Outcomes of whole runs: whether a run has solved its task, and how long it took.

    success: test/exact >= 0.9        1 or 0 for each run, whose rates are compared
    steps_to: val/accuracy >= 0.9     the step of the first evaluation that says so
    seconds_to, tokens_to, flops_to   likewise, the seconds, tokens and FLOPs of training until then

Where runs either solve a task or do not, a mean of accuracies says little. Both are compared by signs: on how many
seeds one arm is ahead of the other (McNemar's exact test for rates; for lengths, the log-rank test with each seed as a
stratum compares within each pair which run is first, and its exact form is the same test).

Source: McNemar 1947; Mantel 1966 and Peto and Peto 1972 (log-rank); for pairs as strata, Kalbfleisch and Prentice 2002,
The Statistical Analysis of Failure Time Data, sec. 8.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from blockyard.runs.metrics import FILE, read_metrics

FORM = re.compile(r"((?:test|val)/[A-Za-z_][\w./@-]*)\s*(>=|<=)\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)")
# Metrics are computed in single precision, in which 450 of 500 is a little less than 0.9.
_ROUNDING = 1e-6

Kind = Literal["success", "steps_to", "seconds_to", "tokens_to", "flops_to"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Key = TypeVar("Key")  # of a run
_NAME = re.compile(rf"({'|'.join(KINDS)})\((.*)\)")


@dataclass(frozen=True)
class Unit:
    """A measure of how long a run has trained.

    one: its name for one; column: of metrics.csv; factor: a cost of the run by which the column is multiplied, or None
    """

    one: str
    column: str
    factor: str | None = None

    def of_row(self, row: Mapping[str, float], costs: Mapping[str, float]) -> float | None:
        """Return the length of a run at a row of its metrics; None where it is not recorded."""
        length = row.get(self.column)
        if length is None or self.factor is None:
            return length
        factor = costs.get(self.factor)
        return None if factor is None else length * factor


STEPS = Unit("step", "step")
SECONDS = Unit("second", "seconds")
UNITS: dict[str, Unit] = {
    "steps_to": STEPS,
    "seconds_to": SECONDS,
    "tokens_to": Unit("token", "tokens"),
    "flops_to": Unit("FLOP", "samples", factor="flops_per_sample"),
}


@dataclass(frozen=True)
class Threshold:
    """A metric and a value that it has to reach. Its text names the metric that is made of it."""

    kind: Kind
    metric: str
    sign: Literal[">=", "<="]
    value: float

    @property
    def direction(self) -> str:
        """The better direction of the outcome: more successes, a shorter training."""
        return "max" if self.kind == "success" else "min"

    def __str__(self) -> str:
        value = f"{self.value:g}"
        if float(value) != self.value:
            value = repr(self.value)  # in the fewest digits that are read as the same number
        return f"{self.kind}({self.metric} {self.sign} {value})"

    def reached(self, value: float) -> bool:
        """Return whether a value of the metric reaches the threshold, within the rounding of single precision."""
        slack = _ROUNDING * max(abs(value), abs(self.value))
        if self.sign == ">=":
            return value >= self.value - slack
        return value <= self.value + slack

    def outcomes(
        self, runs: Mapping[Key, tuple[Mapping[str, float], Path]], diverged: Collection[Key] = ()
    ) -> dict[Key, float]:
        """Return the outcomes of finished runs. Runs without the metric are missing.

        Runs that never reach the threshold are level, one step, second, token or FLOP after the longest run of all:
        they come after every run that reaches it, wherever they stopped.

        runs: the metrics and costs of each and its folder, whose metrics.csv has the evaluations
        diverged: runs that ended because a number was not finite; they never reach the threshold
        """
        if self.kind == "success":
            successes = dict.fromkeys(diverged, 0.0)
            for key, (metrics, _) in runs.items():
                value = metrics.get(self.metric)
                if value is not None and math.isfinite(value):
                    successes[key] = float(self.reached(value))
            return successes
        lengths = {key: pair for key, (costs, run) in runs.items() if (pair := self._lengths(run, costs))}
        longest = max((whole for _, whole in lengths.values()), default=0.0)
        # Not `longest + 1` alone, which is `longest` again for very many FLOPs.
        never = max(longest + 1, math.nextafter(longest, math.inf))
        outcomes = dict.fromkeys(diverged, never)
        for key, (first, _) in lengths.items():
            outcomes[key] = never if first is None else first
        return outcomes

    def _lengths(self, run: Path, costs: Mapping[str, float]) -> tuple[float | None, float] | None:
        """Return the length of a run until it reaches the threshold, None if it never does, and the whole length.

        None where the run has no such metric, or has not recorded its length.
        """
        unit = UNITS[self.kind]
        try:
            recorded = read_metrics(run / FILE)
        except OSError:
            return None
        whole = max((length for row in recorded if (length := unit.of_row(row, costs)) is not None), default=None)
        evaluated = [row for row in recorded if self.metric in row]
        if not evaluated or whole is None:
            return None
        for row in evaluated:
            if self.reached(row[self.metric]):
                length = unit.of_row(row, costs)
                return None if length is None else (float(length), float(whole))
        return None, float(whole)


def threshold(kind: Kind, text: str) -> Threshold | None:
    """Return the threshold of a text such as `test/exact >= 0.9`; None for a text of another form."""
    match = FORM.fullmatch(text.strip())
    if match is None or (kind in UNITS and not match[1].startswith("val/")):
        return None
    return Threshold(kind, match[1], match[2], float(match[3]))  # type: ignore[arg-type]


def of_metric(name: str | None) -> Threshold | None:
    """Return the threshold that a metric's name contains; None for a metric that runs record themselves."""
    match = _NAME.fullmatch(name or "")
    return threshold(match[1], match[2]) if match else None  # type: ignore[arg-type]
