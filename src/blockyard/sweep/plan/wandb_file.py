"""A sweep file as W&B sweep files: `wandb sweep FILE`, then `wandb agent ID` on any number of machines.

Source: W&B's sweep schema (github.com/wandb/sweeps, config/schema.json)

An agent starts `blockyard sweep NAME --one key=value ...`, one cell, which reads the sweep file itself.
So a cell is the same run in the same folder, whoever starts it. The agent formats `key=value` with
Python's `str`: numbers stay as they are, all other values are written here as the text that the command
line takes (null, true, [0.9,0.95]), and no key is nested. An arm may set many keys, so one parameter
holds its name; for a grid each factor is a parameter. A search gets one file for each arm: in a single
file W&B would spend the trials on the arm that looks best.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from blockyard.atomic_files import write_text
from blockyard.config.override_grammar import to_text
from blockyard.config.project_file import default_outputs
from blockyard.errors import UserError
from blockyard.runs.costs import COSTS
from blockyard.runs.redact import redact, redact_command
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.keys import space_of
from blockyard.sweep.spec.locate import shipped_folders, sweep_names

FOLDER = "wandb"
ARM, SEED = "arm", "seed"
_METHODS = {"random": "random", "tpe": "bayes"}


def write(plan: SweepPlan, out: Path | None = None) -> str:
    """Write the files of a sweep and return their paths, one a line. Raises UserError.

    out: a folder; None is wandb/ next to the sweep file, or ./sweeps/wandb/ for a shipped one
    """
    folder = out or _default_folder(Path(plan.question.get("path") or "sweeps/x"))
    paths = []
    for name, content in files(plan, folder).items():
        paths.append(folder / name)
        try:
            write_text(folder / name, content)
        except OSError as error:
            raise UserError(
                f"cannot write {folder / name} ({error.strerror or error}); copy the sweep file to a folder of "
                "your own, such as ./sweeps, and name that one"
            ) from error
    return "\n".join(map(str, paths))


def _default_folder(path: Path) -> Path:
    """wandb/ next to a sweep file of the user's; of a shipped one below the working folder."""
    shipped = path.absolute().parent in shipped_folders()
    return (Path("sweeps") if shipped else path.parent) / FOLDER


def files(plan: SweepPlan, folder: Path = Path("sweeps") / FOLDER) -> dict[str, str]:
    """The content of each file by its name. folder: where they will lie, as their first lines name them"""
    arms = [arm.name for arm in plan.arms if any(v.arm == arm.name for v in plan.variants.values())]
    if not arms:
        raise UserError(f"{plan.name}: every arm is refused, so W&B has nothing to run")
    if plan.question.get("search"):
        return {
            f"{plan.name}.{arm}.yaml": _text(plan, folder / f"{plan.name}.{arm}.yaml", _searched(plan, arm))
            for arm in arms
        }
    return {f"{plan.name}.yaml": _text(plan, folder / f"{plan.name}.yaml", _grid(plan, arms))}


def _grid(plan: SweepPlan, arms: list[str]) -> dict[str, object]:
    seeds = list(plan.question["seeds"])
    tuning = seeds[: plan.question.get("tune_seeds") or len(seeds)] if plan.question.get("tune") else seeds
    tuned = {key: _values(values) for key, values in (plan.question.get("tune") or {}).items()}
    parameters = _factors(plan, arms) or {ARM: {"values": arms}}
    return {"method": "grid", "parameters": {**parameters, **tuned, SEED: {"values": tuning}}}


def _searched(plan: SweepPlan, arm: str) -> dict[str, object]:
    search = plan.search
    if search.get("seeds", 1) > 1:
        raise UserError(
            f"{plan.name}: W&B's agents run a setting once, and search.seeds asks for {search['seeds']} seeds"
        )
    content: dict[str, object] = {"method": _METHODS[search["sampler"]], "run_cap": search["trials"]}
    if search["pruner"] == "halving":
        content["early_terminate"] = {"type": "hyperband", "min_iter": 1, "eta": 2}
    space = {key: _distribution(dimension) for key, dimension in space_of(search, arm).items()}
    fixed = {ARM: {"value": arm}, SEED: {"value": plan.question["seeds"][0]}}
    return content | {"parameters": {**fixed, **space}}


def _factors(plan: SweepPlan, arms: list[str]) -> dict[str, object]:
    """Each factor of a grid as a parameter; empty where the factors do not identify an arm, or an arm is refused."""
    if plan.question.get("kind") != "grid" or len(arms) < len(plan.arms):
        return {}
    body = plan.question["grid"]
    if {ARM, SEED, *(plan.question.get("tune") or {})} & set(body):
        return {}
    return {
        name: {"values": list(map(str, levels))} if isinstance(levels, dict) else _values(levels)
        for name, levels in body.items()
    }


