"""Judges the comparisons of a sweep after any number of seeds: decided, and how, or open.

A comparison is a clause of `expect:`, or where the file expects nothing an arm against the baseline. It is decided as

    better, worse      the e-value of the mean of its paired differences has reached the threshold of Holm's procedure
    equivalent         the confidence sequence lies within plus and minus the margin
    not worse          of `>=`: the confidence sequence of the gain lies above minus the margin
    different          of `~`: the confidence sequence lies outside of plus and minus the margin
    worse by a margin  of `>=`: the confidence sequence of the gain lies below minus the margin
    not better         of `>`: the confidence sequence of the gain lies below the margin, and the mean is not shown to
                       be worse than zero. Evidence for `b >= a` contradicts `a > b`
    same               all seeds have the same value on both sides, and they are so many that more than half of all have

A clause with `~` or `>=` is about the margin, so that a difference from zero alone does not contradict it, and it has
no part in Holm's procedure. The first decision stays, whatever more seeds say while another comparison goes on.

From the first seed on whose run diverged, a comparison is decided by the e-value of the signs alone, with such a run as
the worst: a mean over the other seeds would be one over a selection.

Error rate: p = 1 / max e is valid at any number of seeds, whenever each comparison stops. So Holm keeps the probability
of a false "better" or "worse" of any comparison at 5 % at most. Intervals that are held against the margin have
1 - 5 % / m for m comparisons, with half of the error at each end. "same" says nothing of differences that are rare.

Source: Holm 1979; Vovk and Wang 2021, E-values: calibration, combination and applications (arXiv 1912.06116).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from blockyard.sweep.spec.expectation import Claim, parse
from blockyard.sweep.stopping.evidence import (
    ALPHA,
    ROUNDING,
    UNKNOWN,
    Interval,
    anytime_p,
    confidence_sequence,
    holm,
    log_e_values,
    log_equal_e,
    log_sign_e,
)

Decision = Literal["better", "worse", "equivalent", "not worse", "different", "worse by a margin", "not better", "same"]
Verdict = Literal["supported", "contradicted"]
# The verdict on a clause by its sign and the decision. `>` claims a difference that matters, so a smaller one
# contradicts it. Without a margin, as for outcomes of whole runs, only better and worse bear on `~` and `>=`.
VERDICTS: dict[str, dict[Decision, Verdict]] = {
    ">": {
        "better": "supported",
        "worse": "contradicted",
        "equivalent": "contradicted",
        "not better": "contradicted",
        "same": "contradicted",
    },
    ">=": {
        "better": "supported",
        "worse": "contradicted",
        "equivalent": "supported",
        "not worse": "supported",
        "worse by a margin": "contradicted",
        "same": "supported",
    },
    "~": {
        "better": "contradicted",
        "worse": "contradicted",
        "equivalent": "supported",
        "different": "contradicted",
        "same": "supported",
    },
}
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class ArmComparison:
    """The two sides of a comparison.

    name: the comparison as it is written
    sides: sums of arms, each of one arm except in a contrast
    sign: of the claim; None for an arm against the baseline
    """

    name: str
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    sign: str | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm of the comparison, once."""
        return tuple(dict.fromkeys((*self.sides[0], *self.sides[1])))


