"""Tuning: every arm tries the same settings, validation chooses one, and its test metrics are reported.

With `tune_seeds: k` a sweep has two phases: every setting on the first k seeds, then only the chosen one
on the other seeds. `cells_of_tuning` tells from the values so far which cells may run, so the second phase
starts arm by arm, and every process finds the same cells due.
"""

from __future__ import annotations

import math
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

    values: by tuning seed; mean: over the tuning seeds, None where a value is missing
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
    """Every setting of every arm, with the one that is chosen so far.

    An arm's setting is chosen when all its tuning cells have a value or have ended without one. A setting
    with a missing seed, because it failed or diverged, is not chosen: its mean would be over other seeds
    than the others'. The first of equal means is chosen.
    ended: the runs that ended without a value and will not run again
    """
    metric = plan.facts["metric"]
    sign = -1.0 if metric.get("validation_direction", metric["direction"]) == "max" else 1.0
    seeds = tuning_seeds(plan)
    by_arm: dict[str, list[SettingResult]] = {}
    runs = {(cell.variant, cell.seed): cell.run for cell in plan.cells}
    for variant in plan.variants.values():
        own = {seed: runs[variant.key, seed] for seed in seeds if (variant.key, seed) in runs}
        validation = {seed: _value(values.get(run), metric["validation"]) for seed, run in own.items()}
        measured = {seed: value for seed, value in validation.items() if value is not None}
        settled = all(seed in measured or run in values or run in ended for seed, run in own.items())
        whole = own and len(measured) == len(own)
        mean = math.fsum(measured.values()) / len(measured) if whole else None
        result = SettingResult(variant.key, variant.arm, variant.setting, measured, mean, settled)
        by_arm.setdefault(variant.arm, []).append(result)
    results = []
    for tried in by_arm.values():
        complete = [each for each in tried if each.mean is not None] if all(each.settled for each in tried) else []
        best = min(complete, key=lambda each: sign * float(each.mean or 0.0), default=None)
        results += [replace(each, chosen=True) if each is best else each for each in tried]
    return results


def chosen_variants(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> dict[str, str]:
    """The chosen variant of each arm. An arm whose tuning has not ended, or failed altogether, is missing.

    Without tuning, each arm has one variant, which is chosen.
    """
    if not plan.question.get("tune"):
        return {variant.arm: variant.key for variant in plan.variants.values()}
    return {each.arm: each.variant for each in setting_results(plan, values, ended) if each.chosen}


def cells_of_tuning(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Cell]:
    """The cells that have run, run now or may run next, by the values so far."""
    if not plan.question.get("tune") or plan.question.get("tune_seeds") is None:
        return list(plan.cells)
    first = set(tuning_seeds(plan))
    chosen = set(chosen_variants(plan, values, ended).values())
    return [cell for cell in plan.cells if cell.seed in first or cell.variant in chosen]


def tuning_seeds(plan: SweepPlan) -> tuple[int, ...]:
    """The seeds on which settings are tried."""
    seeds = tuple(dict.fromkeys(cell.seed for cell in plan.cells))
    return seeds[: plan.question.get("tune_seeds") or len(seeds)]


def _value(metrics: float | Mapping[str, float] | None, name: str) -> float | None:
    value = metrics.get(name) if isinstance(metrics, Mapping) else metrics
    return float(value) if value is not None and math.isfinite(value) else None


# The result of a search: the best setting of each arm as cells on all seeds, and the record of the trials.


def plan_with_chosen(plan: SweepPlan, arms: Sequence[Trials], facts: SearchFacts, seeds: Sequence[int]) -> SweepPlan:
    """The plan with the chosen settings. An arm without a complete trial is refused, with the reasons.

    facts: about the search, stored with the record
    """
    variants, cells, refused = {}, [], list(plan.refused)
    record: dict[str, ArmTrials] = {}
    for arm in arms:
        best, trials, key = arm.best(), arm.record(), None
        if best is None:
            reasons = dict.fromkeys(str(trial["reason"] or trial["state"]) for trial in trials)
            refused.append(Refused(arm.arm, {}, (f"none of {len(trials)} trials is complete", *reasons)))
        else:
            key, setting, original = f"{arm.arm}#{best.number}", arm.setting(best), arm.template.variant.config
            config, choices, _ = arm.template.config(setting, seeds[0])
            config |= {name: original[name] for name in ("seed", "outputs") if name in original}
            variants[key] = Variant(key, arm.arm, config, choices, setting)
            own = [with_split(config, seed) if arm.template.resplit else config for seed in seeds]
            cells += [Cell(key, seed, f"{run_name(each)}/s{seed}") for seed, each in zip(seeds, own, strict=True)]
        record[arm.arm] = {"chosen": key, "trials": trials}
    return replace(
        plan,
        variants=variants,
        cells=tuple(cells),
        refused=tuple(refused),
        facts={**plan.facts, "search": {**facts, "arms": record}},
    )
