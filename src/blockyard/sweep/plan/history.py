"""Stores a plan, keeps the older plans of the same sweep, and describes what changed between them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from blockyard.atomic_files import remove_temporary
from blockyard.errors import UserError
from blockyard.runs.lock import exclusive, held
from blockyard.sweep.cells import JOB_FILES, SEARCH_LOCK
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.sweep_plan import FILE, SweepPlan

DESCRIPTIVE_KEYS = ("claim", "source", "header", "path")  # keys that change no run and no verdict
_NAMED = 5  # arms that a message lists


def store_plan(plan: SweepPlan) -> list[str]:
    """Save the plan and return messages about it. A different older plan is kept as plan-<time>.json.

    One planner stores at a time, so two that start together see each other's plan or none. A search
    without cells does not replace a plan that has cells: that one stays until the search has ended.
    """
    with exclusive(plan.folder):
        _remove_leftovers(plan.folder)
        return _store(plan)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed planners left: temporary files, and the locks by which others saw a search alive.

    All files of the folder are written inside `exclusive`, so a temporary file that is seen here has no writer.
    """
    remove_temporary(folder)
    remove_temporary(folder / JOB_FILES)
    for path in folder.glob(f".{SEARCH_LOCK}-*.lock"):
        if not held(folder / path.name.removeprefix(".").removesuffix(".lock")):
            with contextlib.suppress(OSError):
                path.unlink()


def refuse_other_question(plan: SweepPlan) -> None:
    """Raise UserError where the sweep's folder belongs to another file of the same name with another question."""
    try:
        old = SweepPlan.load(plan.folder)
    except UserError:  # the plan is missing, or damaged, which `store_plan` reports
        return
    path, old_path = plan.facts.get("file"), old.facts.get("file")
    if not path or not old_path or plan_content(old) == plan_content(plan):
        return
    if Path(old_path).is_file() and not Path(old_path).samefile(path):
        raise UserError(
            f"{plan.folder} belongs to {old_path}, another question of the same name; "
            f"rename {path}, or choose another folder with outputs=DIR"
        )


def _store(plan: SweepPlan) -> list[str]:
    messages: list[str] = []
    searching = bool(plan.question.get("search")) and not plan.cells
    if os.path.lexists(plan.folder / FILE):
        try:
            old = SweepPlan.load(plan.folder)
        except UserError as error:
            messages = [f"{error}; it is kept as {_set_aside(plan, 'damaged')}"]
        else:
            changed = plan_content(old) != plan_content(plan)
            change = f"the question has changed: {difference(old, plan)}"
            if searching and old.cells:
                return [f"{change}; the old plan stays until the search has ended"] if changed else []
            if changed:
                time = re.sub(r"[^\dTZ]", "", str(old.facts.get("time") or "before").partition(".")[0])
                messages = [f"{change}; the old plan is kept as {_set_aside(plan, time)}"]
    plan.save()
    return messages


def plan_content(plan: SweepPlan) -> object:
    """What two plans of the same content have in common: the question and its runs.

    The cells of a search depend on its trials, so there only the question and the arms count.
    """
    question = {key: value for key, value in plan.question.items() if key not in DESCRIPTIVE_KEYS}
    arms = [[arm.name, arm.overrides, arm.levels] for arm in plan.arms]
    refused = [(each.arm, each.setting) for each in plan.refused]
    # Without secrets, as in the file: otherwise a plan would differ from its own copy there.
    return without_secrets([question, arms]), None if question.get("search") else (plan.cells, refused)


def difference(old: SweepPlan, new: SweepPlan) -> str:
    """What the new plan has and the old one has not, and the other way round."""
    before, now = ({cell.run for cell in plan.cells} for plan in (old, new))
    changes = []
    for label, one, other in (("new arms", new, old), ("removed arms", old, new)):
        others = {arm.name for arm in other.arms}
        names = [arm.name for arm in one.arms if arm.name not in others]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            changes.append(f"{label}: {', '.join(names[:_NAMED])}{more}")
    if not new.question.get("search"):
        changes.append(f"{len(now & before)} runs as before, {len(now - before)} new")
        if before - now:
            changes.append(f"{len(before - now)} no longer part of it (their folders stay)")
    ignored = (*DESCRIPTIVE_KEYS, "kind")
    either = dict.fromkeys([*new.question, *old.question])
    keys = [key for key in either if key not in ignored and new.question.get(key) != old.question.get(key)]
    if keys:
        changes.append(f"changed keys: {', '.join(keys)}")
    return "; ".join(changes) or "other arms are refused"


def _set_aside(plan: SweepPlan, suffix: str) -> str:
    for number in range(1000):
        name = f"plan-{suffix}{f'-{number}' if number else ''}.json"
        if not (plan.folder / name).exists():
            os.replace(plan.folder / FILE, plan.folder / name)
            return name
    raise UserError(f"{plan.folder} holds a thousand old plans; remove some")
