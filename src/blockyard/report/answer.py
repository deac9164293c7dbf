"""The answer in one or two plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockyard.report.verdict import BETTER, FEW, FEWEST, NONE, WORSE

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
    if set(by_verdict) == {FEW}:
        most = max((row["difference"]["n"] if row["difference"] else 0 for row in rows), default=0)
        return (
            f"No verdict on {found.metric} yet: {most} common seeds with {found.baseline} at most, {FEWEST} are needed."
        )
    parts = []
    for kind in (BETTER, WORSE):
        if kind in by_verdict:
            parts.append(f"{_listed(by_verdict[kind], figures=True)} {_is(by_verdict[kind])} {kind}")
    if NONE in by_verdict:
        parts.append(f"no difference is shown for {_listed(by_verdict[NONE])}")
    if FEW in by_verdict:
        parts.append(f"too few seeds for {_listed(by_verdict[FEW])}")
    return f"On {found.metric} against {found.baseline}: {'; '.join(parts)}."


def _listed(rows: list[dict[str, Any]], *, figures: bool = False) -> str:
    words = [row["name"] + (f" ({row['difference']['mean']:+.3g})" if figures else "") for row in rows[:_NAMED]]
    more = [f"{len(rows) - _NAMED} more"] if len(rows) > _NAMED else []
    every = [*words, *more]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def _is(rows: list[dict[str, Any]]) -> str:
    return "is" if len(rows) == 1 else "are"
