"""The verdict on each arm: corrected p values, better or worse, and a sentence that gives the numbers.

It also says how many seeds a comparison needs, and how large an effect a number of seeds can detect.

Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure; Cohen 1988, Statistical Power Analysis for
the Behavioral Sciences, chap. 2: the power of the paired t test from the noncentral t distribution. The smallest
two-sided p of the exact sign-flip test of n pairs is 2^(1 - n).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from blockyard.report.load.document import Difference
from blockyard.report.stats.intervals import Mean, mean_of, rate_of
from blockyard.report.stats.metric_range import Range, clipped
from blockyard.report.stats.paired import (
    Values,
    diverged_runs,
    finite,
    outcomes,
    paired_difference,
    sign_difference,
)
from blockyard.sweep.spec.threshold import UNITS
from blockyard.sweep.stopping.evidence import ALPHA, holm

POWER = 0.80
MIN_SEEDS = 3  # common seeds; fewer give no verdict
Differ = Callable[[tuple[str, ...], tuple[str, ...]], Difference]  # of sums of arms, such as (a, d) and (b, c)
MAX_SEEDS = 1_000  # more are reported as "more than 1,000"
# The samples and seeds that a verdict is about, by `Difference.over`.
FOR = {
    "seeds": "for new seeds on these test samples",
    "samples": "for new test samples and these trained models",
    "both": "for new seeds and new test samples",
    "samples documents": "for new texts and these trained models",
    "both documents": "for new seeds and new texts",
    "splits": "for new seeds and new splits of these data",
}
BASELINE = "baseline"
BETTER = "better"
WORSE = "worse"
NO_DIFFERENCE = "no difference shown"
TOO_FEW = "too few seeds"
EQUIVALENT = "no difference that matters"
UNDECIDED = "undecided"
# Of a sweep with `expect`, whose arms have the verdicts of its clauses.
NOT_BETTER = "not better by the margin"
NOT_WORSE = "not worse by the margin"
NOT_ASKED = "not asked"
_LONG = 24  # characters; a longer name of the baseline is not repeated in every sentence


@dataclass(frozen=True)
class ArmResult:
    """One arm: its mean, its difference to the baseline (None for the baseline, and without one), the verdict."""

    mean: Mean
    difference: Difference | None
    verdict: str
    explanation: str


def compare_arms(
    values: Values,
    baseline: str | None,
    direction: str,
    *,
    margin: float | None = None,
    limits: Range | None = None,
    outcome: str | None = None,
    differ: Differ | None = None,
    averaged: Callable[[Sequence[float]], Mean] = mean_of,
    rivals: Mapping[str, str] | None = None,
) -> dict[str, ArmResult]:
    """Compare every arm with the baseline.

    values: arm -> seed -> value, not finite for a run that diverged. Arms with such runs are compared by order, and
        with `differ` not at all
    direction: "max" where more is better, else "min"
    margin: the smallest difference that matters, for the advice on seeds
    limits: the range of the metric, where intervals end; differences lie between minus and plus its width
    outcome: the kind of `sweep.spec.threshold` where outcomes of whole runs are compared, by signs
    differ: the difference of sums of arms over test samples (`crossed`) or splits (`resplit`), in place of seeds
    averaged: the mean of an arm with its interval
    rivals: the arm that an arm is compared with, where that is not the baseline; itself for a baseline of its own
    """
    clean = {arm: finite(by_seed) for arm, by_seed in values.items()}
    rival = {arm: (rivals or {}).get(arm, str(baseline)) for arm in clean}
    others = []
    if baseline is not None:
        others = [arm for arm in clean if arm != rival[arm]]
    gaps: dict[str, Difference] = {}
    for arm in others:
        diverged = diverged_runs((arm, rival[arm]), values)
        if differ:
            gaps[arm] = differ((arm,), (rival[arm],))
            if diverged:
                gaps[arm] = replace(gaps[arm], t_p=None, permutation_p=None, diverged=diverged)
        elif outcome or diverged:
            signed = sign_difference(outcomes(values[arm]), outcomes(values[rival[arm]]), direction)
            gaps[arm] = replace(signed, diverged=diverged)
        else:
            gaps[arm] = paired_difference(clean[arm], clean[rival[arm]])
    differences = corrected(gaps)
    if limits is not None:
        width = limits[1] - limits[0]
        for arm, gap in differences.items():
            differences[arm] = replace(gap, interval=clipped(gap.interval, (-width, width)))
    tested = sum(gap.holm_p is not None for gap in differences.values())
    results = {}
    for arm, by_seed in clean.items():
        scores = list(by_seed.values())
        mean = rate_of(scores) if outcome == "success" else averaged(scores)
        # A run that never reaches the threshold counts by its rank only, so a mean of lengths has no interval.
        interval = None if outcome in UNITS else clipped(mean.interval, limits)
        mean = replace(mean, interval=interval)
        if arm in differences:
            gap = differences[arm]
            text = explain(gap, direction, rival[arm], tested or len(others), margin)
            results[arm] = ArmResult(mean, gap, verdict(gap, direction), text)
        elif arm in (baseline, rival[arm]):
            results[arm] = ArmResult(mean, None, BASELINE, "The baseline.")
        else:
            results[arm] = ArmResult(mean, None, BASELINE, "The comparison has no baseline.")
    return results


def corrected(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return the differences with Holm's p, corrected over all that have enough seeds for a verdict."""
    ps = {name: gap.p for name, gap in differences.items() if gap.n >= MIN_SEEDS and gap.p is not None}
    holm_ps = dict(zip(ps, holm(list(ps.values())), strict=True))
    return {name: replace(gap, holm_p=holm_ps.get(name)) for name, gap in differences.items()}


