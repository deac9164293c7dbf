"""Whether a sweep file still asks what its frozen plan asks."""

from __future__ import annotations

from pathlib import Path

from blockyard.errors import UserError
from blockyard.sweep.plan.compact_json import clean
from blockyard.sweep.plan.history import SAID
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.question import read


def since_frozen(path: Path, plan: SweepPlan) -> str | None:
    """What to know where a file by which a sweep was named asks something else than was run; else None."""
    if path.stem != plan.name:
        return None
    again = f"`blockyard sweep {path}` runs what is new"
    try:
        now = read(path).as_dict()
    except UserError as error:
        why = str(error).splitlines()[0]
        return f"{path} cannot be read as a sweep file any more ({why}); this is the plan as it was frozen"
    # What the command line added is no change of the file.
    now["base"] = [*now["base"], *(plan.facts.get("overrides") or ())]
    before = plan.question
    changed = [
        key
        for key in dict.fromkeys([*now, *before])
        if key not in SAID and clean(now.get(key)) != clean(before.get(key))
    ]
    if not changed:
        return None
    where = plan.facts.get("file")
    if where and Path(where) != path.absolute():
        return f"this is the plan of {where}; {path} asks something else ({', '.join(changed)}); {again}"
    what = ", ".join(changed)
    return f"{path} has changed since this plan was frozen ({what}): the figures are of the file as it was; {again}"
