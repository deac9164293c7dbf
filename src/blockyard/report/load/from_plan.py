"""The arms of a sweep, read from its frozen plan and the run folders it names."""

from __future__ import annotations

from typing import Any

from blockyard.errors import UserError
from blockyard.report.load.groups import Gathered, Group
from blockyard.report.load.metric_direction import default_metric
from blockyard.report.load.run_record import Record, read
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import tune


def from_plan(plan: SweepPlan) -> Gathered:
    """Everything of a sweep, as far as it has come. Raises UserError where two arms share a run.

    Settings are chosen by the validation twin of the sweep's own metric, whatever metric is reported.
    """
    every = [
        read(
            plan.path(cell),
            arm=plan.variants[cell.variant].arm,
            seed=cell.seed,
            setting=plan.variants[cell.variant].setting,
            variant=cell.variant,
        )
        for cell in plan.cells
    ]
    refuse_shared(every)
    values = {run.run: run.metrics for run in every if run.done}
    ended = {run.run for run in every if run.state == "failed"}
    chosen = tune.choose(plan, values, ended)
    asked = {(cell.variant, cell.seed) for cell in tune.due(plan, values, ended)}
    records = [run for run in every if run.state != "missing" or (run.variant, run.seed) in asked]
    question = plan.question
    refused = [
        Record(r.arm, 0, plan.folder, "refused", "; ".join(r.reasons), setting=dict(r.setting)) for r in plan.refused
    ]
    return Gathered(
        title=plan.name,
        groups=[_group(plan, number, records, chosen) for number in range(len(plan.arms))],
        records=[*records, *refused],
        kind=str(question.get("kind") or "arms"),
        question=dict(question),
        baseline=question.get("baseline"),
        metric=question.get("metric") or (plan.facts.get("metric") or {}).get("name") or default_metric(records),
        direction=(plan.facts.get("metric") or {}).get("direction"),
        folder=plan.folder,
        facts=dict(plan.facts),
        tuning=_searched(plan) if question.get("search") else _tuned(plan, values, ended),
        notes=[str(note) for note in plan.facts.get("notes") or ()],
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


def _tuned(plan: SweepPlan, values: tune.Values, ended: set[str]) -> list[dict[str, Any]]:
    """Every setting that was tried, with its mean on validation."""
    if not plan.question.get("tune"):
        return []
    return [
        {
            "arm": row.arm,
            "setting": dict(row.setting),
            "mean": row.mean,
            "values": {str(seed): value for seed, value in row.values.items()},
            "chosen": row.chosen,
        }
        for row in tune.table(plan, values, ended)
    ]


def _searched(plan: SweepPlan) -> list[dict[str, Any]]:
    """Every trial of a search, with its figure on validation."""
    search = plan.facts.get("search") or {}
    seed = str(search.get("seed", 0))
    return [
        {
            "arm": arm,
            "setting": trial.get("setting") or {},
            "mean": trial.get("value"),
            "values": {seed: trial.get("value")} if trial.get("value") is not None else {},
            "chosen": found.get("chosen") == f"{arm}#{trial.get('number')}",
            "state": trial.get("state"),
        }
        for arm, found in (search.get("arms") or {}).items()
        for trial in found.get("trials") or []
    ]


def _group(plan: SweepPlan, number: int, records: list[Record], chosen: dict[str, str]) -> Group:
    arm = plan.arms[number]
    variants = [variant for variant in plan.variants.values() if variant.arm == arm.name]
    picked = plan.variants.get(chosen.get(arm.name, ""))
    shown = picked or (variants[0] if variants else None)
    runs = [run for run in records if picked is not None and run.variant == picked.key]
    return Group(
        name=arm.name,
        config=dict(shown.config) if shown else {},
        choices=dict(shown.choices) if shown else {},
        overrides=tuple(arm.overrides),
        levels=dict(arm.levels),
        runs=runs,
        planned=len({cell.seed for cell in plan.cells}) or len(plan.question.get("seeds") or ()),
        chosen=dict(picked.setting) if picked and picked.setting else None,
        tried=_tried(plan, arm.name, records),
        refused=tuple(reason for r in plan.refused if r.arm == arm.name for reason in r.reasons),
    )


def _tried(plan: SweepPlan, arm: str, records: list[Record]) -> int | None:
    """How many settings of an arm gave a figure or were given up early; None where nothing is tuned."""
    if plan.question.get("search"):
        trials = ((plan.facts.get("search") or {}).get("arms") or {}).get(arm, {}).get("trials") or []
        return sum(trial.get("state") in ("complete", "pruned") for trial in trials)
    if plan.question.get("tune"):
        return len({run.variant for run in records if run.arm == arm and run.done})
    return None
