"""The statistics of a sweep that stops when it is decided: verdicts and intervals that hold whenever it stopped.

A t test of a fixed number of seeds would be wrong too often there, because the number follows from the results. The
rule of `sweep.stopping` stands in its place: p values over all looks with intervals that hold at all of them, or
e-values with confidence sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blockyard.report.load.document import ClauseRow, Difference, EvidenceRow, ExpectRow, LookRow
from blockyard.report.stats.expectations import decision_sense, expected_outcome, room_words, single_arms
from blockyard.report.stats.intervals import Interval, mean_of, rate_of
from blockyard.report.stats.metric_range import Range, clipped
from blockyard.report.stats.paired import Values, diverged_runs, effect, finite, outcomes
from blockyard.report.stats.verdict import (
    BASELINE,
    BETTER,
    EQUIVALENT,
    TOO_FEW,
    UNDECIDED,
    WORSE,
    ArmResult,
    by_order,
    by_signs,
    p_equals,
)
from blockyard.sweep.spec.expectation import parse
from blockyard.sweep.spec.threshold import UNITS
from blockyard.sweep.stopping.decisions import EARLIER, ArmComparison, Judgement, comparisons, judge
from blockyard.sweep.stopping.due import Standing
from blockyard.sweep.stopping.evidence import ALPHA, ROUNDING, betting_interval, log_sign_e
from blockyard.sweep.stopping.forecast import MOST, forecast
from blockyard.sweep.stopping.rule import StoppingRule

_NAMED = 3  # comparisons that a sentence lists
_VERDICTS = {"better": BETTER, "worse": WORSE, "equivalent": EQUIVALENT, "same": EQUIVALENT}  # of an outcome
_SMALL = 1.0  # d_z: `python benchmarks/sequential.py inflation`
_SKEW_FROM = 5  # seeds
_GROUPS_FROM = 4  # seeds
_SKEWED = 1.96  # standard errors of the skewness of normal values
# The share of the variance that the best cut in two explains, which 1 % of samples of n normal values exceed; from
# 100,000 samples each: `python benchmarks/sequential.py groups`.
_SPLIT = {4: 0.994, 5: 0.982, 6: 0.968, 8: 0.936, 10: 0.909, 12: 0.887, 16: 0.853, 20: 0.831}


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison. seeds: in the order in which they were assigned; limits: the range of the metric

    outcome: the kind of `sweep.spec.threshold` where outcomes of whole runs are compared, by signs
    end: the best value of the metric, where it has an end
    """

    direction: str
    margin: float | None
    seeds: Sequence[int]
    limits: Range | None = None
    outcome: str | None = None
    rule: StoppingRule = EARLIER
    end: float | None = None

    def by_order(self, one: Judgement) -> bool:
        """Return whether a comparison is by order alone, since runs diverged or outcomes have no mean."""
        return self.outcome is not None or one.by_order

    def by_p(self, one: Judgement) -> bool:
        """Return whether the evidence is a p; of signs there are e-values only."""
        return self.rule.by == "boundary" and not self.by_order(one)


def judged(clauses: Sequence[ArmComparison], values: Values, terms: Terms) -> list[Judgement]:
    """Return the judgement of each comparison over all the values there are."""
    ended = {arm: outcomes(by_seed) for arm, by_seed in values.items()}
    signs = terms.outcome is not None
    return judge(clauses, ended, terms.seeds, terms.direction, terms.margin, rule=terms.rule, signs=signs)


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
            gap = _difference(judgement, terms)
            if terms.by_order(judgement):
                signs = signs_of(judgement, terms.direction)
                gap = replace(gap, interval=None, effect=None, deviation=None, signs=signs)
            text = explain(judgement, terms)
            gap = replace(gap, diverged=diverged_runs(judgement.comparison.arms, values))
            if gap.diverged:
                text += f" {by_order(gap.diverged)}"
            verdict = TOO_FEW
            if len(judgement.gaps) >= 2:
                verdict = _VERDICTS.get(str(judgement.outcome), UNDECIDED)
            results[arm] = ArmResult(mean, gap, verdict, text)
        elif arm == baseline:
            results[arm] = ArmResult(mean, None, BASELINE, "The baseline.")
        else:
            results[arm] = ArmResult(mean, None, BASELINE, "The comparison has no baseline.")
    return results