def verdict(gap: Difference, direction: str) -> str:
    """Return better, worse, no difference shown, undecided or too few seeds. direction: "max" or "min"."""
    if gap.n < MIN_SEEDS or (gap.mean is None and gap.signs is None):
        return TOO_FEW
    if gap.holm_p is None:  # over samples or splits no test is left where all differences are equal
        return UNDECIDED if gap.over else TOO_FEW
    if gap.signs is not None:
        ahead, behind, _ = gap.signs
        if gap.holm_p > ALPHA or ahead == behind:
            return NO_DIFFERENCE
        if ahead > behind:
            return BETTER
        return WORSE
    if gap.holm_p > ALPHA or not gap.mean:
        return NO_DIFFERENCE
    if (gap.mean > 0) == (direction == "max"):
        return BETTER
    return WORSE


def explain(gap: Difference, direction: str, baseline: str, compared: int, margin: float | None = None) -> str:
    """Return the verdict on the difference to the baseline as one or two sentences with its numbers.

    compared: how many arms are compared; margin: the smallest difference that matters, in the metric's unit
    """
    kind = verdict(gap, direction)
    other = baseline if len(baseline) <= _LONG else "the baseline"
    if kind == TOO_FEW:
        seeds = {0: "no common seed", 1: "1 common seed"}.get(gap.n, f"{gap.n} common seeds")
        text = (
            f"Too few seeds: {seeds}; a verdict needs at least {MIN_SEEDS}, and the exact test can confirm one "
            f"from {min_seeds_exact(compared)} on."
        )
        if gap.diverged:
            text += f" {by_order(gap.diverged)}"
        return text
    if kind == UNDECIDED and gap.diverged:
        return f"Undecided: {gap.diverged}, and a comparison {FOR[str(gap.over)]} needs a model of every run."
    if kind == UNDECIDED:
        return f"Undecided: all differences to {other} are equal ({gap.mean:+.3g}), so no test says how sure they are."
    head = f"{kind.capitalize()} than {other}"
    if kind == NO_DIFFERENCE:
        head = f"No difference shown to {other}"
    if gap.signs is not None:
        text = f"{head}: {by_signs(gap.signs)}; exact {p_equals(gap.permutation_p)}, corrected {format_p(gap.holm_p)}."
        if gap.diverged:
            text += f" {by_order(gap.diverged)}"
        return text
    if gap.mean == 0 and gap.deviation is None and gap.interval is None:
        return f"No difference shown: all {gap.n} seeds have the same values as {other}."
    if gap.interval is None:
        least = min_seeds_exact(compared)
        text = (
            f"{head}: all {gap.n} differences are equal ({gap.mean:+.3g}), so the t test is undefined; the exact test "
            f"gives {p_equals(gap.permutation_p)}, corrected {format_p(gap.holm_p)}."
        )
        if kind == NO_DIFFERENCE and gap.n < least:
            text += f" That test can show one from {least} seeds on."
        return text
    numbers = f"{format_difference(gap)}, corrected {p_equals(gap.holm_p)}"
    if gap.over:
        return f"{head} {FOR[gap.over]}: {numbers}, {gap.n} seeds."
    text = f"{head}: {numbers}, {gap.n} seeds."
    if kind == NO_DIFFERENCE:
        if uncorrected(gap):
            text += f" {uncorrected_note(compared)}"
        text += f" {advice(gap, compared, margin)}"
    return text


def by_order(diverged: str) -> str:
    """Return the sentence on arms of which runs diverged. diverged: of `paired.diverged_runs`"""
    return f"{diverged[:1].upper()}{diverged[1:]}, so the arms are compared by order, where such a run is the worst."


def by_signs(signs: tuple[int, int, int]) -> str:
    """Return on how many seeds an arm is ahead: "ahead on 7 seeds, behind on 1, level on 2"."""
    ahead, behind, level = signs
    seeds = "seed" if ahead == 1 else "seeds"
    return f"ahead on {ahead} {seeds}, behind on {behind}, level on {level}"


