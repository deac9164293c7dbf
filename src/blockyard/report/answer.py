"""The answer in one or two plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockyard.report.missing_arms import OPEN, SAID
from blockyard.report.stats.verdict import BETTER, FEW, FEWEST, NONE, WORSE

if TYPE_CHECKING:
    from blockyard.report.comparison import Comparison

_NAMED = 4


def answer(found: Comparison) -> str:
    """What was expected and what came of it; else which arms differ from the baseline."""
    table = _table(found)
    if found.expect is None:
        return table
    head = {
        "supported": "As expected",
        "contradicted": "Not as expected",
        "undecided": "Undecided",
    }[found.expect["verdict"]]
    return f"{head} ({found.expect['text']}): {found.expect['reason']}. {table}"


def _table(found: Comparison) -> str:
    if not found.arms:
        return "There is nothing to compare."
    if found.baseline is None:
        return f"One arm only, {found.arms[0]['name']}: there is nothing to compare it with."
    rows = [row for row in found.arms if row["name"] != found.baseline]
    by_verdict: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_verdict.setdefault(row["verdict"], []).append(row)
    parts = _judged(by_verdict)
    lost = [f"{_listed(gone)} {said[len(gone) > 1]}" for kind, said in SAID.items() if (gone := by_verdict.get(kind))]
    if parts:
        few = [f"too few seeds for {_listed(by_verdict[FEW], failed=True)}"] if FEW in by_verdict else []
        return f"On {found.metric} against {found.baseline}: {'; '.join([*parts, *few, *lost])}."
    base = found.arm(found.baseline)
    if not base["n"]:
        lost.insert(0, f"the baseline {found.baseline} has no figure")
    elif FEW in by_verdict or OPEN in by_verdict:
        most = max((row["difference"]["n"] if row["difference"] else 0 for row in rows), default=0)
        lost.insert(
            0, f"{most} common seed{'s' if most != 1 else ''} with {found.baseline} at most, {FEWEST} are needed"
        )
    return f"No verdict on {found.metric} yet: {'; '.join(lost)}."


def _judged(by_verdict: dict[str, list[dict[str, Any]]]) -> list[str]:
    parts = []
    for kind in (BETTER, WORSE):
        if kind in by_verdict:
            parts.append(f"{_listed(by_verdict[kind], figures=True)} {_is(by_verdict[kind])} {kind}")
    if NONE in by_verdict:
        parts.append(f"no difference is shown for {_listed(by_verdict[NONE])}")
    return parts


def _listed(rows: list[dict[str, Any]], *, figures: bool = False, failed: bool = False) -> str:
    def said(row: dict[str, Any]) -> str:
        if figures:
            return f"{row['name']} ({row['difference']['mean']:+.3g})"
        many = f" ({row['failed']} of {row['planned']} failed)" if failed and row["failed"] else ""
        return f"{row['name']}{many}"

    words = [said(row) for row in rows[:_NAMED]]
    more = [f"{len(rows) - _NAMED} more"] if len(rows) > _NAMED else []
    every = [*words, *more]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def _is(rows: list[dict[str, Any]]) -> str:
    return "is" if len(rows) == 1 else "are"
