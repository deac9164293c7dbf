"""One cell of a sweep, by name: `blockyard sweep FILE --one arm=pre_norm seed=0`; what a W&B agent starts.

The words name an arm (or the level of each factor of a grid), a seed, and a value for each key that
the file tunes or searches. Other words change the base, as they do without --one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.engine.run import fit
from blockyard.errors import UserError
from blockyard.runs.folder import AlreadyDone, RunFolder
from blockyard.runs.start import create_run
from blockyard.sweep.plan.shared_settings import called
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec import override_text as spelling
from blockyard.sweep.spec.question import read

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")


def run(
    path: Path,
    words: Sequence[str],
    *,
    outputs: str = "outputs",
    config_dirs: Sequence[str] = (),
    command: Sequence[str] = (),
) -> int:
    """Train the cell that the words name, or find it done: `blockyard train`'s exit code.

    Raises UserError where they name none, and BadQuestion as the planner does.
    """
    config, choices = cell(path, words, outputs=outputs, config_dirs=config_dirs, command=command)
    try:
        folder = create_run(config, command=list(command) or None, choices=choices)
    except AlreadyDone as done:
        sys.stdout.write(f"{done}\n")
        _retold(done.folder)
        return 0
    with folder:
        return fit(folder, resume=folder.resumes)


def cell(
    path: Path, words: Sequence[str], *, outputs: str, config_dirs: Sequence[str] = (), command: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The complete config and the choices of the cell that the words name. Raises as `run` does."""
    from blockyard.sweep.plan.planner import make

    question = read(path)
    factors = question.body if question.kind == "grid" else {}
    space = [*question.tune, *((question.search or {}).get("space") or {})]
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    own = {"arm", "seed", *space, *([] if "arm" in given else factors)}
    base = [word for word in words if word.partition("=")[0] not in own]
    plan = make(path, outputs=outputs, config_dirs=config_dirs, overrides=base, command=command)
    return _config(plan, _arm(plan, given), _setting(plan, given), _seed(given, plan))


def _arm(plan: SweepPlan, given: dict[str, str]) -> str:
    """The arm that is named. Raises UserError where there is none, with the reasons where it was refused."""
    known = [arm.name for arm in plan.arms]
    name = given.get("arm")
    if name is None and plan.question.get("kind") == "grid":
        asked = {factor: given.get(factor) for factor in plan.question["grid"]}
        missing = [factor for factor, value in asked.items() if value is None]
        if missing:
            raise UserError(f"--one: say {' and '.join(f'{factor}=...' for factor in missing)}, or arm=...")
        name = next((arm.name for arm in plan.arms if _is(arm.levels, asked)), None)
        if name is None:
            said = " ".join(f"{factor}={value}" for factor, value in asked.items())
            raise UserError(f"--one: no arm of {plan.name} is {said} (arms: {', '.join(known)})")
    if name not in known:
        raise UserError(f"--one: arm={name}: {plan.name} has no such arm (arms: {', '.join(known)})")
    return str(name)


def _is(levels: dict[str, str], asked: dict[str, str | None]) -> bool:
    return all(levels.get(factor) in (text, spelling.label(_read(factor, str(text)))) for factor, text in asked.items())


def _setting(plan: SweepPlan, given: dict[str, str]) -> dict[str, Any]:
    """The value of every key that is tuned or searched. Raises UserError where one is missing."""
    space = list(plan.question.get("tune") or (plan.question.get("search") or {}).get("space") or {})
    missing = [key for key in space if key not in given]
    if missing:
        raise UserError(f"--one: say a value for {' and '.join(missing)}, which {plan.name} chooses")
    return {key: _read(key, given[key]) for key in space}


def _seed(given: dict[str, str], plan: SweepPlan) -> int:
    text = given.get("seed")
    if text is None and len(plan.question["seeds"]) == 1:
        return int(plan.question["seeds"][0])
    if text is None or not text.isdecimal():
        raise UserError(f"--one: seed={text}: say one, such as seed={plan.question['seeds'][0]}")
    return int(text)


def _config(plan: SweepPlan, arm: str, setting: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cell's complete config and choices. Raises UserError where it was refused, or is none of the plan's."""
    from blockyard.config.compose_many import Composer
    from blockyard.sweep.search.trial_config import template

    variants = [variant for variant in plan.variants.values() if variant.arm == arm]
    if plan.question.get("search"):
        found = template(plan, arm, Composer(plan.facts.get("config_dirs") or ()).compose)
        config, choices, problems = found.config(setting, seed) if found else ({}, {}, _reasons(plan, arm, {}))
    else:
        variant = next((variant for variant in variants if variant.setting == setting), None)
        problems = [] if variant else _reasons(plan, arm, setting)
        config = dict(variant.config) | {"seed": seed, "outputs": plan.outputs} if variant else {}
        choices = dict(variant.choices) if variant else {}
    if problems:
        said = "".join(f" {key}={value}" for key, value in setting.items())
        raise UserError("\n  - ".join([f"{plan.name} arm={arm}{said} cannot run", *problems]))
    return called(config, f"{arm}/s{seed}"), choices


def _reasons(plan: SweepPlan, arm: str, setting: dict[str, Any]) -> list[str]:
    found = [reason for r in plan.refused if r.arm == arm and r.setting in ({}, setting) for reason in r.reasons]
    tried = [dict(variant.setting) for variant in plan.variants.values() if variant.arm == arm]
    return found or [f"{setting} is no setting of the file; it has {', '.join(map(str, tried))}"]


def _read(key: str, text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(f"{key}={text}").value()
    except HydraException as error:
        raise UserError(f"{key}={text} cannot be read ({str(error).splitlines()[0]})") from error


def _retold(folder: RunFolder) -> None:
    """An agent waits for the metrics of the run it started, also where the run was made before."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return
    from blockyard.engine.loggers.replay import retell

    try:
        retell(folder)
    except Exception as error:  # the run is done whatever W&B says
        log.warning("W&B was not told of %s: %s", folder.name, error)
