"""Writes a sweep file as W&B sweep files: `wandb sweep FILE`, then `wandb agent ID` on any number of machines.

Source: W&B's sweep schema (github.com/wandb/sweeps, config/schema.json)

An agent starts one cell by `blockyard sweep NAME --one key=value ...`, a command that reads the sweep file itself.
So a cell is the same run in the same folder, whoever starts it. The agent formats `key=value` with Python's `str`:
numbers stay as they are, all other values are written here as the text that the command line takes
(null, true, [0.9,0.95]), and no key is nested. An arm may set many keys, so one parameter holds its name; for a grid
each factor is a parameter. A search gets one file for each arm: in a single file W&B would spend the trials on the arm
that looks best.
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
from blockyard.runs.metric_name import MetricName
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
    folder = out
    if folder is None:
        file = Path(plan.question.get("path") or "sweeps/x")
        is_shipped = file.absolute().parent in shipped_folders()
        folder = (Path("sweeps") if is_shipped else file.parent) / FOLDER
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


def files(plan: SweepPlan, folder: Path = Path("sweeps") / FOLDER) -> dict[str, str]:
    """Return the content of each file by its name. folder: the place of the files, which their first lines name"""
    planned = {variant.arm for variant in plan.variants.values()}
    arms = [arm.name for arm in plan.arms if arm.name in planned]
    if not arms:
        raise UserError(f"{plan.name}: every arm is refused, so W&B has nothing to run")
    if plan.question.get("search"):
        contents = {f"{plan.name}.{arm}.yaml": _search_of(plan, arm) for arm in arms}
    else:
        contents = {f"{plan.name}.yaml": _grid(plan, arms)}
    return {name: _text(plan, folder / name, content) for name, content in contents.items()}


def _grid(plan: SweepPlan, arms: list[str]) -> dict[str, object]:
    """Return the method and parameters of a sweep without a search: every arm, tuned setting and seed."""
    seeds = list(plan.question["seeds"])
    tune = plan.question.get("tune") or {}
    if tune:
        seeds = seeds[: plan.question.get("tune_seeds") or len(seeds)]
    parameters = _factors(plan, arms) or {ARM: {"values": arms}}
    parameters |= {key: _values(values) for key, values in tune.items()}
    return {"method": "grid", "parameters": parameters | {SEED: {"values": seeds}}}


def _search_of(plan: SweepPlan, arm: str) -> dict[str, object]:
    """Return the method and parameters of the search of an arm."""
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
    """Return each factor of a grid as a parameter; empty where factors do not identify an arm, or an arm is refused."""
    if plan.question.get("kind") != "grid" or len(arms) < len(plan.arms):
        return {}
    body = plan.question["grid"]
    if {ARM, SEED, *(plan.question.get("tune") or {})} & set(body):
        return {}
    parameters: dict[str, object] = {}
    for name, levels in body.items():
        # Named levels are a mapping, whose keys the command line takes as they are.
        parameters[name] = {"values": list(map(str, levels))} if isinstance(levels, dict) else _values(levels)
    return parameters


def _distribution(dimension: Any) -> dict[str, object]:
    """Return W&B's distribution of a searched key."""
    if not isinstance(dimension, dict):
        return _values(dimension)
    low = dimension["low"]
    high = dimension["high"]
    step = dimension.get("step")
    log = bool(dimension.get("log"))
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
    """Return a list of values as a parameter. The agent writes numbers by `str`; others are written as text here."""
    parameter = []
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        parameter.append(value if is_number else to_text(value))
    return {"values": parameter}


def _text(plan: SweepPlan, path: Path, content: dict[str, object]) -> str:
    """Return the text of a file. content: the method and the parameters"""
    logger = next(iter(plan.variants.values())).config.get("logger") or {}
    if "_target_" not in logger:
        logger = logger.get("wandb") or {}  # of several loggers each has a name
    document: dict[str, object] = {"program": "blockyard"}
    if logger.get("entity"):
        document["entity"] = str(logger["entity"])
    document["project"] = str(logger.get("project") or "blockyard")
    document["name"] = path.name.removesuffix(".yaml")
    document["description"] = str(plan.question.get("claim") or plan.name)
    document["method"] = content.pop("method")
    metric = plan.facts["metric"]
    # A run sends no cost to W&B as it goes; a method that tries all cells needs none.
    if metric["name"] not in COSTS:
        direction = metric.get("validation_direction", metric["direction"])
        goal = "maximize" if direction == "max" else "minimize"
        document["metric"] = {"name": str(MetricName.parse(metric["validation"]).logged()), "goal": goal}
    document |= content
    command = ["${env}", "blockyard", "sweep", _name(plan), "--one", *_command_line(plan), "${args_no_hyphens}"]
    document["command"] = command
    body = yaml.safe_dump(redact(document), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "".join(f"# {line}".rstrip() + "\n" for line in _header(plan, path)) + body


def _header(plan: SweepPlan, path: Path) -> Iterator[str]:
    """Yield the lines of the comment at the top of a file."""
    yield f"Written by `blockyard sweep {plan.name} --to-wandb`: change the sweep file, not this one."
    yield ""
    command = [text for text in plan.facts.get("command") or () if text != "--to-wandb"]
    if command[:2] != ["blockyard", "sweep"]:  # the plan was made in Python
        command = ["blockyard", "sweep", _name(plan), *_command_line(plan)]
    first = shlex.join(["wandb", "sweep", str(path)])
    last = shlex.join(command)
    width = max(len(first), len(last)) + 2
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
    """Return the sweep file in the agent's command line: its name where that is enough, else its path."""
    path = Path(plan.question.get("path") or plan.name)
    named = sweep_names().get(plan.name)
    if named is not None and path.is_file() and named.samefile(path):
        return plan.name
    return str(path)


def _command_line(plan: SweepPlan) -> list[str]:
    """Return the arguments of the command line that apply to every cell. Raises UserError for a secret."""
    arguments = []
    for folder in plan.facts.get("config_dirs") or ():
        arguments += ["--config-dir", folder]
    overrides = list(plan.facts.get("overrides") or ())
    for override, redacted in zip(overrides, redact_command(overrides), strict=True):
        if override != redacted:
            raise UserError(f"--to-wandb: {redacted} would be a secret in the file; set it in the environment")
    arguments += overrides
    if Path(plan.outputs) != Path(default_outputs()).absolute():
        arguments.append(f"outputs={plan.outputs}")
    return arguments
