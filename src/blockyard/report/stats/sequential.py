"""The statistics of a sweep that stops when it is decided: verdicts and intervals that hold whenever it stopped.

A t test of a fixed number of seeds would be wrong too often there, because the number follows from the results. The
e-values of `sweep.stopping` stand in its place, and confidence sequences in place of intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blockyard.report.load.document import ClauseRow, Difference, EvidenceRow, ExpectRow, LookRow
from blockyard.report.stats.expectations import expected_outcome
from blockyard.report.stats.intervals import Interval, mean_of, rate_of
from blockyard.report.stats.metric_range import Range, clipped
from blockyard.report.stats.paired import Values, effect, finite
from blockyard.report.stats.verdict import BASELINE, BETTER, EQUIVALENT, TOO_FEW, UNDECIDED, WORSE, ArmResult, by_signs
from blockyard.sweep.spec.threshold import UNITS
from blockyard.sweep.stopping.decisions import ArmComparison, Judgement, comparisons, judge
from blockyard.sweep.stopping.due import Standing
from blockyard.sweep.stopping.evidence import (
    ALPHA,
    ROUNDING,
    betting_interval,
    log_sign_e,
    seeds_to_decide,
    seeds_to_margin,
)

_SKEW_FROM = 5  # seeds
_GROUPS_FROM = 6  # seeds
_SKEWED = 1.96  # standard errors of the skewness of normal values
# The share of the variance that the best cut in two explains, which 1 % of samples of n normal values exceed; from
# 100,000 samples each: `python benchmarks/sequential.py groups`.
_SPLIT = {6: 0.968, 8: 0.936, 10: 0.909, 12: 0.887, 16: 0.853, 20: 0.831}


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison. seeds: in the order in which they were assigned; limits: the range of the metric

    outcome: the kind of `sweep.spec.threshold` where outcomes of whole runs are compared, by signs
    """

    direction: str
    margin: float | None
    seeds: Sequence[int]
    limits: Range | None = None
    outcome: str | None = None


def judged(clauses: Sequence[ArmComparison], values: Values, terms: Terms) -> list[Judgement]:
    """Return the judgement of each comparison over all the values there are."""
    clean = {arm: finite(by_seed) for arm, by_seed in values.items()}
    return judge(clauses, clean, terms.seeds, terms.direction, terms.margin, signs=terms.outcome is not None)


def compare_arms(values: Values, baseline: str | None, terms: Terms) -> dict[str, ArmResult]:
    """Compare every arm with the baseline, as `verdict.compare_arms` does for a fixed number of seeds."""
    judgements = judged(comparisons(None, list(values), baseline), values, terms)
    against = {judgement.comparison.name: judgement for judgement in judgements}
    results = {}
    for arm, by_seed in values.items():
        scores = list(finite(by_seed).values())
        mean = rate_of(scores) if terms.outcome == "success" else mean_of(scores)
        # A run that never reaches the threshold counts by its rank only, so a mean of lengths has no interval.
        interval = None if terms.outcome in UNITS else clipped(mean.interval, terms.limits)
        mean = replace(mean, interval=interval)
        if arm in against:
            judgement = against[arm]
            gap = _difference(judgement, terms.limits)
            if terms.outcome:
                signs = signs_of(judgement, terms.direction)
                gap = replace(gap, interval=None, effect=None, deviation=None, signs=signs)
            text = explain(judgement, terms, len(against))
            results[arm] = ArmResult(mean, gap, _verdict(judgement), text)
        elif arm == baseline:
            results[arm] = ArmResult(mean, None, BASELINE, "The baseline.")
        else:
            results[arm] = ArmResult(mean, None, BASELINE, "The comparison has no baseline.")
    return results


