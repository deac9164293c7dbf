"""Arms of runs that no sweep put together, inferred from the options in which their configs differ.

An arm is a config, or with `by` each value of a config key, or each combination of values of several; other
differences are averaged over, seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_yaml
from blockyard.config import tree
from blockyard.config.tree import Node
from blockyard.errors import UserError, fold
from blockyard.report.load.arms import (
    ArmRuns,
    ComparisonInput,
    RunConfig,
    arm_names,
    choice_name,
    counted,
    factors,
    format_value,
    semantic_options,
)
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.runs.folder import CONFIG, RunFolder
from blockyard.runs.identity import identity

Runs = dict[str, list[LoadedRun]]  # identity of a config -> its runs, one for each seed


def from_runs(
    paths: Sequence[Path],
    *,
    by: Sequence[str] = (),
    title: str = "runs",
    task: int = 0,
    requested: str | None = None,
) -> ComparisonInput:
    """Return the runs in these folders as arms; with `by`, one arm for each combination of values of those keys.

    requested: the metric that is compared, if it is not the runs' own
    task: which of the tasks (`by_task`), for runs of several
    Raises UserError where there is nothing to compare, or two arms built the same model.
    """
    records, read_warnings = _read_all(paths, requested)
    warnings = list(read_warnings)
    tasks = by_task(records, by)
    if tasks:
        if task >= len(tasks):
            raise UserError(f"task={task}: there are {len(tasks)}, from 0: {', '.join(map(str, tasks))}")
        records = tasks[task].records
    if len(tasks) > 1:
        title = f"{title}: {tasks[task].name}"
        others = "; ".join(str(other) for index, other in enumerate(tasks) if index != task)
        warnings.append(
            f"the runs are of {len(tasks)} tasks, which no verdict mixes: this is {tasks[task]}; others are {others}"
        )
    configs, runs, unread = _by_identity(records, warnings)
    warnings += unread
    refuse_same(configs, runs)
    if by:
        arms, left_out = group_by(by, configs, runs)
        warnings += left_out
    else:
        arms = _one_each(configs, runs)
    every = [run for arm in arms for run in arm.runs]
    planned = len({run.seed for run in every})
    arms = [replace(arm, planned=planned) for arm in arms]
    names = [group.name for group in tasks]
    return ComparisonInput(title=title, arms=arms, records=every, kind="inferred", warnings=warnings, tasks=names)


def _one_each(configs: dict[str, RunConfig], runs: Runs) -> list[ArmRuns]:
    """Return one arm for each config."""
    names = arm_names(configs)
    differing = factors(configs)
    arms = []
    for key, config in configs.items():
        levels = {}
        for factor, values in differing.items():
            if key in values:
                levels[factor] = format_value(values[key])
        arm = ArmRuns(
            name=names[key],
            config=dict(config.config),
            choices=dict(config.choices),
            levels=levels,
            runs=[replace(run, arm=names[key]) for run in runs[key]],
            identity=key,
        )
        arms.append(arm)
    return arms


def _read_all(paths: Iterable[Path], requested: str | None) -> tuple[list[LoadedRun], list[str]]:
    """Return the runs in these folders, the run that was started first in front, and warnings."""
    records: list[LoadedRun] = []
    skipped: list[str] = []
    for path in paths:
        digits = path.name[1:]
        try:
            is_named = path.name[:1] == "s" and digits.isdigit()
            seed = int(digits) if is_named else RunFolder.open(path).seed
            records.append(read_run(path, seed=seed, names=[requested] if requested else []))
        except (UserError, ValueError) as error:
            skipped.append(str(error))
    damaged: dict[str, list[str]] = {}
    for record in records:
        if record.damage:
            damaged.setdefault(record.damage, []).append(record.run)
    warnings = []
    if skipped:
        warnings.append(f"skipped: {fold(skipped)}")
    for damage, runs in damaged.items():
        warnings.append(f"{counted(runs, 'runs')}: {damage}")
    return sorted(records, key=lambda run: (str(run.facts.get("time") or ""), run.seed)), warnings


def _by_identity(records: list[LoadedRun], earlier: Sequence[str]) -> tuple[dict[str, RunConfig], Runs, list[str]]:
    """Return the configs and runs by identity, the arm that was started first in front, and warnings.

    earlier: warnings about the same runs. Raises UserError where no config can be read.
    """
    warnings: list[str] = []
    every: Runs = {}
    skipped: list[str] = []
    for record in records:
        try:
            key = str(record.facts.get("identity") or "") or RunFolder.open(record.path).identity
        except UserError as error:
            skipped.append(str(error))
            continue
        every.setdefault(key, []).append(record)
    if skipped:
        warnings.append(f"skipped: {fold(skipped)}")
    configs: dict[str, RunConfig] = {}
    runs: Runs = {}
    edited: list[str] = []
    unreadable: dict[str, list[str]] = {}
    for key, same in every.items():
        try:
            config = _config(same)
        except UserError as error:
            unreadable.setdefault(str(error), []).append(f"{len(same)} runs of {same[0].path.parent.name}")
        else:
            choices = same[0].facts.get("choices")
            configs[key] = RunConfig(config, choices if isinstance(choices, dict) else {})
            # Without the user's word no package of theirs is imported, which an identity would need.
            if not config.get("allow") and key != identity(config):
                edited.append(f"{same[0].path.parent.name} (identity {identity(config)})")
            runs[key] = _one_per_seed(same)
    for problem, names in unreadable.items():
        warnings.append(f"skipped: {fold(names)}, whose config is unreadable ({problem})")
    if edited:
        cause = f"{CONFIG} was edited, is damaged, or was written by another version"
        warnings.append(f"{counted(edited, 'configs')}: {cause}")
    if not configs:
        raise UserError(f"none of the {len(records)} runs can be read: {'; '.join([*earlier, *warnings][:3])}")
    return configs, runs, warnings


def _config(runs: list[LoadedRun]) -> Node:
    """Return the config that runs of one identity share, from the first that can be read. Raises UserError."""
    problem = ""
    for run in runs:
        try:
            return read_yaml(run.path / CONFIG)
        except (OSError, ValueError) as error:
            problem = " ".join(str(error).split())
    raise UserError(problem)


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
    for key, config in configs.items():
        options = repr(sorted(semantic_options(config.config).items(), key=lambda item: item[0]))
        if options in seen:
            first, second = runs[seen[options]][0].path.parent, runs[key][0].path.parent
            raise UserError(
                f"{first} and {second} built the same model: they differ in no option that changes the result; "
                "name only one of them"
            )
        seen[options] = key


def split_keys(by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the config keys that `by` names, one after the other: "position,optimizer.lr" are two.

    Raises UserError for an empty key and for one that is named twice.
    """
    if by is None:
        return ()
    text = by if isinstance(by, str) else ",".join(by)
    keys = tuple(key.strip() for key in text.split(","))
    if "" in keys:
        raise UserError(f"--by {text}: a key is empty; expected KEY or KEY,KEY, such as position,optimizer.lr")
    if len(set(keys)) < len(keys):
        raise UserError(f"--by {text}: a key is named twice")
    return keys


