"""Evaluate what a sweep expected: `pre_norm > post_norm and rope ~ alibi`.

`>` means better in the metric's direction. `(a - b) > (c - d)` says that a is better than b by more than c is than d:
the difference of both differences, seed by seed, is tested as the difference of two arms is. The comparisons were
stated before the runs were made, so p values are corrected over the comparisons of the expectation, not over all arms.

`~` and `>=` are about the margin: a difference from zero alone does not contradict them, an interval beyond the margin
does. Where a margin is stated, an interval below it contradicts `a > b`, as it supports `b >= a`. Each such clause is
tested at 5 %, without a correction. The whole expectation holds where every clause does, so it is tested at 5 % too.

Source: Schuirmann 1987 (two one-sided tests, for `~` and, one of them, for `>=` and against `>`); Holm 1979.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from blockyard.report.load.document import ClauseRow, Difference, ExpectRow
from blockyard.report.stats.paired import Values, finite, paired_difference, sign_difference
from blockyard.report.stats.verdict import ALPHA, FOR, MIN_SEEDS, Differ, by_signs, corrected, p_equals
from blockyard.sweep.spec.expectation import Claim, parse

MARGIN = 0.01  # of the last arm's mean: smaller differences count as none, unless the sweep states a margin

Verdict = Literal["supported", "contradicted", "undecided"]


def evaluate(
    text: str,
    values: Mapping[str, Mapping[int, float | None]],
    direction: str,
    *,
    margin: float | None = None,
    missing: Mapping[str, str] | None = None,
    signs: bool = False,
    differ: Differ | None = None,
) -> ExpectRow:
    """Return whether the results support an expectation.

    values: arm -> seed -> value
    margin: the smallest difference that matters; None: MARGIN of the mean of the arm that a comparison names last
    missing: arm without a result -> the reason, as it reads after the arm's name ("was refused")
    signs: whether outcomes of whole runs are compared, by their order alone
    differ: the difference of sums of arms over test samples, in place of the difference over seeds
    Raises UserError as `sweep.spec.expectation.parse` does.
    """
    claims = parse(text, values)
    clean = {arm: finite(by_seed) for arm, by_seed in values.items()}
    differences: dict[str, Difference] = {}
    for claim in claims:
        if differ:
            differences[str(claim)] = differ(*_sums(claim))
            continue
        left, right = _paired(claim, clean)
        if signs:
            differences[str(claim)] = sign_difference(left, right, direction)
        else:
            differences[str(claim)] = paired_difference(left, right)
    gaps = corrected(differences)
    clauses: list[ClauseRow] = []
    for claim in claims:
        reasons = [f"{arm} {missing[arm]}" for arm in claim.arms if missing and arm in missing]
        verdict: Verdict = "undecided"
        reason = f"{' against '.join(claim.sides)}: {' and '.join(reasons)}"
        if not reasons:
            verdict, reason = _evaluate(claim, gaps[str(claim)], clean, direction, margin)
        clauses.append(ClauseRow(text=str(claim), verdict=verdict, reason=reason))
    return expected_outcome(text, clauses)


def expected_outcome(text: str, clauses: list[ClauseRow]) -> ExpectRow:
    """Return the verdict on an expectation: one contradicted clause contradicts it, and it needs every clause."""
    verdicts = {clause.verdict for clause in clauses}
    verdict: Verdict = "undecided"
    if "contradicted" in verdicts:
        verdict = "contradicted"
    elif verdicts <= {"supported"}:
        verdict = "supported"
    reason = "; ".join(f"{clause.verdict}: {clause.reason}" for clause in clauses)
    if len(clauses) == 1:
        reason = clauses[0].reason
    return ExpectRow(text=text, verdict=verdict, reason=reason, clauses=clauses)


def _sums(claim: Claim) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arms of both sides. (a - b) - (c - d) = (a + d) - (b + c)."""
    if claim.minus is None:
        return ((claim.arm,), (claim.other,))
    second, fourth = claim.minus
    return (claim.arm, fourth), (second, claim.other)


def _paired(claim: Claim, values: Values) -> tuple[dict[int, float], dict[int, float]]:
    """Return the two sides of a claim, by seed. A contrast has sums: (a - b) - (c - d) = (a + d) - (b + c).

    The sums are as large as the metric, so that differences within its rounding count as equal, as between arms.
    """
    if claim.minus is None:
        return dict(values[claim.arm]), dict(values[claim.other])
    a = values[claim.arm]
    b = values[claim.minus[0]]
    c = values[claim.other]
    d = values[claim.minus[1]]
    seeds = a.keys() & b.keys() & c.keys() & d.keys()
    left = {seed: a[seed] + d[seed] for seed in seeds}
    right = {seed: b[seed] + c[seed] for seed in seeds}
    return left, right


