"""Why an arm has no result. Such an arm failed, was refused or is not done yet; it is not one with too few seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.report.load.arms import ArmRuns
from blockyard.report.load.run_record import LoadedRun

REFUSED = "refused"
FAILED = "failed"
NO_VALUE = "no value"
NOT_DONE = "not done yet"
# The predicate of a sentence after the name of one arm, and after the names of several.
REASONS = {
    FAILED: ("failed", "failed"),
    REFUSED: ("was refused", "were refused"),
    NO_VALUE: ("gave no value", "gave no value"),
    NOT_DONE: ("is not done yet", "are not done yet"),
}


@dataclass(frozen=True)
class MissingResult:
    """Why an arm has no result. verdict: one of REFUSED, FAILED, NO_VALUE, NOT_DONE; explanation: a sentence."""

    verdict: str
    explanation: str

    @property
    def phrase(self) -> str:
        """The reason as it reads after the arm's name: "was refused"."""
        return REASONS[self.verdict][0]


def missing_result(arm: ArmRuns, metric: str, records: Sequence[LoadedRun]) -> MissingResult | None:
    """Return why an arm has no value of a metric; None for an arm that has one.

    records: of the whole sweep, including runs of settings that were not chosen
    """
    if arm.values(metric):
        return None
    if arm.refused and not arm.runs:
        return MissingResult(REFUSED, f"It was refused: {'; '.join(arm.refused)}.")
    if arm.averages is not None and any(run.value(metric) is not None for run in arm.done):
        return MissingResult(NO_VALUE, "No seed has a finished run of each of its settings, over which it is averaged.")
    if arm.done:
        return MissingResult(NO_VALUE, f"Its {len(arm.done)} finished runs have no {metric}.")
    runs = arm.runs or [run for run in records if run.arm == arm.name]
    states = Counter(run.state for run in runs)
    if runs and set(states) == {"failed"}:
        reasons = list(dict.fromkeys(run.reason for run in runs if run.reason))
        more = f" and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        return MissingResult(FAILED, f"All {len(runs)} cells failed{f': {reasons[0]}{more}' if reasons else ''}.")
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return MissingResult(NOT_DONE, f"None of its cells is done yet{f': {counts}' if counts else ''}.")
