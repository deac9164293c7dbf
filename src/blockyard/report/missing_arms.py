"""Arms without a figure: what became of each, so that none is taken for one with too few seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.report.load.groups import Group
from blockyard.report.load.run_record import Record

REFUSED, FAILED, FIGURELESS, OPEN = "refused", "failed", "no figure", "not done yet"
# As a sentence says it of one arm, and of several.
SAID = {
    FAILED: ("failed", "failed"),
    REFUSED: ("was refused", "were refused"),
    FIGURELESS: ("gave no figure", "gave no figure"),
    OPEN: ("is not done yet", "are not done yet"),
}


@dataclass(frozen=True)
class Absent:
    """Why an arm has no figure. verdict: one of REFUSED, FAILED, FIGURELESS, OPEN; words: a sentence."""

    verdict: str
    words: str


def absent(group: Group, metric: str, records: Sequence[Record]) -> Absent | None:
    """What became of an arm that has no figure of a metric; None for one that has.

    records: of the whole sweep, where the runs of settings that were not chosen are too
    """
    if group.values(metric):
        return None
    if group.refused and not group.runs:
        return Absent(REFUSED, f"It was refused: {'; '.join(group.refused)}.")
    if group.done:
        return Absent(FIGURELESS, f"Its {len(group.done)} finished runs give no {metric}.")
    mine = group.runs or [run for run in records if run.arm == group.name]
    states = Counter(run.state for run in mine)
    if mine and set(states) == {"failed"}:
        why = list(dict.fromkeys(run.reason for run in mine if run.reason))
        more = f" and {len(why) - 1} more reasons" if len(why) > 1 else ""
        return Absent(FAILED, f"All {len(mine)} cells failed{f': {why[0]}{more}' if why else ''}.")
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    return Absent(OPEN, f"No cell that counts is done yet{f': {said}' if said else ''}.")
