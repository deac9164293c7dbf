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
    """Remove the temporary files of killed planners, and the locks by which other processes saw a search alive."""
    # All files of the folder are written inside `exclusive`, so a temporary file that is seen here has no writer.
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
    path = plan.facts.get("file")
    old_path = old.facts.get("file")
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
            change = f"the question has changed: {difference(old, plan)}" if changed else ""
            if searching and old.cells:
                if changed:
                    return [f"{change}; the old plan stays until the search has ended"]
                return []
            if changed:
                seconds = str(old.facts.get("time") or "before").partition(".")[0]
                time = re.sub(r"[^\dTZ]", "", seconds)  # without colons, which not every file system takes
                messages = [f"{change}; the old plan is kept as {_set_aside(plan, time)}"]
    plan.save()
    return messages


def plan_content(plan: SweepPlan) -> object:
    """Return the question of a plan and its runs, which are equal for two plans of the same content.

    The cells of a search depend on its trials, so there only the question and the arms count.
    """
    question = {key: value for key, value in plan.question.items() if key not in DESCRIPTIVE_KEYS}
    arms = [[arm.name, arm.overrides, arm.levels] for arm in plan.arms]
    # Without secrets, as in the file: otherwise a plan would differ from its own copy there.
    plain = without_secrets([question, arms])
    if question.get("search"):
        return plain, None
    return plain, (plan.cells, [(refused.arm, refused.setting) for refused in plan.refused])


def difference(old: SweepPlan, new: SweepPlan) -> str:
    """Describe the arms, runs and keys by which two plans differ."""
    before = {cell.run for cell in old.cells}
    now = {cell.run for cell in new.cells}
    changes = []
    for label, plan, other in (("new arms", new, old), ("removed arms", old, new)):
        other_names = {arm.name for arm in other.arms}
        names = [arm.name for arm in plan.arms if arm.name not in other_names]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            changes.append(f"{label}: {', '.join(names[:_NAMED])}{more}")
    if not new.question.get("search"):
        changes.append(f"{len(now & before)} runs as before, {len(now - before)} new")
        if before - now:
            changes.append(f"{len(before - now)} no longer part of it (their folders stay)")
    keys = [
        key
        for key in dict.fromkeys([*new.question, *old.question])
        if key not in (*DESCRIPTIVE_KEYS, "kind") and new.question.get(key) != old.question.get(key)
    ]
    if keys:
        changes.append(f"changed keys: {', '.join(keys)}")
    return "; ".join(changes) or "other arms are refused"


def _set_aside(plan: SweepPlan, suffix: str) -> str:
    """Rename plan.json to plan-SUFFIX.json, or with a number where that exists. Return the name."""
    for number in range(1000):
        name = f"plan-{suffix}-{number}.json" if number else f"plan-{suffix}.json"
        if not (plan.folder / name).exists():
            os.replace(plan.folder / FILE, plan.folder / name)
            return name
    raise UserError(f"{plan.folder} holds a thousand old plans; remove some")
