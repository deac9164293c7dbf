"""The result of a search: the best setting of each arm as cells on all seeds, and the record of the trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blockyard.runs.identity import run_name
from blockyard.sweep.plan.sweep_plan import Cell, Refused, SweepPlan, Variant
from blockyard.sweep.search.trials import Trials


def plan_with_chosen(plan: SweepPlan, arms: Sequence[Trials], facts: dict[str, Any], seeds: Sequence[int]) -> SweepPlan:
    """The plan with the chosen settings. An arm without a complete trial is refused, with the reasons.

    facts: about the search, stored with the record
    """
    variants, cells, refused, record = {}, [], list(plan.refused), {}
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
            cells += [Cell(key, seed, f"{run_name(config)}/s{seed}") for seed in seeds]
        record[arm.arm] = {"chosen": key, "trials": trials}
    return replace(
        plan,
        variants=variants,
        cells=tuple(cells),
        refused=tuple(refused),
        facts=plan.facts | {"search": facts | {"arms": record}},
    )