def group_by(keys: Sequence[str], configs: dict[str, RunConfig], runs: Runs) -> tuple[list[ArmRuns], list[str]]:
    """Return one arm for each combination of values of `keys`, averaged over the other settings, and warnings.

    Only settings that all arms have are averaged over. Raises UserError where no run has a key, all have the same
    value of it, or the arms have no setting in common.
    """
    differing = factors(configs)
    others = _others(differing, keys)
    levels = _levels(keys, configs, list(differing))
    settings: dict[str, tuple[tuple[str, str], ...]] = {}
    for config_hash in configs:
        setting = []
        for name in others:
            if config_hash in differing[name]:
                setting.append((name, format_value(differing[name][config_hash])))
        settings[config_hash] = tuple(setting)
    # An arm without one of the settings would be averaged over other conditions than the rest.
    by_level = [{settings[identity] for identity in members} for members in levels.values()]
    shared = set.intersection(*by_level)
    listed = ", ".join(others)
    if not shared:
        raise UserError(f"--by {','.join(keys)}: the arms have no setting of {listed} in common; name runs that do")
    warnings = []
    if len(shared) > 1:
        warnings.append(f"each value is the mean over {len(shared)} settings of {listed}, seed by seed")
    dropped = sum(setting not in shared for setting in settings.values())
    if dropped:
        warnings.append(f"{dropped} settings that not every arm has are left out")
    arms = []
    for texts in sorted(levels, key=lambda texts: [_natural_order(text) for text in texts]):
        members = [identity for identity in levels[texts] if settings[identity] in shared]
        arms.append(_arm(dict(zip(keys, texts, strict=True)), members, settings, configs, runs))
    return arms, warnings


def _others(names: Iterable[str], keys: Sequence[str]) -> list[str]:
    """Return the names of options that are neither one of the keys nor an option of one."""
    others = []
    for name in names:
        if name not in keys and not name.startswith(tuple(f"{key}." for key in keys)):
            others.append(name)
    return others


def _levels(
    keys: Sequence[str], configs: dict[str, RunConfig], differing: list[str]
) -> dict[tuple[str, ...], list[str]]:
    """Return values of the keys, as texts -> identities of the configs that have them."""
    texts: dict[str, list[str]] = {config_hash: [] for config_hash in configs}
    for key in keys:
        values = {config_hash: value_of(config, key) for config_hash, config in configs.items()}
        if all(value is None for value in values.values()):
            raise UserError(f"--by {key}: no run has this key; the runs differ in {', '.join(differing) or 'nothing'}")
        for config_hash, value in values.items():
            texts[config_hash].append(format_value(value))
        distinct = {format_value(value) for value in values.values()}
        if len(distinct) < 2:
            listed = ", ".join(_others(differing, [key])) or "nothing"
            raise UserError(f"--by {key}: all runs have {key}={distinct.pop()}; they differ in {listed}")
    levels: dict[tuple[str, ...], list[str]] = {}
    for config_hash, of_config in texts.items():
        levels.setdefault(tuple(of_config), []).append(config_hash)
    return levels


