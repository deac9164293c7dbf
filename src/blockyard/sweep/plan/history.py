"""Stores a plan, keeps the older plans of the same sweep, and describes what changed between them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from blockyard.atomic_files import remove_temporary
from blockyard.errors import UserError
from blockyard.runs.lock import exclusive, held
from blockyard.runs.status import read_status
from blockyard.sweep.cells import JOB_FILES, SEARCH_LOCK, Cell
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.sweep_plan import FILE, Amendment, AskedFacts, PlanFacts, SweepPlan

DESCRIPTIVE_KEYS = ("claim", "source", "header", "path")  # keys that change no run and no verdict
BEFORE_FIRST_RUN = "Registered before its first run."
_NAMED = 5  # arms that a message lists


class StoredPlan(NamedTuple):
    """A plan as it stands in its folder, with the registration of its question, and messages for the user."""

    plan: SweepPlan
    messages: list[str]


def store_plan(plan: SweepPlan) -> StoredPlan:
    """Save the plan with the registration of its question. A different older plan is kept as plan-<time>.json.

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


def _store(plan: SweepPlan) -> StoredPlan:
    messages: list[str] = []
    old: SweepPlan | None = None
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
                    return StoredPlan(plan, [f"{change}; the old plan stays until the search has ended"])
                return StoredPlan(plan, [])
            if changed:
                seconds = str(old.facts.get("time") or "before").partition(".")[0]
                time = re.sub(r"[^\dTZ]", "", seconds)  # without colons, which not every file system takes
                messages = [f"{change}; the old plan is kept as {_set_aside(plan, time)}"]
    registered = replace(plan, facts={**plan.facts, "asked": _registration(plan, old)})
    registered.save()
    return StoredPlan(registered, messages)


def _registration(plan: SweepPlan, old: SweepPlan | None) -> AskedFacts:
    """Return the registration of a plan's question; old: the plan that it replaces."""
    digest = question_hash(plan)
    time = plan.facts.get("time")
    if old is None:
        return {"hash": digest, "time": time, "finished": _finished(plan, plan.cells), "amendments": []}
    before = old.facts.get("asked")
    if before is None:  # a plan of an earlier release
        before = {"hash": question_hash(old), "time": old.facts.get("time"), "finished": None, "amendments": []}
    if before["hash"] == digest:
        return before
    amendments = list(before["amendments"])
    finished = _finished(old, old.cells)
    if finished:
        amendment: Amendment = {
            "time": time,
            "keys": changed_keys(old.question, plan.question) or ["arms"],
            "finished": finished,
        }
        amendments.append(amendment)
    return {"hash": digest, "time": time, "finished": _finished(plan, plan.cells), "amendments": amendments}


def _finished(plan: SweepPlan, cells: Iterable[Cell]) -> int:
    return sum(read_status(plan.path(cell)).state == "done" for cell in cells)


def question_hash(plan: SweepPlan) -> str:
    """Return the SHA-256 of everything in a plan that decides its runs and its verdict; its words do not."""
    question = {key: value for key, value in plan.question.items() if key not in DESCRIPTIVE_KEYS}
    arms = [[arm.name, arm.overrides, arm.levels] for arm in plan.arms]
    text = json.dumps(without_secrets([question, arms]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def registration_sentence(facts: PlanFacts, starts: Sequence[str | None]) -> str:
    """Return a sentence on whether a question stood before its runs, or was changed after results were known.

    Empty for a plan of an earlier release, which has no registration, and without runs.
    starts: when the runs of the plan were started; None where a run does not say
    """
    registered = facts.get("asked")
    if registered is None:
        return ""
    if registered["amendments"]:
        return _amendments_sentence(registered["amendments"])
    time = registered["time"]
    if registered["finished"] is None or time is None or not starts or None in starts:
        return ""
    earlier = sum(start is not None and start < time for start in starts)
    if earlier:
        return f"Asked after {earlier} of its {len(starts)} runs had started."
    return BEFORE_FIRST_RUN


def _amendments_sentence(amendments: Sequence[Amendment]) -> str:
    times = len(amendments) + 1
    ordinal = {2: "2nd", 3: "3rd"}.get(times, f"{times}th")
    changes = []
    for amendment in amendments:
        changes.append(f"{key_list(amendment['keys'])} changed after {amendment['finished']} of its cells had finished")
    return f"Asked for the {ordinal} time: {'; then '.join(changes)}."


def key_list(keys: Sequence[str]) -> str:
    """Return keys with their verb: "`expect` and `margin` were", "`seeds` was"."""
    *most, last = [f"`{key}`" for key in keys]
    return f"{', '.join(most)} and {last} were" if most else f"{last} was"


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
    keys = changed_keys(old.question, new.question)
    if keys:
        changes.append(f"changed keys: {', '.join(keys)}")
    return "; ".join(changes) or "other arms are refused"


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two questions differ, their words aside."""
    keys = []
    for key in dict.fromkeys([*new, *old]):
        if key not in (*DESCRIPTIVE_KEYS, "kind") and new.get(key) != old.get(key):
            keys.append(key)
    return keys


def _set_aside(plan: SweepPlan, suffix: str) -> str:
    """Rename plan.json to plan-SUFFIX.json, or with a number where that exists. Return the name."""
    for number in range(1000):
        name = f"plan-{suffix}-{number}.json" if number else f"plan-{suffix}.json"
        if not (plan.folder / name).exists():
            os.replace(plan.folder / FILE, plan.folder / name)
            return name
    raise UserError(f"{plan.folder} holds a thousand old plans; remove some")
