"""A sweep's file changes, its runs stay: the old plan is kept beside the new one, and what changed is said."""

from __future__ import annotations

import os
import re
from pathlib import Path

from blockyard.errors import UserError
from blockyard.sweep.plan.compact_json import clean
from blockyard.sweep.plan.sweep_plan import FILE, SweepPlan
from blockyard.sweep.search.optuna_store import alone

SAID = ("claim", "source", "header", "path")  # what changes no run and no judgement


def store(plan: SweepPlan) -> list[str]:
    """Save the plan; an older one that asks for something else is kept as plan-<time>.json. What to tell of it.

    One planner at a time: of two that start together each sees the other's plan, or none. A search without
    cells yet does not take the place of a plan that has some: that one stays until the search has ended.
    """
    with alone(plan.folder):
        return _store(plan)


def refuse_other(plan: SweepPlan) -> None:
    """Raise UserError where another file of the same name, with another question, has the sweep's folder."""
    try:
        old = SweepPlan.load(plan.folder)
    except UserError:  # none, or damaged: `store` tells it
        return
    mine, theirs = plan.facts.get("file"), old.facts.get("file")
    if not mine or not theirs or asked(old) == asked(plan):
        return
    if Path(theirs).is_file() and not Path(theirs).samefile(mine):
        raise UserError(
            f"{plan.folder} belongs to {theirs}, another question of the same name; "
            f"rename {mine}, or give it another place with outputs=DIR"
        )


def _store(plan: SweepPlan) -> list[str]:
    told: list[str] = []
    searching = bool(plan.question.get("search")) and not plan.cells
    if (plan.folder / FILE).exists():
        try:
            old = SweepPlan.load(plan.folder)
        except UserError as error:
            told = [f"{error}; it is kept as {_keep(plan, 'damaged')}"]
        else:
            if searching and old.cells:
                changed = asked(old) != asked(plan)
                what = (
                    f"the question has changed: {difference(old, plan)}; the old plan stays until the search has ended"
                )
                return [what] if changed else []
            if asked(old) != asked(plan):
                kept = _keep(plan, re.sub(r"[^\dTZ]", "", str(old.facts.get("time") or "before").partition(".")[0]))
                told = [f"the question has changed: {difference(old, plan)}; the old plan is kept as {kept}"]
    plan.save()
    return told


def asked(plan: SweepPlan) -> object:
    """What makes two plans the same: the question, and the runs that it comes to.

    The cells of a search are found by searching, so there the question and the arms' configs say it all.
    """
    question = {key: value for key, value in plan.question.items() if key not in SAID}
    arms = [[arm.name, arm.overrides, arm.levels] for arm in plan.arms]
    # As on the disk, so that a secret makes no difference.
    return clean([question, arms]), None if question.get("search") else (plan.cells, _refusals(plan))


def difference(old: SweepPlan, new: SweepPlan) -> str:
    """What is asked now that was not, and the other way round."""
    before, now = ({cell.run for cell in plan.cells} for plan in (old, new))
    said = []
    for name, one, other in (("more", new, old), ("fewer", old, new)):
        names = [arm.name for arm in one.arms if arm.name not in {a.name for a in other.arms}]
        if names:
            listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            said.append(f"{name} arms: {listed}")
    if not new.question.get("search"):
        said.append(f"{len(now & before)} runs as before, {len(now - before)} new")
        if before - now:
            said.append(f"{len(before - now)} no longer asked for (their folders stay)")
    keys = [k for k in new.question if k not in (*SAID, "kind") and new.question.get(k) != old.question.get(k)]
    if keys:
        said.append(f"changed: {', '.join(keys)}")
    return "; ".join(said) or "other reasons for what is refused"


def _refusals(plan: SweepPlan) -> object:
    return [(refused.arm, refused.setting) for refused in plan.refused]


def _keep(plan: SweepPlan, word: str) -> str:
    for number in range(1000):
        name = f"plan-{word}{f'-{number}' if number else ''}.json"
        if not (plan.folder / name).exists():
            os.replace(plan.folder / FILE, plan.folder / name)
            return name
    raise UserError(f"{plan.folder} keeps a thousand old plans; remove some")
