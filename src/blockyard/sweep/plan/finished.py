"""Finds the stored plan of a sweep whose cells have all ended, which is then shown without building a model.

The stored plan stands for a new one where the question, its arms and their configs are the same. Widths that were
solved for, and the precision that the planner fixed, are taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_json
from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError
from blockyard.runs.folder import SUMMARY
from blockyard.runs.identity import run_name
from blockyard.sweep.plan import cell_settings
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.history import DESCRIPTIVE_KEYS
from blockyard.sweep.plan.sweep_plan import FOLDER, SweepPlan
from blockyard.sweep.spec.question import Question

if TYPE_CHECKING:
    from blockyard.sweep.cells import Variant


def stored_plan(question: Question, base: Sequence[str], outputs: str, composer: CellComposer) -> SweepPlan | None:
    """Return the stored plan of a question; None where there is none, or a new plan may differ from it.

    base: with the overrides of the command line
    """
    if question.keys.search or question.keys.ladder:
        return None
    try:
        plan = SweepPlan.load(Path(outputs) / FOLDER / question.name)
    except UserError:
        return None
    wanted = question.as_dict() | {"base": list(base)}
    if plan.refused or _deciding(plan.question) != _deciding(wanted) or list(plan.arms) != list(question.arms):
        return None
    runs = {cell.run for cell in plan.cells}
    if runs != {run for variant in plan.variants.values() for run in _runs(plan, variant, base, composer)}:
        return None
    return plan


def split_sizes(plan: SweepPlan) -> tuple[int, int] | None:
    """Return the samples of the training and the test split of the first cell that recorded them."""
    for cell in plan.cells:
        try:
            data = read_json(plan.path(cell) / SUMMARY)["data"]
            return int(data["train"]), int(data["test"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _deciding(question: dict[str, Any]) -> Any:
    """Return the keys of a question that decide its runs, as they stand in a file."""
    kept = {key: value for key, value in question.items() if key not in DESCRIPTIVE_KEYS}
    return json.loads(json.dumps(without_secrets(kept)))


def _runs(plan: SweepPlan, variant: Variant, base: Sequence[str], composer: CellComposer) -> list[str]:
    """Return the run folders that a variant has now, by its overrides."""
    arm = next(arm for arm in plan.arms if arm.name == variant.arm)
    overrides = [*base, *arm.overrides]
    width = ((plan.facts.get("match") or {}).get("arms") or {}).get(arm.name)
    if width is not None:
        overrides.append(f"model.dim={width['dim']}")
    overrides += [to_override(key, value) for key, value in variant.setting.items()]
    composed = composer.compose(overrides)
    if composed.issues:
        return []
    config = composed.config
    if config["trainer"]["precision"] == "auto":
        config["trainer"]["precision"] = variant.config["trainer"]["precision"]
    config = cell_settings.with_sweep_labels(config, plan.name, arm.name)
    runs = []
    for seed in plan.question["seeds"]:
        of_seed = cell_settings.with_split(config, seed) if plan.question.get("resplit") else config
        runs.append(f"{run_name(of_seed)}/s{seed}")
    return runs
