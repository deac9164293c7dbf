"""The rule by which a sweep decides: after which seeds it looks, and by which evidence.

    boundary   of a t test, for a largest number of seeds that was fixed before the first one ran (`boundary`)
    e-values   for any number of seeds, also one that grows with the results (`evidence`)

The rule is part of the plan, `until: {first, most, by}`. A plan of an earlier release has no `by`: e-values, with looks
at two seeds and more whatever `first` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockyard.sweep.stopping import boundary
from blockyard.sweep.stopping.evidence import (
    ROUNDING,
    UNKNOWN,
    Interval,
    confidence_sequence,
    log_e_values,
    log_sign_e,
    radius,
)

if TYPE_CHECKING:
    from blockyard.sweep.spec.keys import By

UNNAMED = 3  # seeds of an arm that no clause of `expect` names


@dataclass(frozen=True)
class StoppingRule:
    """The number of seeds after which a sweep looks, and the evidence by which it decides.

    by: None for a plan of an earlier release
    first, most: the numbers of seeds before the first look and after the last one
    """

    by: By | None = None
    first: int = 2
    most: int = 200

    @classmethod
    def of(cls, until: Mapping[str, Any]) -> StoppingRule:
        """Return the rule in a plan's `until`."""
        by = until.get("by")
        if by is None:
            return cls()
        return cls(by, int(until["first"]), int(until["most"]))

    @property
    def first_look(self) -> int:
        """The number of seeds of the first look."""
        if self.by == "boundary":
            return boundary.first_look(self.first, self.most)
        return self.first

    def evidence(self, gaps: Sequence[float], scale: float, *, signs: bool = False) -> list[float]:
        """Return log e, or -log p by a boundary, against no difference after each of the differences.

        It is 0 before the first look.

        scale: of the metric's values; signs: compare by signs alone, for which there are e-values only
        """
        if signs:
            logs = [log_sign_e(gaps[: n + 1], scale) for n in range(len(gaps))]
        elif self.by == "boundary":
            logs = self._log_ps(gaps, scale)
        else:
            logs = log_e_values(gaps, scale)
        before = min(self.first_look - 1, len(logs))
        return [0.0] * before + logs[before:]

    def _log_ps(self, gaps: Sequence[float], scale: float) -> list[float]:
        """Return -log p of a look after each of the differences; of equal differences the e-value of their signs."""
        logs = [0.0] * len(gaps)
        ts: dict[int, float] = {}
        for n in range(self.first_look, len(gaps) + 1):
            seen = gaps[:n]
            if max(seen) - min(seen) <= ROUNDING * scale:
                logs[n - 1] = log_sign_e(seen, scale)
            else:
                mean = math.fsum(seen) / n
                squares = math.fsum((gap - mean) ** 2 for gap in seen)
                ts[n] = mean / math.sqrt(squares / (n * (n - 1)))
        if ts:
            log_ps = boundary.look_log_ps(list(ts.values()), list(ts), self.first, self.most)
            for n, log_p in zip(ts, log_ps, strict=True):
                logs[n - 1] = -log_p
        return logs

    def intervals(self, gaps: Sequence[float], scale: float, alpha: float) -> list[Interval]:
        """Return the interval of the mean after each of the differences; they all hold at once.

        By a boundary they are repeated confidence intervals, else a confidence sequence. Without ends before the first
        look, and while the differences are equal.
        """
        if self.by != "boundary":
            return confidence_sequence(gaps, scale, alpha, self.first_look)
        intervals = []
        for n in range(1, len(gaps) + 1):
            seen = gaps[:n]
            if n < self.first_look or max(seen) - min(seen) <= ROUNDING * scale:
                intervals.append(UNKNOWN)
                continue
            mean = math.fsum(seen) / n
            half = self.radius(n, math.fsum((gap - mean) ** 2 for gap in seen), alpha)
            intervals.append((mean - half, mean + half))
        return intervals

    def radius(self, n: int, squares: float, alpha: float) -> float:
        """Return half the width of the interval at n differences. squares: of their distances from their mean, summed

        A difference is decided at a level where this interval leaves out zero.
        """
        if self.by == "boundary":
            return boundary.critical_t(n, alpha, self.first, self.most) * math.sqrt(squares / (n * (n - 1)))
        return radius(n, squares, alpha)
