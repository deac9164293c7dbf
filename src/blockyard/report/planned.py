"""The arms of a sweep, read from its frozen plan and the run folders it names."""

from __future__ import annotations

import math
from typing import Any

from blockyard.errors import UserError
from blockyard.report.direction import default_metric, direction_of, directions, twin
from blockyard.report.gathered import Gathered, Group
from blockyard.report.record import Record, read
from blockyard.sweep.plan import SweepPlan, Variant

KINDS = ("arms", "grid", "zip", "one_at_a_time", "leave_one_out")


def from_plan(plan: SweepPlan, metric: str | None = None, direction: str | None = None) -> Gathered:
    """Everything of a sweep, as far as it has come.

    metric: instead of the question's; it also says by which validation metric settings are chosen
    Raises UserError where two arms share a run.
    """
    records = [
        read(
            plan.path(cell),
            arm=plan.variants[cell.variant].arm,
            seed=cell.seed,
            setting=plan.variants[cell.variant].setting,
            variant=cell.variant,
        )
        for cell in plan.cells
    ]
    refuse_shared(records)
    question = plan.question
    metric = metric or question.get("metric") or default_metric(records)
    chosen = choose(plan, records, metric, direction)
    groups = [_group(plan, arm.name, records, chosen.get(arm.name)) for arm in plan.arms]
    for group, arm in zip(groups, plan.arms, strict=True):
        group.overrides, group.levels = tuple(arm.overrides), dict(arm.levels)
    refused = [
        Record(r.arm, 0, plan.folder, "refused", "; ".join(r.reasons), setting=dict(r.setting)) for r in plan.refused
    ]
    return Gathered(
        title=plan.name,
        groups=groups,
        records=[*records, *refused],
        kind=next((kind for kind in KINDS if question.get(kind)), "arms"),
        question=dict(question),
        baseline=question.get("baseline"),
        metric=metric,
        folder=plan.folder,
        facts=dict(plan.facts),
        tuning=tuning(plan, records, metric, chosen),
    )


def refuse_shared(records: list[Record]) -> None:
    """Raise UserError where two arms have the same run: they built the same model."""
    arms: dict[str, dict[str, None]] = {}
    for record in records:
        arms.setdefault(record.path.parent.name, {})[record.arm] = None
    for run, names in arms.items():
        if len(names) > 1:
            raise UserError(
                f"the arms {' and '.join(names)} are the same run ({run}): no option that changes what is "
                "computed differs between them; take one of them out"
            )


def choose(
    plan: SweepPlan, records: list[Record], metric: str | None, direction: str | None = None
) -> dict[str, str | None]:
    """The variant of each arm that counts: the best mean on the validation twin of the metric.

    Where several settings were tried, over the seeds that all tried settings of the arm have, so that
    no setting wins by its seeds. None where none can be told yet.
    """
    variants: dict[str, list[Variant]] = {}
    for variant in plan.variants.values():
        variants.setdefault(variant.arm, []).append(variant)
    by_variant: dict[str, list[Record]] = {}
    for record in records:
        by_variant.setdefault(record.variant, []).append(record)
    chosen: dict[str, str | None] = {}
    for arm, settings in variants.items():
        if len(settings) == 1:
            chosen[arm] = settings[0].key
            continue
        means = {v.key: mean_on(by_variant.get(v.key, []), metric) for v in settings}
        known = {key: value for key, value in means.items() if value is not None}
        if not known or metric is None:
            chosen[arm] = None
            continue
        way = direction_of(twin(metric), directions(records), direction)
        chosen[arm] = (max if way == "max" else min)(known, key=known.__getitem__)
    return chosen


def mean_on(runs: list[Record], metric: str | None) -> float | None:
    """The mean of the validation twin over a setting's finished runs; None while one of them is not."""
    if metric is None or not runs or not all(run.done for run in runs):
        return None
    values = [run.figure(twin(metric)) for run in runs]
    if any(value is None for value in values):
        return None
    return math.fsum(values) / len(values)  # type: ignore[arg-type]


def tuning(
    plan: SweepPlan, records: list[Record], metric: str | None, chosen: dict[str, str | None]
) -> list[dict[str, Any]]:
    """Every setting that was tried, with its mean on validation; a search's trials where there was one."""
    search = plan.facts.get("search")
    if isinstance(search, dict):
        return [
            {
                "arm": arm,
                "setting": trial.get("setting") or {},
                "mean": trial.get("value"),
                "values": {str(search.get("seed", 0)): trial.get("value")},
                "chosen": found.get("chosen") == f"{arm}#{trial.get('number')}",
                "state": trial.get("state"),
            }
            for arm, found in (search.get("arms") or {}).items()
            for trial in found.get("trials") or []
        ]
    made = []
    for variant in plan.variants.values():
        if not variant.setting:
            continue
        runs = [record for record in records if record.variant == variant.key]
        values = {str(r.seed): r.figure(twin(metric)) if metric else None for r in runs}
        known = [value for value in values.values() if value is not None]
        made.append(
            {
                "arm": variant.arm,
                "setting": dict(variant.setting),
                "mean": math.fsum(known) / len(known) if known else None,
                "values": values,
                "chosen": chosen.get(variant.arm) == variant.key,
            }
        )
    return made


def _group(plan: SweepPlan, arm: str, records: list[Record], chosen: str | None) -> Group:
    variants = [variant for variant in plan.variants.values() if variant.arm == arm]
    picked = plan.variants.get(chosen) if chosen else (variants[0] if variants else None)
    runs = [record for record in records if record.arm == arm and record.variant == chosen]
    tuned = any(variant.setting for variant in variants)
    search = (plan.facts.get("search") or {}).get("arms") or {}
    tried = len({r.variant for r in records if r.arm == arm and r.done}) if tuned else None
    if arm in search:
        tried = sum(t.get("state") in ("complete", "pruned") for t in search[arm].get("trials") or [])
    return Group(
        name=arm,
        config=dict(picked.config) if picked else {},
        choices=dict(picked.choices) if picked else {},
        runs=runs,
        planned=planned_seeds(plan),
        chosen=dict(picked.setting) if picked and (tuned or arm in search) and chosen else None,
        tried=tried,
        identity=runs[0].path.parent.name if runs else None,
        refused=tuple(reason for r in plan.refused if r.arm == arm for reason in r.reasons),
    )


def planned_seeds(plan: SweepPlan) -> int:
    """How many seeds each arm should have."""
    seeds = plan.question.get("seeds")
    if isinstance(seeds, int):
        return seeds
    return len(seeds) if isinstance(seeds, list) else len({cell.seed for cell in plan.cells})
