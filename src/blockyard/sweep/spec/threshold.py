"""Outcomes of whole runs: whether a run has solved its task, and how many steps it took.

    success: test/exact >= 0.9        1 or 0 for each run, whose rates are compared
    steps_to: val/accuracy >= 0.9     the first step at which an evaluation says so

Where runs either solve a task or do not, a mean of accuracies says little. Both are compared by signs: on how many
seeds one arm is ahead of the other (McNemar's exact test for rates; for steps, the log-rank test with each seed as a
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
from typing import Literal, TypeVar

from blockyard.runs.metrics import FILE, read_metrics

FORM = re.compile(r"((?:test|val)/[A-Za-z_][\w./@-]*)\s*(>=|<=)\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)")
# Metrics are computed in single precision, in which 450 of 500 is a little less than 0.9.
_ROUNDING = 1e-6
_NAME = re.compile(r"(success|steps_to)\((.*)\)")

Kind = Literal["success", "steps_to"]
Key = TypeVar("Key")  # of a run


@dataclass(frozen=True)
class Threshold:
    """A metric and a value that it has to reach. Its text names the metric that is made of it."""

    kind: Kind
    metric: str
    sign: Literal[">=", "<="]
    value: float

    @property
    def direction(self) -> str:
        """The better direction of the outcome: more successes, fewer steps."""
        return "max" if self.kind == "success" else "min"

    def __str__(self) -> str:
        return f"{self.kind}({self.metric} {self.sign} {_text(self.value)})"

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

        Runs that never reach the threshold are level, one step after the longest run of all: they come after every run
        that reaches it, wherever they stopped.

        runs: the metrics of each and its folder, whose metrics.csv has the evaluations
        diverged: runs that ended because a number was not finite; they never reach the threshold
        """
        if self.kind == "success":
            successes = dict.fromkeys(diverged, 0.0)
            for key, (metrics, _) in runs.items():
                value = metrics.get(self.metric)
                if value is not None and math.isfinite(value):
                    successes[key] = float(self.reached(value))
            return successes
        steps = {key: pair for key, (_, run) in runs.items() if (pair := self._steps(run))}
        never = max((last for _, last in steps.values()), default=0.0) + 1
        outcomes = dict.fromkeys(diverged, never)
        for key, (first, _) in steps.items():
            outcomes[key] = never if first is None else first
        return outcomes

    def _steps(self, run: Path) -> tuple[float | None, float] | None:
        """Return the first step that reaches the threshold, None if none does, and the last step of a run.

        None where the run has no such metric.
        """
        try:
            recorded = read_metrics(run / FILE)
        except OSError:
            return None
        evaluated = [row for row in recorded if self.metric in row]
        if not evaluated:
            return None
        first = next((float(row["step"]) for row in evaluated if self.reached(row[self.metric])), None)
        return first, float(recorded[-1]["step"])


def _text(value: float) -> str:
    """Return a value in the fewest digits that are read as the same number."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def threshold(kind: Kind, text: str) -> Threshold | None:
    """Return the threshold of a text such as `test/exact >= 0.9`; None for a text of another form."""
    match = FORM.fullmatch(text.strip())
    if match is None or (kind == "steps_to" and not match[1].startswith("val/")):
        return None
    return Threshold(kind, match[1], match[2], float(match[3]))  # type: ignore[arg-type]


def of_metric(name: str | None) -> Threshold | None:
    """Return the threshold that a metric's name contains; None for a metric that runs record themselves."""
    match = _NAME.fullmatch(name or "")
    return threshold(match[1], match[2]) if match else None  # type: ignore[arg-type]
