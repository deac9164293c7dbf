"""The input of a comparison: the arms, their runs, and warnings about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.config import tree
from blockyard.config.tree import Node
from blockyard.errors import fold
from blockyard.report.load.document import SettingRow
from blockyard.report.load.run_record import LoadedRun
from blockyard.runs.costs import COSTS
from blockyard.runs.identity import semantic
from blockyard.sweep.cells import Setting
from blockyard.sweep.plan.sweep_plan import PlanFacts
from blockyard.sweep.stopping.due import Standing

MAX_LENGTH = 72  # characters of an arm's name that no sweep gave


@dataclass(frozen=True)
class ArmRuns:
    """One arm.

    config: complete, of any of its runs; choices: the YAML of each family
    runs: those of the setting that counts; planned: how many seeds it should have
    chosen: the tuned setting, if any; tried: how many settings were tried, None where nothing is tuned
    averages: metric -> seed -> value, where a value is an average over runs instead of one run's own
    """

    name: str
    config: Node = field(default_factory=dict)
    choices: dict[str, str | None] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    levels: dict[str, str] = field(default_factory=dict)
    runs: list[LoadedRun] = field(default_factory=list)
    planned: int = 0
    chosen: Setting | None = None
    tried: int | None = None
    identity: str | None = None
    refused: tuple[str, ...] = ()
    averages: dict[str, dict[int, float]] | None = None

    def values(self, metric: str) -> dict[int, float]:
        """Return the values of a metric or cost, by seed."""
        if self.averages is not None:
            return self.averages.get(metric, {})
        return {run.seed: value for run in self.runs if (value := run.value(metric)) is not None}

    def outcomes(self, metric: str) -> dict[int, float]:
        """Return the values of a metric by seed, NaN for a run that diverged: it has no value, but is not missing.

        Costs have none of these: a loss that is not finite makes no step longer.
        """
        values = dict(self.values(metric))
        if metric in COSTS:
            return values
        for run in self.runs:
            if run.diverged and run.value(metric) is None:
                values[run.seed] = math.nan
        return values

    @property
    def done(self) -> list[LoadedRun]:
        """The runs that finished."""
        return [run for run in self.runs if run.done]


@dataclass(frozen=True)
class ComparisonInput:
    """All arms and runs of a comparison.

    records: every cell, of all settings; arms: in order
    folder: the sweep's own; kind: how the arms were made: arms, grid, zip, one_at_a_time, leave_one_out, inferred
    tasks: names of the tasks that the selected runs are of, where no sweep put them together
    standing: of a sweep that stops when it is decided
    metric, direction: the sweep's own; notes: decisions of the planner that the user should know
    """

    title: str
    arms: list[ArmRuns]
    records: list[LoadedRun]
    kind: str = "arms"
    question: dict[str, Any] | None = None
    baseline: str | None = None
    metric: str | None = None
    direction: str | None = None
    folder: Path | None = None
    facts: PlanFacts = field(default_factory=PlanFacts)
    tuning: list[SettingRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    standing: Standing | None = None

    def arm(self, name: str) -> ArmRuns | None:
        """Return the arm of that name, if there is one."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True)
class RunConfig:
    """A config that runs of several seeds share. choices: the YAML of each family."""

    config: Mapping[str, Any]
    choices: Mapping[str, str | None]


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys; empty mappings are left out."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def semantic_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that change the result, flattened. Imports no package that the config allows."""
    return flatten(semantic({**config, "allow": []}))


def choice_name(run: RunConfig, family: str) -> str | None:
    """Return the choice of a family as one types it: the YAML's name, else the module of the class."""
    recorded = run.choices.get(family)
    if recorded:
        return str(recorded)
    node = run.config.get(family)
    target = str(node.get("_target_", "")) if isinstance(node, Mapping) else ""
    return target.split(".")[-2] if target.count(".") else None


def factors(runs: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """Return the options that differ: key -> {name of the config: value}; a family's choice precedes its options.

    An option that only some choices have is listed only where configs of the same choice differ in it.
    """
    flat = {name: _own_options(run) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for options in flat.values() for key in options))
    differing = [key for key in keys if len({format_value(options.get(key)) for options in flat.values()}) > 1]
    result: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(key.partition(".")[0] for key in differing):
        inside = [key for key in differing if key.partition(".")[0] == family]
        choices = {name: choice_name(run, family) for name, run in runs.items()}
        if len(set(choices.values())) > 1:
            result[family] = dict(choices)
            inside = [key for key in inside if not key.endswith("_target_") and _varies_within(key, flat, choices)]
        for key in inside:
            values = {name: tree.get(run.config, key) for name, run in runs.items()}
            result[key] = {name: value for name, value in values.items() if value is not tree.ABSENT}
    return result


def arm_names(runs: Mapping[str, RunConfig]) -> dict[str, str]:
    """Return a readable, unique name for each config: `block=post_norm optimizer.lr=0.001`.

    Where the runs have names of their own that differ, that comes first: `reviews optimizer.lr=0.001`.
    """
    differing = factors(runs)
    names = {str(run.config.get("name") or "") for run in runs.values()}
    result: dict[str, str] = {}
    for name, run in runs.items():
        parts = [f"{key}={format_value(values[name])}" for key, values in differing.items() if name in values]
        if len(names) > 1 and run.config.get("name"):
            parts.insert(0, str(run.config["name"]))
        text = " ".join(parts) or str(run.config.get("name") or name)
        if len(text) > MAX_LENGTH:
            text = f"{text[: MAX_LENGTH - 12].rstrip()}... {name[-8:]}"
        if text in result.values():
            text = f"{text} ({name})"
        result[name] = text
    return result


def counted(names: Sequence[str], kind: str) -> str:
    """Return one name, or of several their number, their kind and the first of them: "12 arms (a, b and 10 more)"."""
    if len(names) == 1:
        return names[0]
    return f"{len(names)} {kind} ({fold(names)})"


def format_value(value: Any) -> str:
    """Format a config value as one types it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return str(value)


def _own_options(run: RunConfig) -> dict[str, Any]:
    """Return the options that change the result, without the run that this one goes on from: the budget says more."""
    options = semantic_options(run.config)
    if options.pop("init.parent_sha256", None) is None:
        return options
    from blockyard.config.defaults import default_node

    defaults = {f"init.{key}": value for key, value in flatten(default_node("init", "default")).items()}
    if all(options[key] == defaults.get(key) for key in options if key.startswith("init.")):
        options = {key: value for key, value in options.items() if not key.startswith("init.")}
    return options


def _varies_within(key: str, flat: Mapping[str, Mapping[str, Any]], choices: Mapping[str, str | None]) -> bool:
    """Return whether an option differs between configs of the same choice."""
    by_choice: dict[str | None, set[str]] = {}
    for name, options in flat.items():
        by_choice.setdefault(choices[name], set()).add(format_value(options.get(key)))
    return any(len(values) > 1 for values in by_choice.values())