def uncorrected(gap: Difference) -> bool:
    """Return whether the interval, which is not corrected, leaves 0 out while Holm's p is above 0.05."""
    if gap.interval is None or gap.holm_p is None or gap.holm_p <= ALPHA:
        return False
    return gap.interval[0] > 0 or gap.interval[1] < 0


def uncorrected_note(compared: int) -> str:
    """Return the sentence for an arm whose interval and verdict seem to disagree."""
    return (
        f"The interval leaves 0 out, but it is that of this arm alone; the verdict is corrected for {compared} "
        f"comparisons (Holm)."
    )


def advice(gap: Difference, compared: int, margin: float | None) -> str:
    """Return a sentence on the difference that so many seeds can detect, and the seeds that are needed.

    gap: over seeds, with differences that vary
    """
    assert gap.deviation is not None
    # The level of the first of Holm's tests, which is the strictest.
    alpha = ALPHA / max(1, compared)
    detectable = detectable_effect(gap.n, alpha) * gap.deviation
    effect = abs(gap.effect or 0.0)
    target = "a true difference as large as the observed one"
    if margin:
        effect = margin / gap.deviation
        target = f"a difference of {margin:.3g}"
    needed = seeds_needed(effect, alpha)
    # More seeds in the same sweep would hold only where its stop was planned.
    how = ", in a new sweep or with --until-decided"
    if needed is None:
        seeds = f"more than {MAX_SEEDS:,} seeds are needed"
    elif needed <= gap.n and margin:
        seeds = f"{gap.n} seeds are enough"
        how = ""
    else:
        seeds = f"about {max(needed, gap.n + 1)} seeds are needed"
    return f"They show a true difference of {detectable:.2g} in 80 % of such sweeps; {seeds} to detect {target}{how}."


def format_difference(gap: Difference) -> str:
    """Format the difference and its interval: "+0.012 (95 % interval -0.002 to 0.026)"."""
    low, high = gap.interval or (math.nan, math.nan)
    return f"{gap.mean:+.3g} (95 % interval {low:.3g} to {high:.3g})"


def format_p(p: float | None) -> str:
    """Format a p for a table, with one digit more where two would put it on the other side of 5 %."""
    if p is None:
        return "none"
    if p < 1e-4:
        return "< 0.0001"
    text = f"{p:.2g}"
    if (float(text) > ALPHA) == (p > ALPHA):
        return text
    return f"{p:.3g}"


def p_equals(p: float | None) -> str:
    """Format a p for a sentence: "p = 0.03", "p < 0.0001"."""
    if p is not None and p < 1e-4:
        return f"p {format_p(p)}"
    return f"p = {format_p(p)}"


def min_seeds_exact(compared: int, alpha: float = ALPHA) -> int:
    """Return the fewest seeds whose smallest exact p, corrected for `compared` arms, is at most alpha."""
    # Holm multiplies the smallest p by the number of arms: compared * 2^(1 - n) <= alpha.
    return max(MIN_SEEDS, math.ceil(1 + math.log2(max(1, compared) / alpha)))


def seeds_needed(effect: float, alpha: float, power: float = POWER) -> int | None:
    """Return the fewest seeds with which a paired t test detects an effect (d_z); None if more than MAX_SEEDS."""
    counts = range(MAX_SEEDS + 1)
    # The power grows with n, so that a bisection finds the first that suffices.
    n = bisect_left(counts, power, lo=MIN_SEEDS, key=lambda n: t_test_power(abs(effect), n, alpha))
    return n if n <= MAX_SEEDS else None


@lru_cache(maxsize=1024)
def detectable_effect(n: int, alpha: float, power: float = POWER) -> float:
    """Return the smallest effect (d_z) that a paired t test of n >= 2 seeds detects with this power."""
    from scipy import optimize, stats

    # An effect at which even an overestimated standard deviation leaves t above its critical value.
    most = (2 * stats.t.isf(alpha / 2, n - 1) + 5) / math.sqrt(n)
    return float(optimize.brentq(lambda effect: t_test_power(effect, n, alpha) - power, 0.0, most))


def t_test_power(effect: float, n: int, alpha: float) -> float:
    """Return the power of a two-sided paired t test of n pairs for an effect (d_z) >= 0.

    statsmodels' TTestPower computes the same, but returns NaN at scattered points, most often for few seeds and many
    arms, and its `solve_power` then fails to converge. The NaN comes from the lower tail, which is negligible there.
    """
    from scipy import stats

    critical = stats.t.isf(alpha / 2, n - 1)
    shift = effect * math.sqrt(n)
    upper = stats.nct.sf(critical, n - 1, shift)
    lower = stats.nct.cdf(-critical, n - 1, shift)
    if math.isnan(lower):
        return float(upper)
    return float(upper + lower)
