"""The rule by which a sweep is decided, where an earlier plan of it has results.

The boundary of a t test holds for numbers of seeds that stand before the first result. Where they were set later, or an
earlier plan was decided by e-values, e-values decide: they hold for any number.
"""

from __future__ import annotations

from dataclasses import replace

from blockyard.errors import UserError
from blockyard.runs.status import read_status
from blockyard.sweep.plan.sweep_plan import SweepPlan

_GREW = (
    "decided by e-values, which hold for any number of seeds: the boundary of a t test needs `first` and `most` to "
    "stand before the first result, and there were results when they were set"
)
_EARLIER = "decided by e-values, as its plan of an earlier release says"


def with_rule_in_force(plan: SweepPlan) -> SweepPlan:
    """Return the plan with the rule by which it may be decided, and a remark where that is not the one of its file."""
    until = plan.question.get("until")
    if not until or until["by"] != "boundary":
        return plan
    try:
        old = SweepPlan.load(plan.folder)
    except UserError:  # there is none, or storing the plan will report it
        return plan
    before = old.question.get("until") or {}
    is_same = (before.get("first"), before.get("most")) == (until["first"], until["most"])
    if is_same and before.get("by") == "boundary":
        return plan
    if not any(read_status(old.path(cell)).state == "done" for cell in old.cells):
        return plan
    remark = _GREW
    rule = {**until, "by": "e-values"}
    if is_same and "by" not in before:
        remark = _EARLIER
        rule = before
    facts = {**plan.facts, "remarks": [*plan.facts.get("remarks", ()), remark]}
    return replace(plan, question={**plan.question, "until": rule}, facts=facts)  # type: ignore[arg-type]
