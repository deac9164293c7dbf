"""Arms of runs that no sweep put together, inferred from the options in which their configs differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from blockyard.atomic_files import read_yaml
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.report.load.arms import (
    ArmRuns,
    ComparisonInput,
    RunConfig,
    arm_names,
    factors,
    format_value,
    semantic_options,
)
from blockyard.report.load.group_by import Runs, by_task, group_by
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.runs.folder import CONFIG, RunFolder
from blockyard.runs.identity import identity


def from_runs(paths: Sequence[Path], *, by: str | None = None, title: str = "runs", task: int = 0) -> ComparisonInput:
    """Return the runs in these folders as arms; with `by`, one arm for each value of that key.

    task: which of the tasks (`by_task`), for runs of several
    Raises UserError where there is nothing to compare, or two arms built the same model.
    """
    records, warnings = _read_all(paths)
    tasks = by_task(records, by)
    if tasks:
        if task >= len(tasks):
            raise UserError(f"task={task}: there are {len(tasks)}, from 0: {', '.join(map(str, tasks))}")
        records = tasks[task].records
    if len(tasks) > 1:
        title = f"{title}: {tasks[task].name}"
        others = "; ".join(str(each) for index, each in enumerate(tasks) if index != task)
        warnings.append(
            f"the runs are of {len(tasks)} tasks, which no verdict mixes: this is {tasks[task]}; others are {others}"
        )
    configs, runs = _by_identity(records, warnings)
    refuse_same(configs, runs)
    arms = group_by(by, configs, runs, warnings) if by else _one_each(configs, runs)
    seeds = {run.seed for arm in arms for run in arm.runs}
    for arm in arms:
        arm.planned = len(seeds)
    every = [run for arm in arms for run in arm.runs]
    names = [each.name for each in tasks]
    return ComparisonInput(title=title, arms=arms, records=every, kind="inferred", warnings=warnings, tasks=names)


def _one_each(configs: dict[str, RunConfig], runs: Runs) -> list[ArmRuns]:
    """Return one arm for each config."""
    names, differing = arm_names(configs), factors(configs)
    return [
        ArmRuns(
            name=names[key],
            config=dict(each.config),
            choices=dict(each.choices),
            levels={factor: format_value(values[key]) for factor, values in differing.items() if key in values},
            runs=[replace(run, arm=names[key]) for run in runs[key]],
            identity=key,
        )
        for key, each in configs.items()
    ]


def _read_all(paths: Iterable[Path]) -> tuple[list[LoadedRun], list[str]]:
    records, warnings = [], []
    for path in paths:
        digits = path.name[1:]
        try:
            seed = int(digits) if path.name[:1] == "s" and digits.isdigit() else RunFolder.open(path).seed
            records.append(read_run(path, seed=seed))
        except (UserError, ValueError) as error:
            warnings.append(f"skipped: {error}")
    warnings += [f"{record.run}: {record.damage}" for record in records if record.damage]
    return sorted(records, key=lambda run: (str(run.facts.get("time") or ""), run.seed)), warnings


def _by_identity(records: list[LoadedRun], warnings: list[str]) -> tuple[dict[str, RunConfig], Runs]:
    """Group the runs by identity, the arm that was started first in front."""
    every: Runs = {}
    for record in records:
        try:
            key = str(record.facts.get("identity") or "") or RunFolder.open(record.path).identity
        except UserError as error:
            warnings.append(f"skipped: {error}")
            continue
        every.setdefault(key, []).append(record)
    configs: dict[str, RunConfig] = {}
    runs: Runs = {}
    for key, same in every.items():
        config = _config(same, warnings)
        if config is not None:
            choices = same[0].facts.get("choices")
            configs[key] = RunConfig(config, choices if isinstance(choices, dict) else {})
            # Without the user's word no package of theirs is imported, which an identity would need.
            if not config.get("allow") and key != identity(config):
                edited = "was edited, is damaged, or was written by another version"
                warnings.append(f"{same[0].path.parent.name}: {CONFIG} {edited} (identity {identity(config)})")
            runs[key] = _one_per_seed(same)
    if not configs:
        raise UserError(f"none of the {len(records)} runs can be read: {'; '.join(warnings[:3])}")
    return configs, runs


def _config(runs: list[LoadedRun], warnings: list[str]) -> Node | None:
    """Return the config that runs of one identity share, from the first that can be read."""
    problem = None
    for run in runs:
        try:
            return read_yaml(run.path / CONFIG)
        except (OSError, ValueError) as error:
            problem = " ".join(str(error).split())
    warnings.append(f"skipped: {len(runs)} runs of {runs[0].path.parent.name}, whose config is unreadable ({problem})")
    return None


def _one_per_seed(runs: list[LoadedRun]) -> list[LoadedRun]:
    """Return one run for each seed. Raises UserError where two are finished: nothing says which one counts."""
    best: dict[int, LoadedRun] = {}
    for run in runs:
        other = best.get(run.seed)
        if other and other.done and run.done and other.path != run.path:
            raise UserError(f"{other.path} and {run.path} have the same config and seed; name only one of them")
        if other is None or not other.done:
            best[run.seed] = run
    return sorted(best.values(), key=lambda run: run.seed)


def refuse_same(configs: dict[str, RunConfig], runs: Runs) -> None:
    """Raise UserError where configs of different identities have the same semantic options."""
    seen: dict[str, str] = {}
    for key, each in configs.items():
        options = repr(sorted(semantic_options(each.config).items(), key=lambda item: item[0]))
        if options in seen:
            first, second = runs[seen[options]][0].path.parent, runs[key][0].path.parent
            raise UserError(
                f"{first} and {second} built the same model: they differ in no option that changes the result; "
                "name only one of them"
            )
        seen[options] = key