def _difference(one: Judgement, terms: Terms) -> Difference:
    n = len(one.gaps)
    gaps = [gap for gap in one.gaps if math.isfinite(gap)]
    if not gaps:
        return Difference(n)
    mean = math.fsum(gaps) / len(gaps)
    deviation = None
    if n > 1 and not one.by_order:
        deviation = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / (n - 1))
    interval = _finite(one.interval)
    if terms.limits is not None:
        width = terms.limits[1] - terms.limits[0]
        interval = clipped(interval, (-width, width))
    return Difference(
        n,
        mean,
        interval=interval,
        t_p=one.p if terms.by_p(one) else None,
        holm_p=one.holm_p,
        effect=effect(mean, deviation, n) if deviation else None,
        deviation=deviation,
        e=None if terms.by_p(one) else _largest_e(one),
    )


def _largest_e(one: Judgement) -> float:
    return math.exp(min(700.0, max(one.evidence)))  # math.exp overflows beyond 709


def _finite(interval: Interval) -> Interval | None:
    if all(map(math.isfinite, interval)):
        return interval
    return None


def explain(one: Judgement, terms: Terms) -> str:
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
    text = f"Undecided after {n} seeds: {numbers}, where a verdict takes {_goal(one, terms)}."
    if not terms.by_order(one):
        text += f" {_more(one)}"
    return text


def _goal(one: Judgement, terms: Terms) -> str:
    """Return the evidence that a verdict takes: "p = 0.025", "e = 40"."""
    if terms.by_p(one):
        return p_equals(math.exp(-one.threshold))
    return f"e = {math.exp(one.threshold):.3g}"


def signs_of(one: Judgement, direction: str) -> tuple[int, int, int]:
    """Return on how many seeds the first side is ahead, behind, and level."""
    above = sum(gap > 0 for gap in one.gaps)
    below = sum(gap < 0 for gap in one.gaps)
    level = len(one.gaps) - above - below
    if direction == "max":
        return above, below, level
    return below, above, level


def figures(one: Judgement, terms: Terms) -> str:
    """Return the difference, its interval and its evidence: "+0.012 (95 % interval over all looks ...), p = 0.03"."""
    evidence = p_equals(one.p) if terms.by_p(one) else f"e = {_largest_e(one):.3g}"
    if terms.by_order(one):
        return f"{by_signs(signs_of(one, terms.direction))}, {evidence}"
    mean = math.fsum(one.gaps) / len(one.gaps)
    low, high = one.interval
    kind = "interval over all looks" if terms.by_p(one) else "confidence sequence"
    interval = ""
    if one.withdrawn:
        interval = f" (its {kind} leaves it out and is withdrawn: later differences are unlike the earlier ones)"
    elif _finite(one.interval):
        interval = f" (95 % {kind} {low:.3g} to {high:.3g})"
    return f"{mean:+.3g}{interval}, {evidence}"


def _more(one: Judgement) -> str:
    """Return how many seeds would decide, if the differences go on as the observed ones: against zero or the margin."""
    n = len(one.gaps)
    needed = _needed(one)
    if needed is None:
        return "What more it would take is unknown: the differences do not vary."
    if not needed:
        return f"Differences like these would take more than {MOST:,} seeds."
    end, count = min(needed.items(), key=lambda pair: pair[1])
    if count <= n:
        return "Differences like these take about one or two seeds more."
    where = {None: "within", ">": "below"}.get(one.ends.sign, "on one side of")
    goal = "to show a difference" if end == "zero" else f"for an interval {where} the margin"
    return f"Differences like these would take about {count} seeds {goal}."


def _needed(one: Judgement) -> dict[str, int] | None:
    """Return the numbers of seeds that `forecast` gives for the observed mean; None where the differences are equal."""
    n = len(one.gains)
    if n < 2 or one.by_order:
        return None
    mean = math.fsum(one.gains) / n
    squares = math.fsum((gain - mean) ** 2 for gain in one.gains)
    if not squares:
        return None
    return forecast(one.ends, mean, math.sqrt(squares / (n - 1)))


