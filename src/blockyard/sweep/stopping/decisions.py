"""Judges the comparisons of a sweep after any number of seeds: decided, and how, or open.

A comparison is a clause of `expect:`, or where the file expects nothing an arm against the baseline. It is decided as

    better, worse      the evidence of its paired differences has reached the threshold of Holm's procedure
    equivalent         the interval lies within plus and minus the margin
    not worse          of `>=`: the interval of the gain lies above minus the margin
    different          of `~`: the interval lies outside of plus and minus the margin
    worse by a margin  of `>=`: the interval of the gain lies below minus the margin
    not better         of `>`: the interval of the gain lies below the margin, and the mean is not shown to be worse
                       than zero. Evidence for `b >= a` contradicts `a > b`
    same               all seeds have the same value on both sides, and they are so many that more than half of all have

The evidence is a p of the looks so far, or an e-value, and the interval holds at all looks at once (`rule`). An
interval that leaves out the mean of its own differences is withdrawn and decides nothing.

A clause with `~` or `>=` is about the margin, so that a difference from zero alone does not contradict it. The first
decision stays, whatever more seeds say while another comparison goes on.

From the first seed on whose run diverged, a comparison is decided by the e-value of the signs alone, with such a run as
the worst: a mean over the other seeds would be one over a selection.

Error rate: the smallest p of all looks, and 1 / max e, are valid at any of them, whenever each comparison stops. So
Holm keeps the probability of a false "better" or "worse" of any comparison that is held against zero at 5 % at most.
Against the margin the m comparisons have a family of their own: each end of an interval may be wrong in 5 % / m of
sweeps, and of the two ends only one can be. "same" says nothing of differences that are rare.

A plan of an earlier release counts clauses with `~` and `>=` in Holm's family too, and halves the error of each end.

Source: Holm 1979; Maurer and Bretz 2013 (Holm with looks); Schuirmann 1987 (one end each); Vovk and Wang 2021,
E-values: calibration, combination and applications (arXiv 1912.06116).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from blockyard.sweep.spec.expectation import parse
from blockyard.sweep.stopping.evidence import (
    ALPHA,
    ROUNDING,
    UNKNOWN,
    Interval,
    anytime_p,
    holm,
    log_equal_e,
    log_sign_e,
)
from blockyard.sweep.stopping.forecast import PossibleEnds
from blockyard.sweep.stopping.rule import StoppingRule

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
EARLIER = StoppingRule()


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
    gains: gaps, positive where the first side is better
    evidence: log e, or -log p by a boundary, after each seed
    intervals: of the difference, 95 % for this comparison alone, after each seed
    p: of all looks so far
    holm_p: corrected over all comparisons that are held against zero
    threshold: the evidence at which a difference is, or was, decided
    at: the number of seeds at which the comparison was decided
    ends: the ends that it may have
    """

    comparison: ArmComparison
    seeds: tuple[int, ...]
    gaps: tuple[float, ...]
    gains: tuple[float, ...]
    evidence: tuple[float, ...]
    intervals: tuple[Interval, ...]
    p: float
    holm_p: float
    threshold: float
    outcome: Decision | None
    at: int | None
    ends: PossibleEnds

    @property
    def by_order(self) -> bool:
        """Return whether runs diverged, so that the comparison is by order alone."""
        return not all(map(math.isfinite, self.gaps))

    @property
    def interval(self) -> Interval:
        """The interval so far; without ends where it is withdrawn."""
        if not self.intervals or self.withdrawn:
            return UNKNOWN
        return self.intervals[-1]

    @property
    def withdrawn(self) -> bool:
        """True where the interval leaves out the mean of the differences."""
        return bool(self.gaps) and not self.by_order and not _holds(self.intervals[-1], self.gaps)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on a clause; None while it is open, and for an arm against the baseline."""
        if not self.comparison.sign or not self.outcome:
            return None
        return VERDICTS[self.comparison.sign][self.outcome]


def comparisons(expect: str | None, arms: Sequence[str], baseline: str | None) -> list[ArmComparison]:
    """Return the comparisons that a sweep has to decide. Raises UserError as `expectation.parse` does."""
    if expect:
        return [ArmComparison(str(claim), claim.sums, claim.sign) for claim in parse(expect, arms)]
    if baseline is None:
        return []
    return [ArmComparison(arm, ((arm,), (baseline,))) for arm in arms if arm != baseline]


def judge(
    clauses: Sequence[ArmComparison],
    values: Mapping[str, BySeed],
    seeds: Sequence[int],
    direction: str,
    margin: float | None,
    alpha: float = ALPHA,
    *,
    rule: StoppingRule = EARLIER,
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
    evidence = [_evidence(pair, rule, signs=signs) for pair in pairs]  # of each clause, after each seed
    # A clause with `~` or `>=` is about the margin, if there is one, and not about zero.
    by_zero = [margin is None or clause.sign not in ("~", ">=") for clause in clauses]
    family = by_zero
    margin_alpha = 2 * alpha / max(1, len(clauses))  # of both ends of an interval
    if rule.by is None:
        family = [True] * len(clauses)
        margin_alpha /= 2
    margins: list[_MarginTest | None] = [None] * len(clauses)
    if margin is not None:
        margins = [_MarginTest(pair, margin, alpha / len(clauses), margin_alpha, rule) for pair in pairs]
    decided: dict[int, tuple[Decision, int, float]] = {}  # clause -> decision, seeds and evidence that it took
    counts = [0] * len(clauses)  # seeds so far that all arms of a clause have
    largest = [0.0] * len(clauses)  # evidence so far
    # Holm corrects over all comparisons, so that each seed is looked at in all of them before the next one.
    for seed in seeds:
        for number, pair in enumerate(pairs):
            if counts[number] < len(pair.seeds) and pair.seeds[counts[number]] == seed:
                largest[number] = max(largest[number], evidence[number][counts[number]])
                counts[number] += 1
        ps = [anytime_p([log_e]) for log_e in largest]
        holm_ps = _holm_within(ps, family)
        for number, clause in enumerate(clauses):
            count = counts[number]
            if number in decided or count < max(1, rule.first_look):
                continue
            margin_test = margins[number]
            by_margin = None if margin_test is None else margin_test.decision(clause.sign, count)
            by_order = signs or count > pairs[number].finite
            differs = holm_ps[number] <= alpha and by_zero[number]
            # Holm rejects the k-th smallest of m at alpha / (m - k + 1).
            others = sum(other >= ps[number] for other, counted in zip(ps, family, strict=True) if counted)
            threshold = math.log(max(1, others) / alpha)
            if by_order and not by_zero[number]:  # order decides where no mean can be held against the margin
                threshold = math.log(len(clauses) / alpha)
                differs = evidence[number][count - 1] >= threshold
            if by_margin is not None and not (differs and by_margin == "not better"):
                decided[number] = (by_margin, count, threshold)
            elif differs:
                gains = pairs[number].gains[:count]
                lead = sum((gain > 0) - (gain < 0) for gain in gains) if by_order else math.fsum(gains)
                decided[number] = ("better" if lead > 0 else "worse", count, threshold)
    ps = [anytime_p(looks) for looks in evidence]
    holm_ps = _holm_within(ps, family)
    # The comparisons that stay open share alpha.
    still_open = sum(p > alpha for p, counted in zip(holm_ps, family, strict=True) if counted)
    open_threshold = math.log(max(1, still_open) / alpha)
    judgements = []
    for number, clause in enumerate(clauses):
        pair = pairs[number]
        outcome, at, threshold = decided.get(number, (None, None, open_threshold))
        intervals = [] if signs else rule.intervals(pair.gaps[: pair.finite], pair.scale, alpha)
        intervals += [UNKNOWN] * (len(pair.gaps) - len(intervals))
        judgements.append(
            Judgement(
                comparison=clause,
                seeds=pair.seeds,
                gaps=tuple(pair.gaps),
                gains=tuple(pair.gains),
                evidence=tuple(evidence[number]),
                intervals=tuple(intervals),
                p=ps[number],
                holm_p=holm_ps[number],
                threshold=threshold,
                outcome=outcome,
                at=at,
                ends=PossibleEnds(rule, clause.sign, margin, math.exp(-threshold), margin_alpha),
            )
        )
    return judgements


def _evidence(pair: _Pair, rule: StoppingRule, *, signs: bool) -> list[float]:
    """Return the evidence after each seed: by the rule, and by signs from the first seed on whose run diverged."""
    if signs:
        return rule.evidence(pair.gaps, pair.scale, signs=True)
    evidence = rule.evidence(pair.gaps[: pair.finite], pair.scale)
    if pair.finite == len(pair.gaps):
        return evidence
    if not pair.ordered:  # differences of differences have no order with a run that diverged
        return evidence + [0.0] * (len(pair.gaps) - pair.finite)
    return evidence + rule.evidence(pair.gaps, pair.scale, signs=True)[pair.finite :]


def _holm_within(ps: Sequence[float], family: Sequence[bool]) -> list[float]:
    """Return the p values, corrected by Holm where they belong to the family."""
    corrected = list(ps)
    members = [number for number, counted in enumerate(family) if counted]
    for number, p in zip(members, holm([ps[number] for number in members]), strict=True):
        corrected[number] = p
    return corrected


def _holds(interval: Interval, gaps: Sequence[float]) -> bool:
    """Return whether an interval holds the mean of the differences."""
    low, high = interval
    return low <= math.fsum(gaps) / len(gaps) <= high


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


class _MarginTest:
    """Holds a comparison against the margin after any number of seeds.

    alpha: of this comparison; both: of the two ends of its interval together
    """

    def __init__(self, pair: _Pair, margin: float, alpha: float, both: float, rule: StoppingRule) -> None:
        self._pair = pair
        self._margin = margin
        self._threshold = math.log(1 / alpha)
        self._intervals = rule.intervals(pair.gains[: pair.finite], pair.scale, both)

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
        if not _holds((low, high), gains):
            return None
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