def _distribution(dimension: Any) -> dict[str, object]:
    if not isinstance(dimension, dict):
        return _values(dimension)
    low, high, step, log = dimension["low"], dimension["high"], dimension.get("step"), bool(dimension.get("log"))
    if dimension.get("int"):
        if log or step not in (None, 1):
            kind = "q_log_uniform_values" if log else "q_uniform"
            return {"distribution": kind, "min": low, "max": high, "q": step or 1}
        return {"distribution": "int_uniform", "min": low, "max": high}
    bounds = {"min": float(low), "max": float(high)}
    if step is not None and not log:
        return {"distribution": "q_uniform", **bounds, "q": float(step)}
    return {"distribution": "log_uniform_values" if log else "uniform", **bounds}


def _values(values: list[Any]) -> dict[str, object]:
    return {"values": [_value(value) for value in values]}


def _value(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else to_text(value)


def _text(plan: SweepPlan, path: Path, content: dict[str, object]) -> str:
    metric = plan.facts["metric"]
    goal = {"max": "maximize", "min": "minimize"}[metric.get("validation_direction", metric["direction"])]
    # A run sends no cost to W&B as it goes; a method that tries all cells needs none.
    chosen = {} if metric["name"] in COSTS else {"metric": {"name": metric["validation"], "goal": goal}}
    document = {
        "program": "blockyard",
        **_account(plan),
        "name": path.name.removesuffix(".yaml"),
        "description": str(plan.question.get("claim") or plan.name),
        "method": content.pop("method"),
        **chosen,
        **content,
        "command": ["${env}", "blockyard", "sweep", _name(plan), "--one", *_command_line(plan), "${args_no_hyphens}"],
    }
    body = yaml.safe_dump(redact(document), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "".join(f"# {line}".rstrip() + "\n" for line in _header(plan, path)) + body


def _header(plan: SweepPlan, path: Path) -> Iterator[str]:
    yield f"Written by `blockyard sweep {plan.name} --to-wandb`: change the sweep file, not this one."
    yield ""
    typed = [text for text in plan.facts.get("command") or () if text != "--to-wandb"]
    is_typed = typed[:2] == ["blockyard", "sweep"]
    first = shlex.join(["wandb", "sweep", str(path)])
    last = shlex.join(typed if is_typed else ["blockyard", "sweep", _name(plan), *_command_line(plan)])
    width = max(map(len, (first, last))) + 2
    yield f"{first:<{width}}prints the sweep's ID"
    yield f"{'wandb agent ID':<{width}}runs cells until none is left, on any number of machines"
    yield f"{last:<{width}}on the machine with the runs: trains what is missing and compares"
    if plan.question.get("search") and plan.search["pruner"] == "median":
        yield ""
        yield "W&B has no median pruning: every trial is trained to its end."
    if plan.question.get("tune_seeds"):
        yield ""
        yield "Settings are tried on the first seeds only; the last command trains the chosen ones on the other seeds."


def _name(plan: SweepPlan) -> str:
    """The sweep file in the agent's command line: its name where that is enough, else its path."""
    path = Path(plan.question.get("path") or plan.name)
    named = sweep_names().get(plan.name)
    return plan.name if named is not None and path.is_file() and named.samefile(path) else str(path)


def _command_line(plan: SweepPlan) -> list[str]:
    """The arguments of the command line that apply to every cell."""
    folders = [argument for folder in plan.facts.get("config_dirs") or () for argument in ("--config-dir", folder)]
    outputs = [] if Path(plan.outputs) == Path(default_outputs()).absolute() else [f"outputs={plan.outputs}"]
    overrides = list(plan.facts.get("overrides") or ())
    for text, clean in zip(overrides, redact_command(overrides), strict=True):
        if text != clean:
            raise UserError(f"--to-wandb: {clean} would be a secret in the file; set it in the environment")
    return [*folders, *overrides, *outputs]


def _account(plan: SweepPlan) -> dict[str, str]:
    """The project of W&B, and the entity where the sweep's logger names one."""
    logger = next(iter(plan.variants.values())).config.get("logger") or {}
    own = logger if "_target_" in logger else logger.get("wandb") or {}  # of several loggers each has a name
    names = {"entity": own.get("entity"), "project": own.get("project") or "blockyard"}
    return {key: str(name) for key, name in names.items() if name}