def evaluate(text: str, values: Values, terms: Terms, missing: Mapping[str, str]) -> ExpectRow:
    """Return whether the results support an expectation, clause by clause.

    missing: arm without a result -> the reason, as it reads after the arm's name
    Raises UserError as `sweep.spec.expectation.parse` does.
    """
    clauses = []
    claims = parse(text, values)
    for claim, one in zip(claims, judged(comparisons(text, list(values), None), values, terms), strict=True):
        lost = [f"{arm} {missing[arm]}" for arm in one.comparison.arms if arm in missing]
        reason = " and ".join(lost) or _clause(one, terms)
        row = ClauseRow(
            text=one.comparison.name,
            verdict=one.verdict or "undecided",
            reason=reason,
            sense=_sense(one, terms),
            sign=claim.sign,
            decision=one.outcome,
            arms=single_arms(claim),
            holm_p=one.holm_p,
        )
        no_room = room_words(claim, values, terms.direction, terms.margin, terms.end)
        if no_room and one.outcome in (None, "not better", "equivalent", "same"):
            row = replace(row, verdict="undecided", reason=f"{figures(one, terms)}: {no_room}", sense=no_room)
        diverged = diverged_runs(claim.arms, values)
        if diverged:
            row = replace(row, reason=f"{row.reason} ({diverged})")
        clauses.append(row)
    return expected_outcome(text, clauses)


def _sense(one: Judgement, terms: Terms) -> str | None:
    """Return what the decision on a clause shows, where its verdict alone does not tell."""
    over_margin = None
    margin = None
    if terms.margin is not None:
        margin = f"{terms.margin:g}"
    if terms.margin and not terms.by_order(one):
        low, high = one.interval
        if terms.direction != "max":
            low, high = -high, -low
        over_margin = (low - terms.margin, high - terms.margin)
    return decision_sense(str(one.comparison.sign), one.outcome, margin, over_margin)


def _clause(one: Judgement, terms: Terms) -> str:
    """Return the reason for the verdict on a clause, with its numbers."""
    n = len(one.gaps)
    if n < 2:
        return f"{n} common seeds, at least 2 are needed"
    numbers = f"{figures(one, terms)}, {n} seeds"
    sense = _sense(one, terms)
    if one.outcome == "same":
        return f"{n} seeds: {sense}: all of the first {one.at}, so more than half of all seeds"
    if one.outcome is not None:
        return f"{numbers}: {sense}" if sense else numbers
    goal = f"a verdict takes {_goal(one, terms)}"
    if terms.by_order(one):
        return f"{numbers}: {goal}"
    if one.comparison.sign in ("~", ">=") and terms.margin is not None:
        goal = f"a verdict takes an interval on one side of {terms.margin:.3g}"
    elif one.comparison.sign == ">" and terms.margin:
        goal += f", or an interval below {terms.margin:.3g}"
    more = _more(one).rstrip(".")
    return f"{numbers}: {goal}; {more[:1].lower()}{more[1:]}"


def evidence_row(
    standing: Standing,
    judgements: Sequence[Judgement],
    terms: Terms,
    question: Mapping[str, object],
    expect: ExpectRow | None = None,
) -> EvidenceRow:
    """Return the evidence after each seed of every comparison that the sweep decides, and the reason of its stop.

    expect: the verdicts on the clauses, where the comparisons are clauses
    """
    looks = []
    verdicts: dict[str, str] = {}
    if expect:
        verdicts = {clause.text: clause.verdict for clause in expect.clauses}
    for one in judgements:
        ends = [_finite(pair) or (None, None) for pair in one.intervals]
        look = LookRow(
            name=one.comparison.name,
            arms=list(one.comparison.arms),
            seeds=list(one.seeds),
            log10_e=[evidence / math.log(10) for evidence in one.evidence],
            low=[low for low, _ in ends],
            high=[high for _, high in ends],
            mean=_running_means(one.gaps),
            threshold=one.threshold / math.log(10),
            outcome=None if verdicts.get(one.comparison.name) == "undecided" else one.verdict or one.outcome,
            at=one.at,
        )
        looks.append(look)
    sentences = [stopped(standing, judgements, question)]
    for one in judgements:
        if not terms.by_order(one) and _is_small(one):
            sentences.append(
                f"The size of the difference in {one.comparison.name} is likely too large: effects below {_SMALL:g} "
                "standard deviation are decided where they happen to look larger than they are."
            )
    by = "boundary" if terms.rule.by == "boundary" and not terms.outcome else "e-values"
    return EvidenceRow(alpha=ALPHA, reason=standing.reason, words=" ".join(sentences), looks=looks, by=by)


