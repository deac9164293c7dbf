"""Arms of runs that no sweep put together: found from what their configs differ in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_yaml
from blockyard.config import dotted
from blockyard.errors import UserError
from blockyard.report.load import arm_names
from blockyard.report.load.groups import Gathered, Group
from blockyard.report.load.run_record import Record, read
from blockyard.runs.folder import CONFIG, RunFolder


def from_runs(paths: Sequence[Path], *, by: str | None = None, title: str = "runs") -> Gathered:
    """The runs in these folders as arms; one arm for each value of `by` where that is given.

    Raises UserError where there is nothing to compare, or two arms built the same model.
    """
    records, warnings = _records(paths)
    kinds, together = _kinds(records, warnings)
    refuse_same(kinds, together)
    if by:
        groups = _by(by, kinds, together, warnings)
    else:
        called = arm_names.names(kinds)
        found = arm_names.factors(kinds)
        groups = [
            Group(
                name=called[key],
                config=dict(kind.config),
                choices=dict(kind.choices),
                levels={k: arm_names.show(v[key]) for k, v in found.items() if key in v},
                runs=[replace(run, arm=called[key]) for run in together[key]],
                identity=key,
            )
            for key, kind in kinds.items()
        ]
    seeds = {run.seed for group in groups for run in group.runs}
    for group in groups:
        group.planned = len(seeds)
    every = [run for group in groups for run in group.runs]
    return Gathered(title=title, groups=groups, records=every, kind="found", warnings=warnings)


def _records(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    records, warnings = [], []
    for path in paths:
        seed = path.name[1:]
        try:
            number = int(seed) if path.name[:1] == "s" and seed.isdigit() else RunFolder.open(path).seed
            records.append(read(path, seed=number))
        except (UserError, ValueError) as error:
            warnings.append(f"left out: {error}")
    return sorted(records, key=lambda run: (str(run.facts.get("time") or ""), run.seed)), warnings


def _kinds(records: list[Record], warnings: list[str]) -> tuple[dict[str, arm_names.Kind], dict[str, list[Record]]]:
    """The runs of one identity together, the arm that was started first in front."""
    every: dict[str, list[Record]] = {}
    for record in records:
        try:
            key = str(record.facts.get("identity") or "") or RunFolder.open(record.path).identity
        except UserError as error:
            warnings.append(f"left out: {error}")
            continue
        every.setdefault(key, []).append(record)
    kinds, together = {}, {}
    for key, runs in every.items():
        found = _config(runs, warnings)
        if found is not None:
            choices = runs[0].facts.get("choices")
            kinds[key] = arm_names.Kind(found, choices if isinstance(choices, dict) else {})
            together[key] = _once(runs)
    if not kinds:
        raise UserError(f"none of the {len(records)} runs can be read: {'; '.join(warnings[:3])}")
    return kinds, together


def _config(runs: list[Record], warnings: list[str]) -> dict[str, Any] | None:
    """The config that runs of one identity share, from the first that can be read."""
    problem = None
    for run in runs:
        try:
            return read_yaml(run.path / CONFIG)
        except (OSError, ValueError) as error:
            problem = " ".join(str(error).split())
    warnings.append(
        f"left out: {len(runs)} runs of {runs[0].path.parent.name}, of which no config can be read ({problem})"
    )
    return None


def _once(runs: list[Record]) -> list[Record]:
    """One run for each seed. Raises UserError where two are done: neither is more right than the other."""
    best: dict[int, Record] = {}
    for run in runs:
        other = best.get(run.seed)
        if other and other.done and run.done and other.path != run.path:
            raise UserError(f"{other.path} and {run.path} are the same config and seed; name one of them")
        if other is None or not other.done:
            best[run.seed] = run
    return sorted(best.values(), key=lambda run: run.seed)


def refuse_same(kinds: dict[str, arm_names.Kind], together: dict[str, list[Record]]) -> None:
    """Raise UserError where configs of different identities say the same."""
    seen: dict[str, str] = {}
    for key, kind in kinds.items():
        meaning = repr(sorted(arm_names.meaning(kind.config).items(), key=lambda item: item[0]))
        if meaning in seen:
            first, second = together[seen[meaning]][0].path.parent, together[key][0].path.parent
            raise UserError(
                f"{first} and {second} built the same model: no option that changes what is computed differs "
                "between them; name one of them"
            )
        seen[meaning] = key


def _by(
    by: str, kinds: dict[str, arm_names.Kind], together: dict[str, list[Record]], warnings: list[str]
) -> list[Group]:
    """One arm for each value of a key; what else differs is averaged over, where all arms have it."""
    values = {key: value_of(kind, by) for key, kind in kinds.items()}
    if all(value is None for value in values.values()):
        keys = ", ".join(arm_names.factors(kinds)) or "nothing"
        raise UserError(f"--by {by}: no run has this key; the runs differ in {keys}")
    others = {k: v for k, v in arm_names.factors(kinds).items() if k != by and not _inside(k, by)}
    made: dict[str, list[str]] = {}
    for key, value in values.items():
        made.setdefault(arm_names.show(value), []).append(key)
    if len(made) < 2:
        raise UserError(
            f"--by {by}: all runs have {by}={next(iter(made))}; they differ in {', '.join(others) or 'nothing'}"
        )
    rest = {key: tuple((k, arm_names.show(v[key])) for k, v in others.items() if key in v) for key in kinds}
    shared = set.intersection(*({rest[key] for key in keys} for keys in made.values()))
    if not shared:
        raise UserError(f"--by {by}: the arms have no setting of {', '.join(others)} in common; name runs that do")
    if len(shared) > 1:
        over = ", ".join(others)
        warnings.append(f"each figure is the mean over {len(shared)} settings of {over}, seed by seed")
    left = sum(rest[key] not in shared for key in kinds)
    if left:
        warnings.append(f"{left} settings that not every arm has are left out")
    groups = []
    for text, keys in sorted(made.items(), key=lambda item: _order(item[0])):
        name, kept = f"{by}={text}", [key for key in keys if rest[key] in shared]
        if len({rest[key] for key in kept}) < len(kept):
            raise UserError(f"--by {by}: several kinds of runs have {name} and are otherwise alike; name fewer runs")
        every = [replace(run, arm=name, setting=dict(rest[key])) for key in kept for run in together[key]]
        first = kinds[kept[0]]
        groups.append(
            Group(
                name=name,
                config=dict(first.config),
                choices=dict(first.choices),
                levels={by: text},
                runs=every,
                identity=kept[0] if len(kept) == 1 else None,
                figures=averaged([together[key] for key in kept]) if len(kept) > 1 else None,
            )
        )
    return groups


def averaged(settings: Sequence[Sequence[Record]]) -> dict[str, dict[int, float]]:
    """metric -> seed -> mean over settings, for the seeds that every setting has."""
    figures = [{run.seed: run.metrics | run.cost for run in runs if run.done} for runs in settings]
    seeds = set.intersection(*(set(found) for found in figures))
    made: dict[str, dict[int, float]] = {}
    for seed in sorted(seeds):
        for metric in set.intersection(*(set(found[seed]) for found in figures)):
            made.setdefault(metric, {})[seed] = math.fsum(found[seed][metric] for found in figures) / len(figures)
    return made


def value_of(kind: arm_names.Kind, key: str) -> Any:
    """The value of a dotted key, or the choice of a family."""
    node = dotted.get(kind.config, key, absent=None)
    return arm_names.choice(kind, key) if isinstance(node, dict) and "_target_" in node else node


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, words in the order of the alphabet after them."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def _inside(key: str, by: str) -> bool:
    return key.startswith(f"{by}.")
