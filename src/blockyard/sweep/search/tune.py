"""Tuning: every arm tries the same settings, validation chooses one, and its test metrics are reported.

With `tune_seeds: k` a sweep has two phases: every setting on the first k seeds, then only the chosen one
on the other seeds. `cells_of_tuning` selects the cells that may run from the values so far. So the second phase
starts arm by arm, and every process finds the same cells due.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from blockyard.runs.identity import run_name
from blockyard.sweep.cells import Cell, Refused, Setting, Variant
from blockyard.sweep.plan.cell_settings import with_split
from blockyard.sweep.plan.sweep_plan import ArmTrials, SearchFacts, SweepPlan
from blockyard.sweep.search.trials import Trials

Values = Mapping[str, float | Mapping[str, float]]  # by run: the validation value, or all metrics


@dataclass(frozen=True)
class SettingResult:
    """The result of one setting of one arm.

    values: by tuning seed
    mean: over the tuning seeds, None where a value is missing
    settled: whether no value is still to come
    """

    variant: str
    arm: str
    setting: Setting
    values: dict[int, float]
    mean: float | None
    settled: bool
    chosen: bool = False


def setting_results(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[SettingResult]:
    """Return the result of every setting of every arm, with the chosen ones so far.

    An arm's setting is chosen when all its tuning cells have a value or have ended without one. A setting
    with a missing seed, because it failed or diverged, is not chosen: its mean would be over other seeds
    than the others'. The first of equal means is chosen.

    ended: the runs that ended without a value and will not run again
    """
    metric = plan.facts["metric"]
    direction = metric.get("validation_direction", metric["direction"])  # plans of earlier versions lack the first
    sign = -1.0 if direction == "max" else 1.0
    seeds = tuning_seeds(plan)
    by_arm: dict[str, list[SettingResult]] = {}
    runs = {(cell.variant, cell.seed): cell.run for cell in plan.cells}
    for variant in plan.variants.values():
        measured: dict[int, float] = {}
        settled = True
        run_by_seed = {seed: runs[variant.key, seed] for seed in seeds if (variant.key, seed) in runs}
        for seed, run in run_by_seed.items():
            value = values.get(run)
            if isinstance(value, Mapping):
                value = value.get(metric["validation"])
            if value is not None and math.isfinite(value):
                measured[seed] = float(value)
            elif run not in values and run not in ended:
                settled = False
        mean = None
        if run_by_seed and len(measured) == len(run_by_seed):
            mean = statistics.fmean(measured.values())
        result = SettingResult(variant.key, variant.arm, variant.setting, measured, mean, settled)
        by_arm.setdefault(variant.arm, []).append(result)
    results = []
    for of_arm in by_arm.values():
        complete: list[SettingResult] = []
        if all(result.settled for result in of_arm):
            complete = [result for result in of_arm if result.mean is not None]
        best = min(complete, key=lambda result: sign * float(result.mean or 0.0), default=None)
        results += [replace(result, chosen=True) if result is best else result for result in of_arm]
    return results


def chosen_variants(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> dict[str, str]:
    """Return the chosen variant of each arm. An arm is missing if its tuning has not ended, or failed altogether.

    Without tuning, the one variant of each arm is chosen.
    """
    if not plan.question.get("tune"):
        return {variant.arm: variant.key for variant in plan.variants.values()}
    return {result.arm: result.variant for result in setting_results(plan, values, ended) if result.chosen}


def cells_of_tuning(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Cell]:
    """Return the cells that have run, run now or may run next, by the values so far."""
    if not plan.question.get("tune") or plan.question.get("tune_seeds") is None:
        return list(plan.cells)
    first = set(tuning_seeds(plan))
    chosen = set(chosen_variants(plan, values, ended).values())
    return [cell for cell in plan.cells if cell.seed in first or cell.variant in chosen]


def tuning_seeds(plan: SweepPlan) -> tuple[int, ...]:
    """Return the seeds on which settings are tried."""
    seeds = tuple(dict.fromkeys(cell.seed for cell in plan.cells))
    return seeds[: plan.question.get("tune_seeds") or len(seeds)]


def plan_with_chosen(plan: SweepPlan, arms: Sequence[Trials], facts: SearchFacts, seeds: Sequence[int]) -> SweepPlan:
    """Return the plan after a search: the best setting of each arm as cells on all seeds, and the record of the trials.

    An arm without a complete trial is refused, with the reasons.

    facts: about the search, stored with the record
    """
    variants: dict[str, Variant] = {}
    cells: list[Cell] = []
    refused = list(plan.refused)
    record: dict[str, ArmTrials] = {}
    for arm in arms:
        trials = arm.record()
        best = arm.best()
        if best is None:
            reasons = dict.fromkeys(str(trial["reason"] or trial["state"]) for trial in trials)
            refused.append(Refused(arm.arm, {}, (f"none of {len(trials)} trials is complete", *reasons)))
            record[arm.arm] = {"chosen": None, "trials": trials}
            continue
        key = f"{arm.arm}#{best.number}"
        setting = arm.setting(best)
        config, choices, _ = arm.template.config(setting, seeds[0])
        original = arm.template.variant.config
        # A variant has no seed of its own: the cells have.
        config |= {name: original[name] for name in ("seed", "outputs") if name in original}
        variants[key] = Variant(key, arm.arm, config, choices, setting)
        for seed in seeds:
            cell_config = with_split(config, seed) if arm.template.resplit else config
            cells.append(Cell(key, seed, f"{run_name(cell_config)}/s{seed}"))
        record[arm.arm] = {"chosen": key, "trials": trials}
    return replace(
        plan,
        variants=variants,
        cells=tuple(cells),
        refused=tuple(refused),
        facts={**plan.facts, "search": {**facts, "arms": record}},
    )
