"""The answer of a comparison in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockyard.errors import fold
from blockyard.report.arms.missing import NOT_DONE, REASONS
from blockyard.report.load.document import ArmRow, EffectsRow, ExpectRow
from blockyard.report.stats.paired import diverged_share
from blockyard.report.stats.verdict import (
    ALPHA,
    BETTER,
    EQUIVALENT,
    MIN_SEEDS,
    NO_DIFFERENCE,
    NOT_ASKED,
    TOO_FEW,
    UNDECIDED,
    WORSE,
    by_order,
    p_equals,
)

_MAX_NAMED = 4
_MANY = 8  # arms beside the baseline; of more, those of a verdict are counted, and only the furthest one is named
_WITHOUT_DIFFERENCE = {
    NO_DIFFERENCE: "no difference is shown for",
    EQUIVALENT: "no difference that matters for",
    UNDECIDED: "undecided for",
}
_HEADS = {"supported": "As expected", "contradicted": "Not as expected", "undecided": "Undecided"}


def answer(
    arms: Sequence[ArmRow],
    baseline: str | None,
    metric: str,
    expect: ExpectRow | None,
    effects: EffectsRow | None = None,
    rungs: str | None = None,
) -> str:
    """Return the arms that differ from the baseline, after the verdict on the expectation if there is one.

    effects: of a grid; its significant interactions are named
    rungs: in a ladder, the arm at whose rungs the other arms are compared
    """
    sentences = [_summary(arms, baseline, metric, rungs)]
    if expect is not None:
        sentences = [f"{_HEADS[expect.verdict]} ({expect.text}): {expect.reason}.", _not_asked(arms, expect)]
    sentences += [*_interactions(effects), _diverged(arms, expect)]
    return " ".join(filter(None, sentences))


def tuned_sentence(arms: Sequence[ArmRow], question: Mapping[str, Any]) -> str:
    """Return on how many of the tested seeds settings were chosen, and for which arms how many; "" without tuning.

    The best of several settings on a seed is ahead on that seed in part by its luck. With as many settings for every
    arm that favours none of them.
    """
    search = question.get("search") or {}
    tried = {row.name: row.budget.settings for row in arms if row.budget}
    if not tried or max(tried.values()) < 2:
        return ""
    tested = max(row.n for row in arms)
    chosen_on = tested
    if search or question.get("tune_seeds"):
        chosen_on = search.get("seeds") or question.get("tune_seeds") or 1
    on = "the seeds" if chosen_on >= tested else f"{chosen_on} of the {tested} seeds"
    counts = sorted(set(tried.values()))
    if len(counts) == 1:
        return f"Tuned on {on} it is tested on, with {counts[0]} settings for every arm, which favours none."
    most = [name for name, count in tried.items() if count == counts[-1]]
    least = [name for name, count in tried.items() if count == counts[0]]
    budgets = f"{counts[-1]} settings for {fold(most)} and {counts[0]} for {fold(least)}"
    return f"Tuned on {on} it is tested on, with {budgets}, which favours the arms with more."


def _not_asked(arms: Sequence[ArmRow], expect: ExpectRow) -> str:
    """Return the arms that no clause compares with the baseline, with their differences or the reason for none."""
    named = {arm for clause in expect.clauses for arm in clause.arms or ()}
    parts = []
    unasked = [row for row in arms if row.verdict == NOT_ASKED]
    if unasked:
        parts.append(_names(unasked, differences=True))
    lost = [row for row in arms if row.verdict in REASONS and row.name not in named]
    for row in lost:
        parts.append(f"{row.name}, which {REASONS[row.verdict][0]}")
    if not parts:
        return ""
    return f"Not asked: {'; '.join(parts)}."


def _diverged(arms: Sequence[ArmRow], expect: ExpectRow | None) -> str:
    """Return how many runs of which arm diverged, where the expectation does not say so."""
    parts = []
    diverged = [row for row in arms if row.diverged]
    if expect is None and len(diverged) > _MAX_NAMED:
        runs = sum(len(row.diverged or ()) for row in diverged)
        return by_order(f"{runs} runs of {len(diverged)} arms ended with a loss that is not finite")
    for row in diverged:
        assert row.diverged
        share = diverged_share(row.name, len(row.diverged), row.n + len(row.diverged))
        if expect is None or share not in expect.reason:
            parts.append(share)
    if not parts:
        return ""
    return by_order(" and ".join(parts))


def _interactions(effects: EffectsRow | None) -> list[str]:
    if effects is None:
        return []
    sentences = []
    for test in effects.interactions:
        if test.holm_p is not None and test.holm_p <= ALPHA:
            first, second = test.factors
            numbers = f"F = {test.F:.3g}, corrected {p_equals(test.holm_p)}"
            sentences.append(f"What {first} changes depends on {second} ({numbers}).")
    return sentences


def _summary(arms: Sequence[ArmRow], baseline: str | None, metric: str, rungs: str | None) -> str:
    if not arms:
        return "There is nothing to compare."
    # The baseline of a ladder has a row at each rung, and is compared with nothing at any of them.
    others = [row for row in arms if row.name not in (baseline, row.against)]
    if baseline is None or not others:
        return f"There is one arm only, {rungs or arms[0].name}: nothing to compare it with."
    reference = baseline if rungs is None else f"{rungs} at the same rung"
    by_verdict: dict[str, list[ArmRow]] = {}
    for row in others:
        by_verdict.setdefault(row.verdict, []).append(row)
    missing = []
    for reason, (singular, plural) in REASONS.items():
        if reason in by_verdict:
            arms_of_reason = by_verdict[reason]
            missing.append(f"{_names(arms_of_reason)} {plural if len(arms_of_reason) > 1 else singular}")
    parts = _results(by_verdict, counted=len(others) > _MANY)
    if parts:
        if TOO_FEW in by_verdict:
            parts.append(f"too few seeds for {_names(by_verdict[TOO_FEW], failed=True)}")
        return f"On {metric} against {reference}: {'; '.join([*parts, *missing])}."
    if not next(row for row in arms if row.name == baseline).n:
        missing.insert(0, f"the baseline {baseline} has no value")
    elif TOO_FEW in by_verdict or NOT_DONE in by_verdict:
        most = max((row.difference.n for row in others if row.difference), default=0)
        seeds = "1 seed" if most == 1 else f"{most} seeds"
        missing.insert(0, f"at most {seeds} in common with {reference}, {MIN_SEEDS} are needed")
    return f"No verdict on {metric} yet: {'; '.join(missing)}."


def _results(by_verdict: dict[str, list[ArmRow]], *, counted: bool) -> list[str]:
    """Return a part of a sentence for each verdict. counted: whether arms are counted instead of named"""
    parts = []
    for verdict in (BETTER, WORSE):
        if verdict not in by_verdict:
            continue
        arms_of_verdict = by_verdict[verdict]
        verb = "is" if len(arms_of_verdict) == 1 else "are"
        if counted and len(arms_of_verdict) > 1:
            furthest = max(arms_of_verdict, key=_size_of_difference)
            parts.append(
                f"{len(arms_of_verdict)} arms {verb} {verdict}, most of all {_names([furthest], differences=True)}"
            )
        else:
            parts.append(f"{_names(arms_of_verdict, differences=True)} {verb} {verdict}")
    for verdict, sentence in _WITHOUT_DIFFERENCE.items():
        if verdict not in by_verdict:
            continue
        arms_of_verdict = by_verdict[verdict]
        names = _names(arms_of_verdict)
        if counted and len(arms_of_verdict) > 1:
            names = f"{len(arms_of_verdict)} arms"
        parts.append(f"{sentence} {names}")
    return parts


def _size_of_difference(row: ArmRow) -> float:
    if row.difference is None or row.difference.mean is None:
        return 0.0
    return abs(row.difference.mean)


def _names(arms: Sequence[ArmRow], *, differences: bool = False, failed: bool = False) -> str:
    """Return the names as a list in a sentence, with differences or counts of failed cells in parentheses."""

    def name(row: ArmRow) -> str:
        if differences and row.difference:
            return f"{row.name} ({row.difference.mean:+.3g})"
        if failed and row.failed:
            return f"{row.name} ({row.failed} of {row.planned} failed)"
        return row.name

    parts = [name(row) for row in arms[:_MAX_NAMED]]
    if len(arms) > _MAX_NAMED:
        parts.append(f"{len(arms) - _MAX_NAMED} more")
    *before, last = parts
    if before:
        return f"{', '.join(before)} and {last}"
    return last
