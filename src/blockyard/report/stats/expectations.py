"""Evaluate what a sweep expected: `pre_norm > post_norm and rope ~ alibi`.

`>` means better in the metric's direction. `(a - b) > (c - d)` says that a is better than b by more than c is than d:
the difference of both differences, seed by seed, is tested as the difference of two arms is. The comparisons were
stated before the runs were made, so p values are corrected over the comparisons of the expectation, not over all arms.

`~` and `>=` are about the margin: a difference from zero alone does not contradict them, an interval beyond the margin
does. Where a margin is stated, an interval below it contradicts `a > b`, as it supports `b >= a`.

The whole expectation holds where every clause does, so that a clause with `~` or `>=` is supported at 5 % without a
correction, and only clauses with `>` share the 5 % of their tests against zero (Holm). One contradicted clause
contradicts the whole: each of m clauses is contradicted at 5 % / m, one-sided.

A run that diverged is the worst value of its arm (`paired`). Order says nothing of a margin, so that `~` is not
supported there, and `>=` only where the arm is shown to be ahead.

Source: Schuirmann 1987 (two one-sided tests, for `~` and, one of them, for `>=` and against `>`); Holm 1979.
Error rates: `benchmarks/verdicts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from blockyard.report.load.document import ClauseRow, Difference, ExpectRow
from blockyard.report.stats.intervals import LEVEL
from blockyard.report.stats.metric_range import room
from blockyard.report.stats.paired import (
    diverged_runs,
    finite,
    outcomes,
    paired_difference,
    sign_difference,
)
from blockyard.report.stats.verdict import (
    ALPHA,
    BETTER,
    EQUIVALENT,
    FOR,
    MIN_SEEDS,
    NOT_ASKED,
    NOT_BETTER,
    NOT_WORSE,
    TOO_FEW,
    UNDECIDED,
    WORSE,
    ArmResult,
    Differ,
    advice,
    by_order,
    by_signs,
    corrected,
    p_equals,
)
from blockyard.sweep.spec.expectation import Claim, parse
from blockyard.sweep.stopping.decisions import VERDICTS, Decision

MARGIN = 0.01  # of the last arm's mean: smaller differences count as none, unless the sweep states a margin
# The verdict on the first arm of a clause against the second, and on the second against the first.
_OF_ARMS: dict[str, tuple[str, str]] = {
    "better": (BETTER, WORSE),
    "worse": (WORSE, BETTER),
    "worse by a margin": (WORSE, BETTER),
    "equivalent": (EQUIVALENT, EQUIVALENT),
    "same": (EQUIVALENT, EQUIVALENT),
    "not worse": (NOT_WORSE, NOT_BETTER),
    "not better": (NOT_BETTER, NOT_WORSE),
}


def evaluate(
    text: str,
    values: Mapping[str, Mapping[int, float | None]],
    direction: str,
    *,
    margin: float | None = None,
    missing: Mapping[str, str] | None = None,
    signs: bool = False,
    differ: Differ | None = None,
    end: float | None = None,
) -> ExpectRow:
    """Return whether the results support an expectation.

    values: arm -> seed -> value, not finite for a run that diverged
    margin: the smallest difference that matters; None: MARGIN of the mean of the arm that a comparison names last
    missing: arm without a result -> the reason, as it reads after the arm's name ("was refused")
    signs: whether outcomes of whole runs are compared, by their order alone
    differ: the difference of sums of arms over test samples, in place of the difference over seeds
    end: the best value that the metric can have, where it has an end (`metric_range.best_value`)
    Raises UserError as `sweep.spec.expectation.parse` does.
    """
    claims = parse(text, values)
    differences = {str(claim): _difference(claim, values, direction, differ, signs=signs) for claim in claims}
    tested = {str(claim) for claim in claims if claim.sign == ">"}
    against_zero = corrected({name: gap for name, gap in differences.items() if name in tested})
    clauses: list[ClauseRow] = []
    for claim in claims:
        name = str(claim)
        gap = differences[name]
        gap = against_zero.get(name, replace(gap, holm_p=gap.p))
        lost = [f"{arm} {missing[arm]}" for arm in claim.arms if missing and arm in missing]
        if lost:
            reason = f"{' against '.join(claim.sides)}: {' and '.join(lost)}"
            row = ClauseRow(text=name, verdict="undecided", reason=reason, sign=claim.sign, arms=single_arms(claim))
            clauses.append(row)
            continue
        test = _Test(claim, gap, values, direction, margin, ALPHA / len(claims))
        clauses.append(test.clause(room_words(claim, values, direction, margin, end)))
    return expected_outcome(text, clauses)


def expected_outcome(text: str, clauses: list[ClauseRow]) -> ExpectRow:
    """Return the verdict on an expectation: one contradicted clause contradicts it, and it needs every clause."""
    verdicts = {clause.verdict for clause in clauses}
    verdict = "undecided"
    if "contradicted" in verdicts:
        verdict = "contradicted"
    elif verdicts <= {"supported"}:
        verdict = "supported"
    reason = "; ".join(f"{clause.verdict}: {clause.reason}" for clause in clauses)
    if len(clauses) == 1:
        reason = clauses[0].reason
    senses = dict.fromkeys(clause.sense for clause in clauses if clause.verdict == verdict and clause.sense)
    sense = "; ".join(filter(None, senses)) or None
    return ExpectRow(text=text, verdict=verdict, reason=reason, clauses=clauses, sense=sense)


def decision_sense(sign: str, decision: str | None, margin: str | None, gain: tuple[float, float] | None) -> str | None:
    """Return what a decision on a clause shows, where its verdict alone does not tell.

    margin: as it is written; None where none bears on the clause
    gain: the 95 % interval of the gain over the margin; None where no margin was set or order alone was compared
    """
    if sign == ">" and decision == "better":
        if gain is None:
            return None
        if gain[0] >= 0:
            return f"beyond the margin {margin}"
        return f"beyond zero, not beyond the margin {margin}"
    if sign == ">":
        senses = {
            "worse": "the opposite is shown",
            "not better": f"not shown to matter: smaller than {margin}",
            "equivalent": f"not shown to matter: smaller than {margin}",
            "same": "not shown to matter: the same values on every seed",
        }
    else:
        senses = {
            "worse": "the opposite is shown",
            "equivalent": f"no difference of {margin} or more",
            "not worse": f"not worse by {margin} or more",
            "different": f"a difference of {margin} or more",
            "worse by a margin": f"worse by {margin} or more",
            "same": "the same values on every seed",
        }
    if sign == "~" and decision in ("better", "worse"):
        return "a difference is shown"
    return senses.get(str(decision))


def room_words(
    claim: Claim,
    values: Mapping[str, Mapping[int, float | None]],
    direction: str,
    margin: float | None,
    end: float | None,
) -> str | None:
    """Return why no arm can be better by the margin, where the metric ends before that; None where there is room."""
    if claim.sign != ">" or claim.minus is not None or not margin or end is None:
        return None
    scores = list(finite(values[claim.other]).values())
    if len(scores) < MIN_SEEDS:
        return None
    return room(claim.other, scores, direction, margin, end)


def single_arms(claim: Claim) -> tuple[str, str] | None:
    """Return both sides of a claim; None for a claim about differences."""
    if claim.minus is not None:
        return None
    return claim.arm, claim.other


def of_one_family(
    results: Mapping[str, ArmResult], expect: ExpectRow, rivals: Mapping[str, str | None], margin: float | None
) -> dict[str, ArmResult]:
    """Return the results with the verdicts of the clauses that compare the arms with their rivals.

    The other arms are not asked: they keep their numbers and have no verdict. So each comparison is corrected once.

    rivals: the arm that an arm is compared with
    margin: the smallest difference that matters, for the advice on seeds
    """
    against_zero = sum(clause.sign == ">" for clause in expect.clauses)
    family = dict(results)
    for arm, result in results.items():
        gap = result.difference
        if gap is None:
            continue
        rival = rivals.get(arm)
        matching = [clause for clause in expect.clauses if clause.arms in ((arm, rival), (rival, arm))]
        decided = [clause for clause in matching if clause.verdict != "undecided"]
        clause = next(iter(decided or matching), None)
        if clause is None:
            text = f"Not asked: no clause compares it with {rivals[arm]}."
            if gap.diverged:
                text += f" {by_order(gap.diverged)}"
            family[arm] = replace(result, difference=replace(gap, holm_p=None), verdict=NOT_ASKED, explanation=text)
            continue
        verdict = _verdict_of_arm(clause, arm, result)
        if clause.verdict == "undecided":
            text = f"Undecided ({clause.text}): {clause.reason}."
            # e-values and sequences of looks have an advice of their own, in the reason.
            if clause.sign == ">" and gap.deviation and gap.n >= MIN_SEEDS and gap.e is None and not clause.sense:
                text += f" {advice(gap, against_zero, margin)}"
        else:
            text = f"{verdict[:1].upper()}{verdict[1:]}: {clause.text} is {clause.verdict}; {clause.reason}."
        family[arm] = replace(result, difference=replace(gap, holm_p=clause.holm_p), verdict=verdict, explanation=text)
    return family


def _verdict_of_arm(clause: ClauseRow, arm: str, result: ArmResult) -> str:
    assert clause.arms is not None
    if result.verdict == TOO_FEW:
        return TOO_FEW
    if clause.verdict == "undecided" or clause.decision is None:
        return UNDECIDED
    second = int(arm == clause.arms[1])
    return _OF_ARMS[clause.decision][second]


def _difference(
    claim: Claim,
    values: Mapping[str, Mapping[int, float | None]],
    direction: str,
    differ: Differ | None,
    *,
    signs: bool,
) -> Difference:
    """Return the difference of both sides. Where runs diverged it is by order, and without a test where there is none.

    Differences of differences, and comparisons over test samples or splits, have no order with such runs.
    """
    diverged = diverged_runs(claim.arms, values)
    if differ:
        gap = differ(*claim.sums)
        if diverged:
            return replace(gap, t_p=None, permutation_p=None, diverged=diverged)
        return gap
    if signs or (diverged and claim.minus is None):
        gap = sign_difference(outcomes(values[claim.arm]), outcomes(values[claim.other]), direction)
        return replace(gap, diverged=diverged)
    sides = []
    for arms in claim.sums:
        ended = [finite(values[arm]) for arm in arms]
        seeds = set.intersection(*map(set, ended))
        sides.append({seed: math.fsum(by_seed[seed] for by_seed in ended) for seed in seeds})
    gap = paired_difference(*sides)
    if diverged:
        return replace(gap, t_p=None, permutation_p=None, diverged=diverged)
    return gap


@dataclass(frozen=True)
class _Test:
    """The test of one claim.

    gap: with Holm's p over the clauses with `>`, for another sign with its own p
    margin: the one that was set; alpha: the one-sided error of a contradiction
    """

    claim: Claim
    gap: Difference
    values: Mapping[str, Mapping[int, float | None]]
    direction: str
    margin: float | None
    alpha: float

    def clause(self, no_room: str | None) -> ClauseRow:
        """Return the verdict on the claim and its reason. no_room: see `room_words`"""
        gap = self.gap
        pair = " against ".join(self.claim.sides)
        row = ClauseRow(
            text=str(self.claim),
            verdict="undecided",
            reason="",
            sign=self.claim.sign,
            arms=single_arms(self.claim),
            holm_p=gap.holm_p,
        )
        diverged = f" ({gap.diverged})" if gap.diverged else ""
        if gap.n < MIN_SEEDS or (gap.mean is None and gap.signs is None):
            reason = f"{pair}: {gap.n} common seeds, at least {MIN_SEEDS} are needed{diverged}"
            return replace(row, reason=reason)
        if gap.diverged and gap.signs is None:
            return replace(row, reason=f"{pair}: {gap.diverged}, and this comparison needs a value of every run")
        numbers = f"{_numbers(pair, gap)}{diverged}"
        decision = self._decision()
        if no_room and decision in (None, "not better", "equivalent"):
            return replace(row, reason=f"{numbers}: {no_room}", sense=no_room)
        if decision is None:
            return replace(row, reason=f"{numbers}: {self._undecided()}")
        sense = decision_sense(self.claim.sign, decision, self._margin_text, self._over_margin)
        reason = numbers
        if sense:
            reason += f": {sense}"
        if decision in ("not better", "not worse", "equivalent", "different", "worse by a margin"):
            supported = VERDICTS[self.claim.sign][decision] == "supported"
            reason += self._interval_text(ALPHA if supported else self.alpha)
        if decision == "different":  # the side that is ahead is known then
            decision = "better" if self._gain > 0 else "worse"
        return replace(row, verdict=VERDICTS[self.claim.sign][decision], reason=reason, sense=sense, decision=decision)

    def _decision(self) -> Decision | None:
        gap = self.gap
        by_order = gap.signs is not None
        significant = gap.holm_p is not None and gap.holm_p <= ALPHA and self._gain != 0
        # A two-sided p, of which the other half is no contradiction, unless either direction is one.
        sides = 1 if self.claim.sign == "~" else 2
        surely = significant and gap.p is not None and gap.p / sides <= self.alpha
        if self.claim.sign == ">":
            if surely and self._gain < 0:
                return "worse"
            # A gain that is significant and below the margin contradicts too, so the margin comes first.
            if self.margin and not by_order:
                lowest, highest = self._gain_interval(self.alpha)
                if highest < self.margin:
                    return "equivalent" if lowest > -self.margin else "not better"
            return "better" if significant and self._gain > 0 else None
        if self.claim.sign == ">=" and significant and self._gain > 0:
            return "better"
        if _same_values(gap):
            return "same"
        if by_order or not self._size:
            if surely and self._gain < 0:
                return "worse"
            if surely and self.claim.sign == "~":
                return "better"
            return None
        low, high = self._gain_interval(ALPHA)
        lowest, highest = self._gain_interval(self.alpha)
        if self.claim.sign == ">=":
            if low > -self._size:
                return "not worse"
            return "worse by a margin" if highest <= -self._size else None
        if low > -self._size and high < self._size:
            return "equivalent"
        return "different" if lowest >= self._size or highest <= -self._size else None

    def _undecided(self) -> str:
        """Return what is not known of a claim, after its numbers."""
        gap = self.gap
        significant = gap.holm_p is not None and gap.holm_p <= ALPHA and self._gain != 0
        if gap.signs is not None and self.claim.sign != ">":
            return f"by order, which says nothing of {self._margin_text}"
        if self.claim.sign == ">":
            return "no difference shown"
        if not self._size:
            no_margin = f"the mean of {self._last} is 0, so {MARGIN:.0%} of it is not a margin"
            return f"{no_margin}; set `margin: NUMBER` in the sweep file"
        if self.claim.sign == ">=":
            return f"it may be worse by more than {self._margin_text}{self._interval_text(ALPHA)}"
        shown = "there is a difference" if significant else "no difference shown"
        return f"{shown}, and it may be smaller or larger than {self._margin_text}{self._interval_text(ALPHA)}"

    @property
    def _last(self) -> str:
        """The arm that the claim names last."""
        return self.claim.other if self.claim.minus is None else self.claim.minus[1]

    @property
    def _size(self) -> float:
        """The margin of a claim with `~` or `>=`; 0 where none was set and the mean of the last arm is 0."""
        if self.margin:
            return self.margin
        scores = list(finite(self.values[self._last]).values())
        if not scores:
            return 0.0
        return MARGIN * abs(sum(scores) / len(scores))

    @property
    def _margin_text(self) -> str:
        if self.margin:
            return f"{self.margin:g}"
        return f"{self._size:.2g} ({MARGIN:.0%} of the mean of {self._last})"

    @property
    def _gain(self) -> float:
        """The mean gain, positive where the first side is better; by order, on how many more seeds it is ahead."""
        if self.gap.signs is not None:
            ahead, behind, _ = self.gap.signs
            return ahead - behind
        assert self.gap.mean is not None
        return self.gap.mean if self.direction == "max" else -self.gap.mean

    @property
    def _over_margin(self) -> tuple[float, float] | None:
        """The 95 % interval of the gain, minus the margin; None without a margin that was set."""
        if not self.margin or self.gap.signs is not None:
            return None
        low, high = self._gain_interval((1 - LEVEL) / 2)
        return low - self.margin, high - self.margin

    def _gain_interval(self, alpha: float) -> tuple[float, float]:
        """Return the interval of the gain with an error of `alpha` at each end: of two one-sided tests (TOST)."""
        from scipy import stats

        gap = self.gap
        if gap.signs is not None:
            return (-math.inf, math.inf)
        if gap.error is not None and gap.free is not None:
            half = stats.t.ppf(1 - alpha, gap.free) * gap.error
            return self._gain - half, self._gain + half
        if gap.deviation is None:  # equal differences: all 0, or of one size with an unknown standard deviation
            if _same_values(gap):
                return (0.0, 0.0)
            return (-math.inf, math.inf)
        half = stats.t.ppf(1 - alpha, gap.n - 1) * gap.deviation / math.sqrt(gap.n)
        return self._gain - half, self._gain + half

    def _interval_text(self, alpha: float) -> str:
        """Return the interval that is compared with the margin, with the sign of the metric: " (90 % interval ...)"."""
        low, high = self._gain_interval(alpha)
        if not (math.isfinite(low) and math.isfinite(high)):
            return ""
        if self.direction != "max":
            low, high = -high, -low
        return f" ({100 * (1 - 2 * alpha):.4g} % interval {low:.3g} to {high:.3g})"


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


def _same_values(gap: Difference) -> bool:
    """Return whether the arms have the same value on every seed. As many seeds ahead as behind are not enough.

    Two runs that diverged are level, but their values are not known to be the same.
    """
    if gap.diverged:
        return False
    if gap.signs is not None:
        return gap.signs[:2] == (0, 0)
    return gap.mean == 0 and gap.deviation is None and gap.interval is None