def _difference(one: Judgement, limits: Range | None) -> Difference:
    n = len(one.gaps)
    if not n:
        return Difference(0)
    mean = math.fsum(one.gaps) / n
    deviation = None
    if n > 1:
        deviation = math.sqrt(math.fsum((gap - mean) ** 2 for gap in one.gaps) / (n - 1))
    interval = _finite(one.interval)
    if limits is not None:
        width = limits[1] - limits[0]
        interval = clipped(interval, (-width, width))
    return Difference(
        n,
        mean,
        interval=interval,
        holm_p=one.holm_p,
        effect=effect(mean, deviation, n) if deviation else None,
        deviation=deviation,
        e=math.exp(min(700.0, max(one.log_e))),  # math.exp overflows beyond 709
    )


def _finite(interval: Interval) -> Interval | None:
    if all(map(math.isfinite, interval)):
        return interval
    return None


def _verdict(one: Judgement) -> str:
    if len(one.gaps) < 2:
        return TOO_FEW
    verdicts = {"better": BETTER, "worse": WORSE, "equivalent": EQUIVALENT, "same": EQUIVALENT}
    return verdicts.get(str(one.outcome), UNDECIDED)


def explain(one: Judgement, terms: Terms, compared: int) -> str:
    """Return the verdict on a comparison as one or two sentences with its numbers."""
    n = len(one.gaps)
    other = " and ".join(one.comparison.sides[1])
    if n < 2:
        return f"Too few seeds: {n} in common with {other}; at least 2 are needed."
    numbers = figures(one, terms)
    if one.outcome in ("better", "worse"):
        return f"{one.outcome.capitalize()} than {other} from {one.at} seeds on: {numbers}."
    if one.outcome == "equivalent":
        return f"No difference to {other} of {terms.margin:.3g} or more, from {one.at} seeds on: {numbers}."
    if one.outcome == "same":
        return f"The same value as {other} on all of {one.at} seeds, so on more than half of all seeds."
    text = f"Undecided after {n} seeds: {numbers}, where a verdict takes {math.exp(one.threshold):.3g}."
    if not terms.outcome:
        text += f" {_more(one, terms, compared)}"
    return text


def signs_of(one: Judgement, direction: str) -> tuple[int, int, int]:
    """Return on how many seeds the first side is ahead, behind, and level."""
    above = sum(gap > 0 for gap in one.gaps)
    below = sum(gap < 0 for gap in one.gaps)
    level = len(one.gaps) - above - below
    if direction == "max":
        return above, below, level
    return below, above, level


def figures(one: Judgement, terms: Terms) -> str:
    """Return the difference, its confidence sequence and the largest e-value: "+0.012 (95 % ... to ...), e = 31"."""
    if terms.outcome:
        return f"{by_signs(signs_of(one, terms.direction))}, e = {math.exp(min(700.0, max(one.log_e))):.3g}"
    mean = math.fsum(one.gaps) / len(one.gaps)
    low, high = one.interval
    interval = f" (95 % confidence sequence {low:.3g} to {high:.3g})" if _finite(one.interval) else ""
    return f"{mean:+.3g}{interval}, e = {math.exp(min(700.0, max(one.log_e))):.3g}"


def _more(one: Judgement, terms: Terms, compared: int) -> str:
    """Return how many seeds would decide, if the differences go on as the observed ones: against zero or the margin."""
    n = len(one.gaps)
    mean = math.fsum(one.gaps) / n
    squares = math.fsum((gap - mean) ** 2 for gap in one.gaps)
    if n < 2 or not squares:
        return "What more it would take is unknown: the differences do not vary."
    deviation = math.sqrt(squares / (n - 1))
    gain = mean if terms.direction == "max" else -mean
    sign = one.comparison.sign
    where = {None: "within", ">": "below"}.get(sign, "on one side of")
    by_zero = sign in (None, ">") or terms.margin is None
    counts: dict[str, int | None] = {}
    if by_zero:
        counts["to show a difference"] = seeds_to_decide(mean / deviation, math.exp(one.threshold) * ALPHA)
    counts[f"for an interval {where} the margin"] = seeds_to_margin(gain, deviation, terms.margin, compared, sign)
    ends = {end: count for end, count in counts.items() if count is not None}
    if not ends:
        return "Differences like these would take more than 1,000 seeds."
    end, needed = min(ends.items(), key=lambda pair: pair[1])
    if needed <= n:
        return "Differences like these take about one or two seeds more."
    return f"Differences like these would take about {needed} seeds {end}."