@dataclass(frozen=True)
class Judgement:
    """The evidence of some seeds on a comparison, and its decision.

    seeds: the seeds on which the runs of all its arms have ended, in order
    gaps: differences of the metric, first side minus second; infinite where the run of one side diverged, NaN where
        the runs of both did
    log_e: after each seed
    intervals: of the difference, 95 % for this comparison alone, after each seed
    p: 1 / max e
    holm_p: corrected over all comparisons
    threshold: log e at which a difference is, or was, decided
    at: the number of seeds at which the comparison was decided
    """

    comparison: ArmComparison
    seeds: tuple[int, ...]
    gaps: tuple[float, ...]
    log_e: tuple[float, ...]
    intervals: tuple[Interval, ...]
    p: float
    holm_p: float
    threshold: float
    outcome: Decision | None
    at: int | None

    @property
    def by_order(self) -> bool:
        """Return whether runs diverged, so that the comparison is by order alone."""
        return not all(map(math.isfinite, self.gaps))

    @property
    def interval(self) -> Interval:
        """The confidence sequence so far."""
        return self.intervals[-1] if self.intervals else UNKNOWN

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on a clause; None while it is open, and for an arm against the baseline."""
        if not self.comparison.sign or not self.outcome:
            return None
        return VERDICTS[self.comparison.sign][self.outcome]


def comparisons(expect: str | None, arms: Sequence[str], baseline: str | None) -> list[ArmComparison]:
    """Return the comparisons that a sweep has to decide. Raises UserError as `expectation.parse` does."""
    if expect:
        return [_of_claim(claim) for claim in parse(expect, arms)]
    if baseline is None:
        return []
    return [ArmComparison(arm, ((arm,), (baseline,))) for arm in arms if arm != baseline]


def _of_claim(claim: Claim) -> ArmComparison:
    if claim.minus is None:
        return ArmComparison(str(claim), ((claim.arm,), (claim.other,)), claim.sign)
    # (a - b) - (c - d) = (a + d) - (b + c): sums are as large as the metric, whose rounding then sets the scale.
    b, d = claim.minus
    return ArmComparison(str(claim), ((claim.arm, d), (b, claim.other)), claim.sign)


def judge(
    clauses: Sequence[ArmComparison],
    values: Mapping[str, BySeed],
    seeds: Sequence[int],
    direction: str,
    margin: float | None,
    alpha: float = ALPHA,
    *,
    signs: bool = False,
) -> list[Judgement]:
    """Return the judgement of each comparison.

    values: arm -> seed -> value, not finite for a run that diverged
    seeds: in the order in which they are added
    margin: the smallest difference that matters, in the metric's unit; None: no comparison ends as equivalent
    signs: compare the outcomes by their order alone, as for a `spec.threshold`
    """
    if signs:
        margin = None
    pairs = [_pair(clause, values, seeds, direction) for clause in clauses]
    log_es: list[list[float]] = []  # of each clause, after each seed
    for pair in pairs:
        by_mean = 0 if signs else pair.finite
        log_e = log_e_values(pair.gaps[:by_mean], pair.scale)
        for count in range(by_mean + 1, len(pair.gaps) + 1):
            # Differences of differences have no order with a run that diverged.
            log_e.append(log_sign_e(pair.gaps[:count], pair.scale) if pair.ordered else 0.0)
        log_es.append(log_e)
    # A clause about the margin is not tested against zero, so that it takes nothing of the error of these tests.
    tested = [number for number, clause in enumerate(clauses) if margin is None or clause.sign not in ("~", ">=")]
    margins = [None if margin is None else _MarginTest(pair, margin, alpha / len(clauses)) for pair in pairs]
    decided: dict[int, tuple[Decision, int, float]] = {}  # clause -> decision, seeds that it took, log e that it took
    counts = [0] * len(clauses)  # seeds so far that all arms of a clause have
    largest = [0.0] * len(clauses)  # log e so far
    # Holm corrects over all comparisons, so that each seed is looked at in all of them before the next one.
    for seed in seeds:
        for number, pair in enumerate(pairs):
            if counts[number] < len(pair.seeds) and pair.seeds[counts[number]] == seed:
                largest[number] = max(largest[number], log_es[number][counts[number]])
                counts[number] += 1
        ps = [anytime_p([log_e]) for log_e in largest]
        holm_ps = _corrected(ps, tested)
        for number, clause in enumerate(clauses):
            count = counts[number]
            if number in decided or not count:
                continue
            margin_test = margins[number]
            by_margin = None if margin_test is None else margin_test.decision(clause.sign, count)
            # A clause with `~` or `>=` is about the margin, if there is one, and not about zero.
            by_zero = holm_ps[number] <= alpha and number in tested
            # Holm rejects the k-th smallest of m at alpha / (m - k + 1).
            threshold = math.log(max(1, sum(ps[other] >= ps[number] for other in tested)) / alpha)
            by_order = signs or count > pairs[number].finite
            if number not in tested and by_order:  # order decides it where there is no mean to hold against the margin
                threshold = math.log(len(clauses) / alpha)
                by_zero = log_es[number][count - 1] >= threshold
            if by_margin is not None and not (by_zero and by_margin == "not better"):
                decided[number] = (by_margin, count, threshold)
            elif by_zero:
                decided[number] = (_side_ahead(pairs[number].gains[:count], signs=by_order), count, threshold)
    ps = [anytime_p(values_of_clause) for values_of_clause in log_es]
    holm_ps = _corrected(ps, tested)
    # The comparisons that stay open share alpha.
    open_threshold = math.log(max(1, sum(holm_ps[number] > alpha for number in tested)) / alpha)
    judgements = []
    for number, clause in enumerate(clauses):
        pair = pairs[number]
        outcome, at, threshold = decided.get(number, (None, None, open_threshold))
        intervals = [] if signs else confidence_sequence(pair.gaps[: pair.finite], pair.scale, alpha)
        intervals += [UNKNOWN] * (len(pair.gaps) - len(intervals))
        judgements.append(
            Judgement(
                comparison=clause,
                seeds=pair.seeds,
                gaps=tuple(pair.gaps),
                log_e=tuple(log_es[number]),
                intervals=tuple(intervals),
                p=ps[number],
                holm_p=holm_ps[number],
                threshold=threshold,
                outcome=outcome,
                at=at,
            )
        )
    return judgements


def _corrected(ps: Sequence[float], tested: Sequence[int]) -> list[float]:
    """Return Holm's p of the tested comparisons, corrected over these alone; of the others, their own p."""
    result = list(ps)
    for number, p in zip(tested, holm([ps[number] for number in tested]), strict=True):
        result[number] = p
    return result


