"""One arm for each value of a config key; other differences are averaged over, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blockyard.config import tree
from blockyard.errors import UserError
from blockyard.report.load.arms import ArmRuns, RunConfig, choice_name, factors, format_value
from blockyard.report.load.run_record import LoadedRun

Runs = dict[str, list[LoadedRun]]  # identity of a config -> its runs, one for each seed


def group_by(key: str, configs: dict[str, RunConfig], runs: Runs, warnings: list[str]) -> list[ArmRuns]:
    """Return one arm for each value of `key`, averaged over the other settings that all arms have.

    Raises UserError where no run has the key, all have the same value, or the arms have no setting in common.
    """
    differing = factors(configs)
    others = {name: values for name, values in differing.items() if name != key and not name.startswith(f"{key}.")}
    levels = _levels(key, configs, list(differing), list(others))
    settings = {
        identity: tuple((name, format_value(values[identity])) for name, values in others.items() if identity in values)
        for identity in configs
    }
    shared = set.intersection(*({settings[identity] for identity in members} for members in levels.values()))
    listed = ", ".join(others)
    if not shared:
        raise UserError(f"--by {key}: the arms have no setting of {listed} in common; name runs that do")
    if len(shared) > 1:
        warnings.append(f"each value is the mean over {len(shared)} settings of {listed}, seed by seed")
    dropped = sum(settings[identity] not in shared for identity in configs)
    if dropped:
        warnings.append(f"{dropped} settings that not every arm has are left out")
    return [
        _arm(key, text, [identity for identity in members if settings[identity] in shared], settings, configs, runs)
        for text, members in sorted(levels.items(), key=lambda item: _natural_order(item[0]))
    ]


def _levels(key: str, configs: dict[str, RunConfig], differing: list[str], others: list[str]) -> dict[str, list[str]]:
    """Return value of the key -> identities of the configs that have it."""
    values = {identity: value_of(each, key) for identity, each in configs.items()}
    if all(value is None for value in values.values()):
        raise UserError(f"--by {key}: no run has this key; the runs differ in {', '.join(differing) or 'nothing'}")
    levels: dict[str, list[str]] = {}
    for identity, value in values.items():
        levels.setdefault(format_value(value), []).append(identity)
    if len(levels) < 2:
        raise UserError(
            f"--by {key}: all runs have {key}={next(iter(levels))}; they differ in {', '.join(others) or 'nothing'}"
        )
    return levels


def _arm(
    key: str,
    text: str,
    identities: list[str],
    settings: dict[str, tuple[tuple[str, str], ...]],
    configs: dict[str, RunConfig],
    runs: Runs,
) -> ArmRuns:
    name, first = f"{key}={text}", configs[identities[0]]
    if len({settings[identity] for identity in identities}) < len(identities):
        raise UserError(f"--by {key}: several configs with {name} have the same other settings; name fewer runs")
    return ArmRuns(
        name=name,
        config=dict(first.config),
        choices=dict(first.choices),
        levels={key: text},
        runs=[replace(run, arm=name, setting=dict(settings[each])) for each in identities for run in runs[each]],
        identity=identities[0] if len(identities) == 1 else None,
        averages=averaged([runs[each] for each in identities]) if len(identities) > 1 else None,
    )


def averaged(settings: Sequence[Sequence[LoadedRun]]) -> dict[str, dict[int, float]]:
    """Return metric -> seed -> mean over settings, for the seeds that every setting has."""
    by_seed = [{run.seed: run.metrics | run.cost for run in runs if run.done} for runs in settings]
    result: dict[str, dict[int, float]] = {}
    for seed in sorted(set.intersection(*(set(values) for values in by_seed))):
        for metric in set.intersection(*(set(values[seed]) for values in by_seed)):
            mean = math.fsum(values[seed][metric] for values in by_seed) / len(by_seed)
            result.setdefault(metric, {})[seed] = mean
    return result


def value_of(run: RunConfig, key: str) -> Any:
    """Return the value of a dotted key, or the choice of a family."""
    node = tree.get(run.config, key, absent=None)
    return choice_name(run, key) if isinstance(node, dict) and "_target_" in node else node


def _natural_order(text: str) -> tuple[float, str]:
    """Numbers by size, then other values alphabetically."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


# Tell runs of different tasks apart: a verdict is about one data set and one objective.

_KEYS = ("data", "objective")


@dataclass
class GroupedTask:
    """Runs of one data set and one objective. name: `data=digits objective=classify`"""

    name: str
    records: list[LoadedRun] = field(default_factory=list)

    def __str__(self) -> str:
        count = len(self.records)
        return f"{self.name} ({count} run{'s' if count != 1 else ''})"


def by_task(records: Sequence[LoadedRun], by: str | None = None) -> list[GroupedTask]:
    """Return the tasks of the runs, the one with the most runs first.

    Data is the same where its fingerprint is. A run that has recorded none, because it has not read its data yet, goes
    with the others of its choice of data.
    by: a config key whose values are the arms; where it is one of the data or the objective, runs that differ there
        are compared on purpose, and so they are one task
    """
    family = (by or "").partition(".")[0]
    keys = [_key(record, without=family) for record in records]
    recorded = {key[:2]: key for key in keys if key[2] is not None}
    groups: dict[tuple[str, str, str | None], GroupedTask] = {}
    for record, key in zip(records, keys, strict=True):
        key = recorded.get(key[:2], key) if key[2] is None else key
        groups.setdefault(key, GroupedTask(_name(key, keys))).records.append(record)
    return sorted(groups.values(), key=lambda task: -len(task.records))


def _key(record: LoadedRun, *, without: str) -> tuple[str, str, str | None]:
    """The choices of data and objective, and the fingerprint of the data if there is one."""
    recorded = record.facts.get("choices")
    choices = recorded if isinstance(recorded, dict) else {}
    data, objective = ("any" if name == without else str(choices.get(name) or "unknown") for name in _KEYS)
    fingerprint = record.data.get("fingerprint")
    return data, objective, str(fingerprint) if fingerprint and without != "data" else None


def _name(key: tuple[str, str, str | None], keys: Sequence[tuple[str, str, str | None]]) -> str:
    """The choices, and the beginning of the fingerprint where that alone tells the data apart."""
    data, objective, fingerprint = key
    alike = {other[2] for other in keys if other[:2] == key[:2] and other[2] is not None}
    mark = f" fingerprint {fingerprint[:8]}" if fingerprint and len(alike) > 1 else ""
    return f"data={data} objective={objective}{mark}"
