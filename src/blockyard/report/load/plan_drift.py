"""Whether a sweep file has changed since its plan was frozen."""

from __future__ import annotations

from pathlib import Path

from blockyard.errors import UserError
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.history import DESCRIPTIVE_KEYS
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.question import read


def plan_drift(path: Path, plan: SweepPlan) -> str | None:
    """Return a warning where the file by which a sweep was named differs from its frozen plan, else None."""
    if path.stem != plan.name:
        return None
    again = f"`blockyard sweep {path}` runs what is new"
    try:
        now = read(path).as_dict()
    except UserError as error:
        reason = str(error).splitlines()[0]
        return f"{path} can no longer be read as a sweep file ({reason}); the results are those of the frozen plan"
    # Overrides of the command line are not changes of the file.
    now["base"] = [*now["base"], *(plan.facts.get("overrides") or ())]
    before = plan.question
    keys = dict.fromkeys([*now, *before])
    changed = ", ".join(
        key
        for key in keys
        if key not in DESCRIPTIVE_KEYS and without_secrets(now.get(key)) != without_secrets(before.get(key))
    )
    if not changed:
        return None
    file = plan.facts.get("file")
    if file and Path(file) != path.absolute():
        return f"the results are those of {file}; {path} differs from it in {changed}; {again}"
    return f"{path} has changed in {changed} since its plan was frozen; the results are those of the old file; {again}"
