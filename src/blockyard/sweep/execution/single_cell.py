"""Trains one cell of a sweep by name, for W&B agents: `blockyard sweep FILE --one arm=pre_norm seed=0`.

The arguments name an arm (or the level of each factor of a grid), a seed, and a value for each key that
the file tunes or searches. All other overrides change the base, as they do without --one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from blockyard.config.option_text import config_value, read_option
from blockyard.config.tree import Node
from blockyard.engine.loggers.run_log import replay
from blockyard.engine.run import train_and_print
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.start import create_run
from blockyard.sweep.cells import Setting, cell_name
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.cell_settings import with_run_name, with_split
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search.trial_config import arm_template
from blockyard.sweep.spec.keys import space_of
from blockyard.sweep.spec.override_text import to_label
from blockyard.sweep.spec.question import read

log = logging.getLogger("blockyard")


def run_cell(
    path: Path,
    arguments: Sequence[str],
    *,
    outputs: str = "outputs",
    config_dirs: Sequence[str] = (),
    command: Sequence[str] = (),
) -> int:
    """Train the cell that the arguments name, or find it done. Return the exit code of `blockyard train`.

    Raises UserError where they name no cell, and BadQuestionError as the planner does.
    """
    config, choices = cell_config(path, arguments, outputs=outputs, config_dirs=config_dirs, command=command)
    try:
        folder = create_run(config, command=list(command) or None, choices=choices)
    except AlreadyDoneError as done:
        sys.stdout.write(f"{done}\n")
        _replay_for_agent(done.folder)
        return 0
    with folder:
        return train_and_print(folder, resume=folder.resumes)


def cell_config(
    path: Path, arguments: Sequence[str], *, outputs: str, config_dirs: Sequence[str] = (), command: Sequence[str] = ()
) -> tuple[Node, dict[str, str | None]]:
    """Return the complete config and the choices of the cell that the arguments name. Raises as `run_cell` does."""
    question = read(path)
    values: dict[str, str] = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        values[key] = value
    keys_of_cell = {"arm", "seed", *question.tune, *question.space}
    if question.keys.search:
        keys_of_cell.update(*question.keys.search.get("only", {}).values())
    if question.kind == "grid" and "arm" not in values:
        keys_of_cell.update(question.body)
    base = [argument for argument in arguments if argument.partition("=")[0] not in keys_of_cell]
    plan = make_plan(path, outputs=outputs, config_dirs=config_dirs, overrides=base, command=command)
    arm = _arm(plan, values)
    return _config(plan, arm, _setting(plan, arm, values), _seed(plan, values))


def _arm(plan: SweepPlan, values: dict[str, str]) -> str:
    """Return the named arm. Raises UserError where there is none."""
    names = [arm.name for arm in plan.arms]
    name = values.get("arm")
    if name is None and plan.question.get("kind") == "grid":
        factors = list(plan.question["grid"])
        missing = [f"{factor}=..." for factor in factors if factor not in values]
        if missing:
            raise UserError(f"--one: give {' and '.join(missing)}, or arm=...")
        # A level has a label, which may differ from its value: 0.001 for 1e-3.
        labels = {factor: to_label(read_option(factor, values[factor], config_value)) for factor in factors}
        for arm in plan.arms:
            if all(arm.levels.get(factor) in (values[factor], labels[factor]) for factor in factors):
                return arm.name
        text = " ".join(f"{factor}={values[factor]}" for factor in factors)
        raise UserError(f"--one: no arm of {plan.name} has {text} (arms: {', '.join(names)})")
    if name not in names:
        raise UserError(f"--one: arm={name}: {plan.name} has no such arm (arms: {', '.join(names)})")
    return str(name)


def _setting(plan: SweepPlan, arm: str, values: dict[str, str]) -> Setting:
    """Return the value of every key that is tuned or searched. Raises UserError where one is missing."""
    keys = list(plan.question.get("tune") or {})
    if plan.question.get("search"):
        keys += space_of(plan.search, arm)
    missing = [key for key in keys if key not in values]
    if missing:
        raise UserError(f"--one: give a value for {' and '.join(missing)}, which {plan.name} tunes or searches")
    return {key: read_option(key, values[key], config_value) for key in keys}


def _seed(plan: SweepPlan, values: dict[str, str]) -> int:
    text = values.get("seed")
    if text is None and len(plan.question["seeds"]) == 1:
        return int(plan.question["seeds"][0])
    if text is None or not text.isdecimal():
        raise UserError(f"--one: seed={text}: expected a seed, such as seed={plan.question['seeds'][0]}")
    return int(text)


def _config(plan: SweepPlan, arm: str, setting: Setting, seed: int) -> tuple[Node, dict[str, str | None]]:
    """Return the cell's complete config and choices. Raises UserError where it was refused or is not in the plan."""
    config: Node = {}
    choices: dict[str, str | None] = {}
    if plan.question.get("search"):
        template = arm_template(plan, arm, CellComposer(plan.facts.get("config_dirs") or (), outputs=plan.outputs))
        if template:
            config, choices, problems = template.config(setting, seed)
        else:
            problems = _reasons(plan, arm, {})
    else:
        variants = [variant for variant in plan.variants.values() if variant.arm == arm and variant.setting == setting]
        problems = [] if variants else _reasons(plan, arm, setting)
        for variant in variants[:1]:
            config = dict(variant.config) | {"seed": seed, "outputs": plan.outputs}
            if plan.question.get("resplit"):
                config = with_split(config, seed)
            choices = dict(variant.choices)
    if problems:
        text = "".join(f" {key}={value}" for key, value in setting.items())
        raise UserError("\n  - ".join([f"{plan.name} arm={arm}{text} cannot run", *problems]))
    return with_run_name(config, cell_name(arm, setting, seed)), choices


def _reasons(plan: SweepPlan, arm: str, setting: Setting) -> list[str]:
    """Return why an arm has no variant of a setting."""
    reasons: list[str] = []
    for refused in plan.refused:
        if refused.arm == arm and refused.setting in ({}, setting):
            reasons += refused.reasons
    if reasons:
        return reasons
    settings = [str(variant.setting) for variant in plan.variants.values() if variant.arm == arm]
    return [f"{setting} is not a setting of the file; its settings: {', '.join(settings)}"]


def _replay_for_agent(folder: RunFolder) -> None:
    """Log a finished run again: a W&B agent waits for the metrics of the run that it started."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return
    try:
        replay(folder)
    except Exception as error:  # the run is done whatever W&B does
        log.warning("W&B did not get the metrics of %s: %s", folder.name, error)
