"""What a search comes to: the best setting of each arm as cells over all seeds, and the record of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blockyard.runs.identity import run_name
from blockyard.sweep.plan.sweep_plan import Cell, Refused, SweepPlan, Variant
from blockyard.sweep.search.trials import Trials


def settled(plan: SweepPlan, arms: Sequence[Trials], facts: dict[str, Any], seeds: Sequence[int]) -> SweepPlan:
    """The plan of the chosen settings. An arm without a trial that was run to its end is refused, with the reasons.

    facts: of the search, kept with the record
    """
    variants, cells, refused, record = {}, [], list(plan.refused), {}
    for arm in arms:
        best, trials, key = arm.best(), arm.record(), None
        if best is None:
            why = dict.fromkeys(str(trial["reason"] or trial["state"]) for trial in trials)
            refused.append(Refused(arm.arm, {}, (f"none of {len(trials)} trials was run to its end", *why)))
        else:
            key, setting, first = f"{arm.arm}#{best.number}", arm.setting(best), arm.template.variant.config
            config, choices, _ = arm.template.config(setting, seeds[0])
            config |= {name: first[name] for name in ("seed", "outputs") if name in first}
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
