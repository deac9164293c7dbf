"""Judges the comparisons of a sweep after any number of seeds: decided, and how, or open.

A comparison is a clause of `expect:`, or where the file expects nothing an arm against the baseline. It is decided as

    better, worse      the e-value of the mean of its paired differences has reached what Holm's procedure asks for
    equivalent         the confidence sequence lies within plus and minus the margin
    not worse          of `>=`: the confidence sequence of the gain lies above minus the margin
    different          of `~`: the confidence sequence lies outside of plus and minus the margin
    worse by a margin  of `>=`: the confidence sequence of the gain lies below minus the margin
    not better         of `>`: the confidence sequence of the gain lies below the margin, and the mean is not shown to
                       be worse than zero. `a > b` is contradicted by what supports `b >= a`
    same               all seeds have the same value on both sides, and they are so many that more than half of all have

A clause with `~` or `>=` is about the margin, so that a difference from zero alone does not contradict it. What is
decided first stays, whatever more seeds say while another comparison goes on.

Error rate: p = 1 / max e is valid at any number of seeds, whenever each comparison stops, so that Holm keeps the
probability of a false "better" or "worse" of any comparison at 5 % at most; intervals that are held against the margin
have 1 - 5 % / m for m comparisons, with half of that at each end. "same" says nothing of differences that are rare.

Source: Holm 1979; Vovk and Wang 2021, E-values: calibration, combination and applications (arXiv 1912.06116).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
# What a decision means for a clause. A difference that matters was claimed by `>`, so less than that contradicts it.
# Without a margin, as for outcomes of whole runs, `~` and `>=` can be held against better and worse alone.
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
    """What is compared with what. sides: sums of arms, of one arm each except in a contrast; name: as it is written.

    sign: of the claim; None for an arm against the baseline
    """

    name: str
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    sign: str | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm that it needs, once."""
        return tuple(dict.fromkeys((*self.sides[0], *self.sides[1])))


@dataclass(frozen=True)
class Judgement:
    """What so many seeds say about a comparison. The gain is the difference, positive where the first side is better.

    seeds: those that all its arms have, in order; gaps: differences as the metric has them, not gains
    log_e: after each seed; intervals: of the difference, 95 % for this comparison alone, after each seed
    p: 1 / max e; holm_p: corrected over all comparisons
    threshold: log e that a difference takes, or took; at: the number of seeds at which it was decided
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
    def interval(self) -> Interval:
        """The confidence sequence so far."""
        return self.intervals[-1] if self.intervals else UNKNOWN

    @property
    def verdict(self) -> Verdict | None:
        """Of a clause; None while it is open, and for an arm against the baseline."""
        return VERDICTS[self.comparison.sign][self.outcome] if self.comparison.sign and self.outcome else None


def comparisons(expect: str | None, arms: Sequence[str], baseline: str | None) -> list[ArmComparison]:
    """Return what a sweep has to decide. Raises UserError as `expectation.parse` does."""
    if expect:
        return [_of_claim(claim) for claim in parse(expect, arms)]
    return [ArmComparison(arm, ((arm,), (str(baseline),))) for arm in arms if baseline is not None and arm != baseline]


def _of_claim(claim: Claim) -> ArmComparison:
    if claim.minus is None:
        return ArmComparison(str(claim), ((claim.arm,), (claim.other,)), claim.sign)
    b, d = claim.minus  # (a - b) - (c - d) = (a + d) - (b + c), whose terms are as large as the metric
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

    values: arm -> seed -> finite value; seeds: in the order in which they are given out
    margin: the smallest difference that matters, in the metric's unit; None: no comparison ends as equivalent
    signs: whether the outcomes are compared by their order alone, as those of `spec.threshold` are
    """
    paired = [_pair(one, values, seeds) for one in clauses]
    if signs:
        margin = None
        es = [[log_sign_e(gaps[: n + 1], scale) for n in range(len(gaps))] for _, gaps, scale in paired]
    else:
        es = [log_e_values(gaps, scale) for _, gaps, scale in paired]
    ends = [_margin_ends(gaps, scale, margin, alpha / len(clauses), direction) for _, gaps, scale in paired]
    decided: dict[
        int, tuple[Decision, int, float]
    ] = {}  # clause -> how, from how many seeds on, and log e that it took
    counts, most = [0] * len(clauses), [0.0] * len(clauses)  # seeds so far that all arms have, and the largest log e
    for seed in seeds:
        for number, (common, _, _) in enumerate(paired):
            if counts[number] < len(common) and common[counts[number]] == seed:
                most[number] = max(most[number], es[number][counts[number]])
                counts[number] += 1
        ps = [anytime_p([log_e]) for log_e in most]
        rejected = [holm_p <= alpha for holm_p in holm(ps)]
        for number, (one, n) in enumerate(zip(clauses, counts, strict=True)):
            if number in decided or not n:
                continue
            by_margin = ends[number](one.sign, n)
            # Holm rejects the k-th smallest of m at alpha / (m - k + 1).
            goal = math.log(sum(other >= ps[number] for other in ps) / alpha)
            by_zero = rejected[number] and _asks_for_zero(one, margin)
            if by_margin is not None and not (by_zero and by_margin == "not better"):
                decided[number] = (by_margin, n, goal)
            elif by_zero:
                decided[number] = (_ahead(paired[number][1][:n], direction, signs=signs), n, goal)
    ps = [anytime_p(log_es) for log_es in es]
    holm_ps = holm(ps)
    open_ones = sum(p > alpha for p in holm_ps)
    judged = []
    for number, (one, (common, gaps, scale), log_es, p, holm_p) in enumerate(
        zip(clauses, paired, es, ps, holm_ps, strict=True)
    ):
        # Of those that stay open, all share alpha.
        outcome, at, goal = decided.get(number, (None, None, math.log(max(1, open_ones) / alpha)))
        judged.append(
            Judgement(
                comparison=one,
                seeds=common,
                gaps=tuple(gaps),
                log_e=tuple(log_es),
                intervals=tuple([UNKNOWN] * len(gaps) if signs else confidence_sequence(gaps, scale, alpha)),
                p=p,
                holm_p=holm_p,
                threshold=goal,
                outcome=outcome,
                at=at,
            )
        )
    return judged


