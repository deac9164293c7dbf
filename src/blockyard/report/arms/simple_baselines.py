"""The simple baselines of a comparison: rules and simple models that were computed beside its runs, see `docs/runs.md`.

They are not arms: no seed changes them, and no test is made. A model that does not reach one of them has learned less
than a rule says, whatever the differences between the arms are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockyard.report.load.arms import ArmRuns
from blockyard.report.load.document import ArmRow, BaselineRow
from blockyard.report.load.run_record import is_finite

KIND = "simple baseline"
_TEST = "test/"


def simple_baselines(arms: Sequence[ArmRuns], metric: str) -> list[BaselineRow]:
    """Return one row a baseline: name, arms, value of `metric`, all values, note, missing.

    arms: those that it belongs to, where arms change the data or the tokens and so their baselines; else None
    missing: why it has no values, else None
    """
    entries: dict[tuple[str, tuple[tuple[str, str], ...]], BaselineRow] = {}  # of a name and its values
    owners: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    of_arm = {arm.name: _of_arm(arm) for arm in arms}
    with_any = [name for name, own in of_arm.items() if own]
    for arm, own in of_arm.items():
        for name, (values, note, missing) in own.items():
            key = (name, tuple((metric, f"{value:.6g}") for metric, value in sorted(values.items())))
            row = BaselineRow(name=name, arms=None, value=values.get(metric), values=values, note=note, missing=missing)
            entries.setdefault(key, row)
            owners.setdefault(key, []).append(arm)
    for key, row in entries.items():
        row["arms"] = None if len(owners[key]) == len(with_any) else owners[key]
    return list(entries.values())


def _of_arm(arm: ArmRuns) -> dict[str, tuple[dict[str, float], str | None, str | None]]:
    """The values, note and reason of each baseline: the mean over runs, which differ where seeds have own splits."""
    by_name: dict[str, list[dict[str, float]]] = {}
    result: dict[str, tuple[dict[str, float], str | None, str | None]] = {}
    for run in arm.done:
        values, notes, missing = (
            part if isinstance(part := run.summary.get(key), dict) else {}
            for key in ("baselines", "baseline_notes", "baselines_missing")
        )
        for name, own in values.items():
            finite = {f"{_TEST}{key}": float(value) for key, value in own.items() if is_finite(value)}
            if finite:
                by_name.setdefault(name, []).append(finite)
            if not result.get(name, ({}, None, None))[0]:
                result[name] = (finite, notes.get(name), None)
        for name, reason in missing.items():
            result.setdefault(name, ({}, None, str(reason)))
    return {name: (_mean(by_name.get(name, [])), note, missing) for name, (_, note, missing) in result.items()}


def _mean(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric; of equal values the value itself, without rounding."""
    columns = {key: [own[key] for own in values if key in own] for key in (values[0] if values else ())}
    return {key: of[0] if len(set(of)) == 1 else math.fsum(of) / len(of) for key, of in columns.items()}


def better_baseline(
    arms: Sequence[ArmRow], baselines: Sequence[BaselineRow], metric: str, direction: str
) -> str | None:
    """Return a sentence where every arm is worse than one baseline, the best of them; None where there is none.

    arms: the rows of a comparison; baselines: of `simple_baselines`
    """
    sign = 1.0 if direction == "max" else -1.0
    means = {arm["name"]: arm["mean"] for arm in arms if arm["mean"] is not None}
    if not means:
        return None
    ahead = {}
    for name in dict.fromkeys(row["name"] for row in baselines):
        values = {arm: _value(baselines, name, arm) for arm in means}
        if all(value is not None and sign * (value - means[arm]) > 0 for arm, value in values.items()):
            ahead[name] = max((value for value in values.values() if value is not None), key=lambda value: sign * value)
    if not ahead:
        return None
    name = max(ahead, key=lambda name: sign * ahead[name])
    best = max(means.values(), key=lambda mean: sign * mean)
    arms_are = "both arms" if len(means) == 2 else f"all {len(means)} arms"
    who = f"{arms_are} (at best {best:.3g}) are" if len(means) > 1 else f"the only arm ({best:.3g}) is"
    return f"On {metric} {who} worse than the {KIND} {name} ({ahead[name]:.3g})."


def _value(baselines: Sequence[BaselineRow], name: str, arm: str) -> float | None:
    matching = (row for row in baselines if row["name"] == name and (row["arms"] is None or arm in row["arms"]))
    return next((row["value"] for row in matching), None)
