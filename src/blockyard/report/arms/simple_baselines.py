"""The simple baselines of a comparison: rules and simple models that were computed beside its runs, see `docs/runs.md`.

They are not arms: no seed changes them, and no test is made. A model that does not reach one of them has learned less
than a rule says, whatever the differences between the arms are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockyard.config.tree import is_number
from blockyard.report.load.arms import ArmRuns
from blockyard.report.load.document import ArmRow, BaselineRow
from blockyard.report.load.run_record import LoadedRun

KIND = "simple baseline"
_TEST = "test/"


def simple_baselines(arms: Sequence[ArmRuns], metric: str) -> list[BaselineRow]:
    """Return one row a baseline: name, arms, value of `metric`, all values, note, missing.

    arms: the arms of the baseline, where arms change the data or the tokens and so their baselines; else None
    missing: the reason why it has no values, else None
    """
    by_arm = {arm.name: _baselines_of(arm) for arm in arms}
    with_any = [name for name, baselines in by_arm.items() if baselines]
    first: dict[tuple[str, ...], _ArmBaseline] = {}  # by name and values
    owners: dict[tuple[str, ...], list[str]] = {}
    for arm, baselines in by_arm.items():
        for baseline in baselines:
            rounded = [f"{name} {value:.6g}" for name, value in sorted(baseline.values.items())]
            key = (baseline.name, *rounded)
            first.setdefault(key, baseline)
            owners.setdefault(key, []).append(arm)
    baseline_rows = []
    for key, baseline in first.items():
        of_all = len(owners[key]) == len(with_any)
        row = BaselineRow(
            name=baseline.name,
            arms=None if of_all else owners[key],
            value=baseline.values.get(metric),
            values=baseline.values,
            note=baseline.note,
            missing=baseline.missing,
        )
        baseline_rows.append(row)
    return baseline_rows


@dataclass(frozen=True)
class _ArmBaseline:
    """A simple baseline of one arm. values: by metric, the mean over runs, which differ where seeds have own splits."""

    name: str
    values: dict[str, float]
    note: str | None = None
    missing: str | None = None


def _baselines_of(arm: ArmRuns) -> list[_ArmBaseline]:
    values: dict[str, list[dict[str, float]]] = {}
    baselines: dict[str, _ArmBaseline] = {}
    for run in arm.done:
        notes = _mapping(run, "baseline_notes")
        for name, by_metric in _mapping(run, "baselines").items():
            finite = {f"{_TEST}{key}": float(value) for key, value in by_metric.items() if is_number(value)}
            if finite:
                values.setdefault(name, []).append(finite)
            # The note is that of the first run with values.
            if name not in baselines or not baselines[name].values:
                baselines[name] = _ArmBaseline(name, finite, notes.get(name))
        for name, reason in _mapping(run, "baselines_missing").items():
            baselines.setdefault(name, _ArmBaseline(name, {}, missing=str(reason)))
    return [replace(baseline, values=_mean(values.get(name, []))) for name, baseline in baselines.items()]


def _mapping(run: LoadedRun, key: str) -> dict[str, Any]:
    part = run.summary.get(key)
    if isinstance(part, dict):
        return part
    return {}


def _mean(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over runs."""
    means: dict[str, float] = {}
    if not values:
        return means
    for key in values[0]:
        column = [by_metric[key] for by_metric in values if key in by_metric]
        means[key] = column[0]
        # Equal values are taken as they are: their mean may differ in the last bit.
        if len(set(column)) > 1:
            means[key] = math.fsum(column) / len(column)
    return means


def better_baseline(
    arms: Sequence[ArmRow], baselines: Sequence[BaselineRow], metric: str, direction: str
) -> str | None:
    """Return a sentence where every arm is worse than one baseline, the best of them; None where there is none.

    arms: the rows of a comparison; baselines: of `simple_baselines`
    """
    sign = 1.0 if direction == "max" else -1.0
    means = {arm.name: arm.mean for arm in arms if arm.mean is not None}
    if not means:
        return None
    ahead = {}
    for name in dict.fromkeys(row.name for row in baselines):
        better = []
        for arm, mean in means.items():
            values = [row.value for row in baselines if row.name == name and (row.arms is None or arm in row.arms)]
            if values and values[0] is not None and sign * (values[0] - mean) > 0:
                better.append(values[0])
        # A baseline of some arms only says nothing about the others.
        if len(better) == len(means):
            ahead[name] = max(better, key=lambda value: sign * value)
    if not ahead:
        return None
    name = max(ahead, key=lambda name: sign * ahead[name])
    best = max(means.values(), key=lambda mean: sign * mean)
    if len(means) == 1:
        who = f"the only arm ({best:.3g}) is"
    elif len(means) == 2:
        who = f"both arms (at best {best:.3g}) are"
    else:
        who = f"all {len(means)} arms (at best {best:.3g}) are"
    return f"On {metric} {who} worse than the {KIND} {name} ({ahead[name]:.3g})."