def _asks_for_zero(one: ArmComparison, margin: float | None) -> bool:
    """Whether a difference from zero decides; a clause with `~` or `>=` is about the margin, where there is one."""
    return one.sign not in ("~", ">=") or margin is None


def _ahead(gaps: Sequence[float], direction: str, *, signs: bool) -> Decision:
    """Return which side is ahead: in the mean of the differences, or on more seeds."""
    gains = [gap if direction == "max" else -gap for gap in gaps]
    ahead = sum((gain > 0) - (gain < 0) for gain in gains) if signs else math.fsum(gains)
    return "better" if ahead > 0 else "worse"


def _pair(
    one: ArmComparison, values: Mapping[str, BySeed], seeds: Sequence[int]
) -> tuple[tuple[int, ...], list[float], float]:
    """The seeds that all arms have a value for, the differences, and the size of the metric's values."""
    common = tuple(seed for seed in seeds if all(seed in values.get(arm, {}) for arm in one.arms))
    first, second = ([math.fsum(values[arm][seed] for arm in side) for seed in common] for side in one.sides)
    scale = max((abs(value) for value in (*first, *second)), default=0.0)
    return common, [a - b for a, b in zip(first, second, strict=True)], scale


def _margin_ends(
    gaps: Sequence[float], scale: float, margin: float | None, alpha: float, direction: str
) -> Callable[[str | None, int], Decision | None]:
    """Return what says how a comparison with this sign stands to the margin after n seeds; None while that is open."""
    gains = [gap if direction == "max" else -gap for gap in gaps]
    intervals = [] if margin is None else confidence_sequence(gains, scale, alpha)

    def end(sign: str | None, n: int) -> Decision | None:
        if margin is None:
            return None
        if log_equal_e(gains[:n], scale) >= math.log(1 / alpha):
            return "same"
        low, high = intervals[n - 1]
        constant = max(gains[:n]) - min(gains[:n]) <= ROUNDING * scale
        if constant and log_sign_e(gains[:n], scale) >= math.log(1 / alpha):
            low = high = gains[0]  # of equal differences nothing but their number says how sure they are
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

    return end