def evaluate(text: str, values: Values, terms: Terms, missing: Mapping[str, str]) -> ExpectRow:
    """Return whether the results support an expectation, clause by clause.

    missing: arm without a result -> the reason, as it reads after the arm's name
    Raises UserError as `sweep.spec.expectation.parse` does.
    """
    clauses = []
    wanted = comparisons(text, list(values), None)
    for one in judged(wanted, values, terms):
        lost = [f"{arm} {missing[arm]}" for arm in one.comparison.arms if arm in missing]
        reason = " and ".join(lost) or _clause(one, terms, len(wanted))
        clauses.append(ClauseRow(text=one.comparison.name, verdict=one.verdict or "undecided", reason=reason))
    return expected_outcome(text, clauses)


def _clause(one: Judgement, terms: Terms, compared: int) -> str:
    """Return the reason for the verdict on a clause, with its numbers."""
    n = len(one.gaps)
    if n < 2:
        return f"{n} common seeds, at least 2 are needed"
    numbers = f"{figures(one, terms)}, {n} seeds"
    if one.outcome == "equivalent":
        return f"{numbers}: no difference of {terms.margin:.3g} or more"
    if one.outcome == "not worse":
        return f"{numbers}: not worse by {terms.margin:.3g} or more"
    if one.outcome == "different":
        return f"{numbers}: a difference of {terms.margin:.3g} or more"
    if one.outcome == "not better":
        return f"{numbers}: not better by {terms.margin:.3g} or more"
    if one.outcome == "worse by a margin":
        return f"{numbers}: worse by {terms.margin:.3g} or more"
    if one.outcome == "same":
        return f"{n} seeds: the same value on all of the first {one.at}, so on more than half of all seeds"
    if one.outcome is not None:
        return numbers
    if terms.outcome:
        return f"{numbers}: a verdict takes e = {math.exp(one.threshold):.3g}"
    goal = f"a verdict takes e = {math.exp(one.threshold):.3g}"
    if one.comparison.sign in ("~", ">=") and terms.margin is not None:
        goal = f"a verdict takes an interval on one side of {terms.margin:.3g}"
    elif one.comparison.sign == ">" and terms.margin:
        goal += f", or an interval below {terms.margin:.3g}"
    more = _more(one, terms, compared).rstrip(".")
    return f"{numbers}: {goal}; {more[:1].lower()}{more[1:]}"


def evidence_row(standing: Standing, judgements: Sequence[Judgement], question: Mapping[str, object]) -> EvidenceRow:
    """Return the evidence after each seed of every comparison that the sweep decides, and the reason of its stop."""
    looks = []
    for one in judgements:
        ends = [_finite(pair) or (None, None) for pair in one.intervals]
        looks.append(
            LookRow(
                name=one.comparison.name,
                arms=list(one.comparison.arms),
                seeds=list(one.seeds),
                log10_e=[log_e / math.log(10) for log_e in one.log_e],
                low=[low for low, _ in ends],
                high=[high for _, high in ends],
                mean=[math.fsum(one.gaps[: n + 1]) / (n + 1) for n in range(len(one.gaps))],
                threshold=one.threshold / math.log(10),
                outcome=one.verdict or one.outcome,
                at=one.at,
            )
        )
    return EvidenceRow(alpha=ALPHA, reason=standing.reason, words=stopped(standing, judgements, question), looks=looks)