def _running_means(gaps: Sequence[float]) -> list[float]:
    """Return the mean after each seed, over those on which no run diverged; NaN before the first one."""
    means: list[float] = []
    finite_gaps: list[float] = []
    for gap in gaps:
        if math.isfinite(gap):
            finite_gaps.append(gap)
        means.append(_middle(finite_gaps) if finite_gaps else math.nan)
    return means


def stopped(standing: Standing, judgements: Sequence[Judgement], question: Mapping[str, object]) -> str:
    """Return a sentence on the reason why the sweep stopped, or on its seeds so far."""
    undecided = [judgement.comparison.name for judgement in judgements if judgement.outcome is None]
    named = ", ".join(undecided[:_NAMED])
    if len(undecided) > _NAMED:
        named += " and others"
    cells = f"after {standing.seeds} seeds and {len(standing.due)} cells"
    if standing.reason == "decided":
        return f"Stopped {cells}: every comparison is decided."
    if standing.reason == "beyond the limit":
        needs = [_need(one, standing) for one in judgements if one.outcome is None]
        return (
            f"Stopped {cells}: what is open would take more seeds than the limit of {len(question['seeds'])}. "  # type: ignore[arg-type]
            f"Undecided: {'; '.join(needs[:_NAMED])}{' and others' if len(needs) > _NAMED else ''}."
        )
    if standing.reason == "budget":
        budget: Mapping[str, float] = question.get("budget") or {}  # type: ignore[assignment]
        limit = ", ".join(f"{most:g} {unit}" for unit, most in budget.items())
        return f"Stopped {cells}: one more seed would exceed the budget of {limit}. Undecided: {named}."
    if standing.reason == "most seeds":
        return f"Stopped {cells}, the most that the question allows. Undecided: {named}."
    if standing.reason == "failed":
        return f"Stopped {cells}: what is open needs an arm without any value. Undecided: {named}."
    return f"Not finished: {standing.seeds} seeds are complete."


def _need(one: Judgement, standing: Standing) -> str:
    """Return a comparison with the seeds that it would take, and the time of its runs one after another."""
    needed = _needed(one)
    if not needed:
        return f"{one.comparison.name} (more than {MOST:,} seeds)"
    count = min(needed.values())
    seconds = [standing.seconds.get(arm, 0.0) for arm in one.comparison.arms]
    more = math.fsum(seconds) * max(0, count - len(one.gaps))
    time = f", {more / 60:.3g} minutes of runs more" if more else ""
    return f"{one.comparison.name} (about {count} seeds{time})"


def _is_small(one: Judgement) -> bool:
    """Return whether a comparison was decided by a difference from zero of a small effect."""
    n = len(one.gaps)
    if one.outcome not in ("better", "worse") or n < 3:
        return False
    mean = math.fsum(one.gaps) / n
    deviation = math.sqrt(math.fsum((gap - mean) ** 2 for gap in one.gaps) / (n - 1))
    size = effect(mean, deviation, n)
    return size is not None and abs(size) < _SMALL


def warnings(judgements: Sequence[Judgement], values: Values, limits: Range | None) -> list[str]:
    """Return a warning for each test of a mean that may err, with the answers to other questions.

    A test may err where differences are skewed, and where runs fall into two groups.
    """
    lines: list[str] = []
    for one in judgements:
        if not one.by_order and skewed(one.gaps):
            lines.append(
                f"{one.comparison.name}: the differences are skewed, and no test of a mean holds for all skewed "
                f"ones at so few seeds; {_other_questions(one, limits)}"
            )
    in_groups: set[str] = set()
    for arm, by_seed in values.items():
        groups = two_groups(list(finite(by_seed).values()))
        if groups is not None:
            in_groups.add(arm)
            lines.append(f"{arm}: its runs {_two(groups)}; the rate of either may say more than the mean")
    for one in judgements:
        groups = None if one.by_order else two_groups(one.gaps)
        if groups is not None and in_groups.isdisjoint(one.comparison.arms):
            lines.append(
                f"{one.comparison.name}: the differences {_two(groups)}; a test of their mean errs too often there"
            )
    return lines


def _two(groups: tuple[list[float], list[float]]) -> str:
    low, high = groups
    return f"fall into two groups, {len(low)} around {_middle(low):.3g} and {len(high)} around {_middle(high):.3g}"


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