@dataclass(frozen=True)
class _Pair:
    """The values of a comparison on the seeds that all its arms have.

    gaps: first side minus second; infinite where the run of one side diverged, NaN where the runs of both did
    gains: gaps, positive where the first side is better
    scale: the size of the metric's values
    ordered: whether each side is one arm, whose runs have an order
    """

    seeds: tuple[int, ...]
    gaps: list[float]
    gains: list[float]
    scale: float
    ordered: bool

    @property
    def finite(self) -> int:
        """The number of seeds before the first one on which a run diverged."""
        return next((count for count, gap in enumerate(self.gaps) if not math.isfinite(gap)), len(self.gaps))


def _pair(clause: ArmComparison, values: Mapping[str, BySeed], seeds: Sequence[int], direction: str) -> _Pair:
    common: list[int] = []
    gaps: list[float] = []
    scale = 0.0
    for seed in seeds:
        if any(seed not in values.get(arm, {}) for arm in clause.arms):
            continue
        first, second = (math.fsum(values[arm][seed] for arm in side) for side in clause.sides)
        common.append(seed)
        if math.isfinite(first) and math.isfinite(second):
            gaps.append(first - second)
            scale = max(scale, abs(first), abs(second))
            continue
        gap = math.nan
        if math.isfinite(first) != math.isfinite(second):
            gap = math.inf if math.isfinite(first) == (direction == "max") else -math.inf
        gaps.append(gap)
    gains = gaps if direction == "max" else [-gap for gap in gaps]
    return _Pair(tuple(common), gaps, gains, scale, ordered=len(clause.sides[0]) == 1)


def _side_ahead(gains: Sequence[float], *, signs: bool) -> Decision:
    """Return which side is ahead: in the mean of the gains, or with `signs` on more seeds."""
    lead = sum((gain > 0) - (gain < 0) for gain in gains) if signs else math.fsum(gains)
    return "better" if lead > 0 else "worse"


class _MarginTest:
    """Holds a comparison against the margin after any number of seeds.

    alpha: of this comparison
    """

    def __init__(self, pair: _Pair, margin: float, alpha: float) -> None:
        self._pair = pair
        self._margin = margin
        self._threshold = math.log(1 / alpha)
        self._intervals = confidence_sequence(pair.gains[: pair.finite], pair.scale, alpha)

    def decision(self, sign: str | None, count: int) -> Decision | None:
        """Return the decision on a comparison with this sign after `count` seeds; None while it is open.

        None, too, from the first seed on whose run diverged: no mean is left to hold against the margin.
        """
        if count > len(self._intervals):
            return None
        gains = self._pair.gains[:count]
        scale = self._pair.scale
        margin = self._margin
        if log_equal_e(gains, scale) >= self._threshold:
            return "same"
        low, high = self._intervals[count - 1]
        constant = max(gains) - min(gains) <= ROUNDING * scale
        if constant and log_sign_e(gains, scale) >= self._threshold:
            low = high = gains[0]  # equal differences have no deviation, so only their number says how sure they are
        if -margin < low and high < margin:
            return "equivalent"
        if sign == ">=" and low > -margin:
            return "not worse"
        if sign == ">=" and high <= -margin:
            return "worse by a margin"
        if sign == ">" and high < margin:
            return "not better"
        if sign == "~" and (low >= margin or high <= -margin):
            return "different"
        return None