def stopped(standing: Standing, judgements: Sequence[Judgement], question: Mapping[str, object]) -> str:
    """Return a sentence on the reason why the sweep stopped, or on its seeds so far."""
    undecided = [judgement.comparison.name for judgement in judgements if judgement.outcome is None]
    named = ", ".join(undecided[:3])
    if len(undecided) > 3:
        named += " and others"
    cells = f"after {standing.seeds} seeds and {len(standing.due)} cells"
    if standing.reason == "decided":
        return f"Stopped {cells}: every comparison is decided."
    if standing.reason == "budget":
        budget: Mapping[str, float] = question.get("budget") or {}  # type: ignore[assignment]
        limit = ", ".join(f"{most:g} {unit}" for unit, most in budget.items())
        return f"Stopped {cells}: one more seed would exceed the budget of {limit}. Undecided: {named}."
    if standing.reason == "most seeds":
        return f"Stopped {cells}, the most that the question allows. Undecided: {named}."
    if standing.reason == "failed":
        return f"Stopped {cells}: what is open needs an arm without any value. Undecided: {named}."
    return f"Not finished: {standing.seeds} seeds are complete."


def warnings(judgements: Sequence[Judgement], values: Values, limits: Range | None) -> list[str]:
    """Return a warning for each test of a mean that may err, with the answers to other questions.

    A test may err where differences are skewed, and where runs fall into two groups.
    """
    lines: list[str] = []
    for one in judgements:
        if skewed(one.gaps):
            lines.append(
                f"{one.comparison.name}: the differences are skewed, and no test of a mean holds for all skewed "
                f"ones at so few seeds; {_other_questions(one, limits)}"
            )
    for arm, by_seed in values.items():
        groups = two_groups(list(finite(by_seed).values()))
        if groups is not None:
            low, high = groups
            lines.append(
                f"{arm}: its runs fall into two groups, {len(low)} around {_middle(low):.3g} and {len(high)} around "
                f"{_middle(high):.3g}; the rate of either may say more than the mean"
            )
    return lines


def _other_questions(one: Judgement, limits: Range | None) -> str:
    scale = max(map(abs, one.gaps))
    parts = [f"symmetry about zero, by the signs: e = {math.exp(log_sign_e(one.gaps, scale)):.3g}"]
    if limits is not None and len(one.comparison.sides[0]) == 1:
        width = limits[1] - limits[0]
        interval = betting_interval(one.gaps, (-width, width))
        if interval is not None:
            low, high = interval
            parts.append(f"the mean, for any distribution, by betting: {low:.3g} to {high:.3g}")
    return "; ".join(parts)


def skewed(gaps: Sequence[float]) -> bool:
    """Return whether the adjusted Fisher-Pearson skewness is beyond 1.96 of its standard errors for normal values."""
    n = len(gaps)
    if n < _SKEW_FROM:
        return False
    mean = math.fsum(gaps) / n
    second = math.fsum((gap - mean) ** 2 for gap in gaps) / n
    if second <= 0 or _nearly_equal(gaps):
        return False
    third = math.fsum((gap - mean) ** 3 for gap in gaps) / n
    skewness = third / second**1.5 * math.sqrt(n * (n - 1)) / (n - 2)
    return abs(skewness) > _SKEWED * math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))


def two_groups(values: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """Return the values of an arm in two groups where a cut explains more of their variance than of normal values.

    Each group has two values or more.
    """
    ordered = sorted(values)
    n = len(values)
    if n < _GROUPS_FROM or _nearly_equal(ordered):
        return None
    share, cut = max((split_share(ordered, cut), cut) for cut in range(2, n - 1))
    limit = _SPLIT[max(size for size in _SPLIT if size <= n)]
    if share > limit:
        return (ordered[:cut], ordered[cut:])
    return None


def split_share(ordered: Sequence[float], cut: int) -> float:
    """Return the share of the variance that lies between the values before and after a cut."""
    mean = _middle(ordered)
    whole = math.fsum((value - mean) ** 2 for value in ordered)
    if whole <= 0:
        return 0.0
    squares = []
    for part in (ordered[:cut], ordered[cut:]):
        mean = _middle(part)
        squares += [(value - mean) ** 2 for value in part]
    return 1 - math.fsum(squares) / whole


def _nearly_equal(values: Sequence[float]) -> bool:
    """Return whether the values differ by no more than rounding."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))


def _middle(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