def _evaluate(
    claim: Claim, gap: Difference, values: Values, direction: str, margin: float | None
) -> tuple[Verdict, str]:
    """Return the verdict on a claim and its reason."""
    pair = " against ".join(claim.sides)
    if gap.n < MIN_SEEDS or gap.mean is None:
        return "undecided", f"{pair}: {gap.n} common seeds, at least {MIN_SEEDS} are needed"
    gain = gap.mean if direction == "max" else -gap.mean
    if gap.signs is not None:
        gain = gap.signs[0] - gap.signs[1]
    significant = gap.holm_p is not None and gap.holm_p <= ALPHA and gain != 0
    numbers = _numbers(pair, gap)
    if claim.sign == ">":
        if significant and gain < 0:
            return "contradicted", numbers
        # A gain that is significant and below the margin contradicts too, so the margin comes first.
        if margin and gap.signs is None:
            _, highest = _gain_interval(gap, direction)
            if highest < margin:
                by = _margin_interval(gap, direction)
                return "contradicted", f"{numbers}: not better by {margin:g} (the margin set) or more{by}"
        if significant:
            return "supported", numbers
        return "undecided", f"{numbers}: no difference shown"
    if claim.sign == ">=" and significant and gain > 0:
        return "supported", numbers
    if _same_values(gap):
        return "supported", f"{numbers}: the same values on every seed"
    last = claim.other if claim.minus is None else claim.minus[1]
    size = margin or MARGIN * abs(sum(values[last].values()) / len(values[last]))
    if not size:
        if significant:
            return "contradicted", numbers
        problem = (
            f"the mean of {last} is 0, so {MARGIN:.0%} of it is not a margin; set `margin: NUMBER` in the sweep file"
        )
        return "undecided", f"{numbers}: {problem}"
    margin_text = f"{size:.2g} ({MARGIN:.0%} of the mean of {last})"
    if margin:
        margin_text = f"{size:g} (the margin set)"
    low, high = _gain_interval(gap, direction)
    by = "" if gap.signs is not None else _margin_interval(gap, direction)
    if claim.sign == ">=":
        if low > -size:
            return "supported", f"{numbers}: not worse by {margin_text} or more{by}"
        if gap.signs is not None and (high <= -size or significant):
            return "contradicted", numbers
        if high <= -size:
            return "contradicted", f"{numbers}: worse by {margin_text} or more{by}"
        return "undecided", f"{numbers}: it may be worse by more than {margin_text}{by}"
    if low > -size and high < size:
        return "supported", f"{numbers}: the difference is smaller than {margin_text}{by}"
    beyond = low >= size or high <= -size
    if gap.signs is not None and (beyond or significant):
        return "contradicted", numbers
    if beyond:
        return "contradicted", f"{numbers}: a difference of {margin_text} or more{by}"
    shown = "there is a difference" if significant else "no difference shown"
    return "undecided", f"{numbers}: {shown}, and it may be smaller or larger than {margin_text}{by}"


def _numbers(pair: str, gap: Difference) -> str:
    """Return the difference of a pair with its interval and its corrected p."""
    if gap.signs is not None:
        return f"{pair}: {by_signs(gap.signs)}, {p_equals(gap.holm_p)}"
    interval = "on every seed"
    if gap.interval is not None:
        low, high = gap.interval
        interval = f"(95 % interval {low:.3g} to {high:.3g})"
    holds = f" {FOR[gap.over]}" if gap.over else ""
    return f"{pair}: {gap.mean:+.3g} {interval}, {p_equals(gap.holm_p)}, {gap.n} seeds{holds}"


def _margin_interval(gap: Difference, direction: str) -> str:
    """Return the interval that is compared with the margin, with the sign of the metric."""
    low, high = _gain_interval(gap, direction)
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    if direction != "max":
        low, high = -high, -low
    return f" (90 % interval {low:.3g} to {high:.3g})"


def _same_values(gap: Difference) -> bool:
    """Return whether the arms have the same value on every seed. As many seeds ahead as behind are not enough."""
    if gap.signs is not None:
        return gap.signs[:2] == (0, 0)
    return gap.mean == 0 and gap.deviation is None and gap.interval is None


def _gain_interval(gap: Difference, direction: str) -> tuple[float, float]:
    """Return the 90 % interval of the gain (positive: better), which decides two one-sided tests at 5 % (TOST)."""
    from scipy import stats

    assert gap.mean is not None
    gain = gap.mean if direction == "max" else -gap.mean
    if gap.error is not None and gap.free is not None:
        half = stats.t.ppf(1 - ALPHA, gap.free) * gap.error
        return gain - half, gain + half
    if gap.deviation is None:  # equal differences: all 0, or of one size with an unknown standard deviation
        if _same_values(gap):
            return (0.0, 0.0)
        return (-math.inf, math.inf)
    half = stats.t.ppf(1 - ALPHA, gap.n - 1) * gap.deviation / math.sqrt(gap.n)
    return gain - half, gain + half