def _arm(
    levels: dict[str, str],
    identities: list[str],
    settings: dict[str, tuple[tuple[str, str], ...]],
    configs: dict[str, RunConfig],
    runs: Runs,
) -> ArmRuns:
    """Return the arm of the configs with these values of the keys, averaged over their other settings."""
    name = " ".join(f"{key}={text}" for key, text in levels.items())
    first = configs[identities[0]]
    if len({settings[identity] for identity in identities}) < len(identities):
        raise UserError(
            f"--by {','.join(levels)}: several configs with {name} have the same other settings; name fewer runs"
        )
    members = []
    for config_hash in identities:
        setting = settings[config_hash]
        members += [replace(run, arm=name, setting=dict(setting)) for run in runs[config_hash]]
    averages = None
    if len(identities) > 1:
        averages = averaged([runs[identity] for identity in identities])
    return ArmRuns(
        name=name,
        config=dict(first.config),
        choices=dict(first.choices),
        levels=levels,
        runs=members,
        identity=identities[0] if len(identities) == 1 else None,
        averages=averages,
    )


def averaged(settings: Sequence[Sequence[LoadedRun]]) -> dict[str, dict[int, float]]:
    """Return metric -> seed -> mean over settings, for the seeds that every setting has."""
    by_seed: list[dict[int, dict[str, float]]] = []
    for runs in settings:
        by_seed.append({run.seed: run.metrics | run.cost for run in runs if run.done})
    result: dict[str, dict[int, float]] = {}
    for seed in sorted(set.intersection(*map(set, by_seed))):
        of_seed = [values[seed] for values in by_seed]
        for metric in set.intersection(*map(set, of_seed)):
            mean = math.fsum(row[metric] for row in of_seed) / len(of_seed)
            result.setdefault(metric, {})[seed] = mean
    return result


def value_of(run: RunConfig, key: str) -> Any:
    """Return the value of a dotted key, or the choice of a family."""
    node = tree.get(run.config, key, absent=None)
    if isinstance(node, dict) and "_target_" in node:
        return choice_name(run, key)
    return node


def _natural_order(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, then other values alphabetically."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


@dataclass
class GroupedTask:
    """Runs of one data set and one objective. name: `data=digits objective=classify`"""

    name: str
    records: list[LoadedRun] = field(default_factory=list)

    def __str__(self) -> str:
        if len(self.records) == 1:
            return f"{self.name} (1 run)"
        return f"{self.name} ({len(self.records)} runs)"


def by_task(records: Sequence[LoadedRun], by: Sequence[str] = ()) -> list[GroupedTask]:
    """Return the tasks of the runs, the task with the most runs first. A verdict is about one task.

    Data is the same where its fingerprint is. A run without a fingerprint, because it has not read its data yet, goes
    with the other runs of its choice of data.

    by: the config keys with the arms as their values; where one is a key of the data or the objective, runs that
        differ there are compared on purpose, and so they are one task
    """
    families = {key.partition(".")[0] for key in by}
    keys = [_key(record, without=families) for record in records]
    recorded = {key[:2]: key for key in keys if key[2] is not None}
    groups: dict[tuple[str, str, str | None], GroupedTask] = {}
    for record, key in zip(records, keys, strict=True):
        if key[2] is None:
            key = recorded.get(key[:2], key)
        groups.setdefault(key, GroupedTask(_name(key, keys))).records.append(record)
    return sorted(groups.values(), key=lambda task: -len(task.records))


def _key(record: LoadedRun, *, without: Collection[str]) -> tuple[str, str, str | None]:
    """Return the choices of data and objective, and the fingerprint of the data if there is one."""
    recorded = record.facts.get("choices")
    choices = recorded if isinstance(recorded, dict) else {}
    data = str(choices.get("data") or "unknown")
    objective = str(choices.get("objective") or "unknown")
    fingerprint = record.data.get("fingerprint")
    if "objective" in without:
        objective = "any"
    if "data" in without:
        return "any", objective, None
    return data, objective, str(fingerprint) if fingerprint else None


def _name(key: tuple[str, str, str | None], keys: Sequence[tuple[str, str, str | None]]) -> str:
    """Return the choices, with the beginning of the fingerprint where only the fingerprint tells the data apart."""
    data, objective, fingerprint = key
    fingerprints = {other[2] for other in keys if other[:2] == key[:2]} - {None}
    if fingerprint and len(fingerprints) > 1:
        return f"data={data} objective={objective} fingerprint {fingerprint[:8]}"
    return f"data={data} objective={objective}"
