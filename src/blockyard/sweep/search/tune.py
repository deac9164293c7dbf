"""Tuning: every arm tries the same settings, the best on validation is reported on test.

With `tune_seeds: k` a sweep has two phases: every setting on the first k seeds, then only the chosen
one on the other seeds. `due` says which cells may run, from the values there are; so the second phase
opens arm by arm, by itself, and the same cells are due whoever asks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan

Values = Mapping[str, float | Mapping[str, float]]  # by run: the validation value, or all metrics


@dataclass(frozen=True)
class Tuned:
    """What became of one setting of one arm. mean: over the tuning seeds, None where a value is missing."""

    variant: str
    arm: str
    setting: dict[str, Any]
    values: dict[int, float]
    mean: float | None
    settled: bool  # whether no value is still to come
    chosen: bool = False


def table(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Tuned]:
    """Every setting of every arm, with the one that is chosen so far.

    An arm's setting is chosen when all of its tuning cells have a value or have ended without one. A
    setting with a seed missing, because it failed or diverged, is not chosen: its mean would be over
    other seeds than the others'. Of equal means the first counts.
    ended: the runs that ended without a value and will not run again
    """
    metric = plan.facts["metric"]
    sign = -1.0 if metric["direction"] == "max" else 1.0
    seeds = tuning_seeds(plan)
    rows: dict[str, list[Tuned]] = {}
    runs = {(cell.variant, cell.seed): cell.run for cell in plan.cells}
    for variant in plan.variants.values():
        mine = {seed: runs[variant.key, seed] for seed in seeds if (variant.key, seed) in runs}
        known = {
            s: value for s, run in mine.items() if (value := _value(values.get(run), metric["validation"])) is not None
        }
        settled = all(seed in known or run in values or run in ended for seed, run in mine.items())
        full = mine and len(known) == len(mine)
        mean = math.fsum(known.values()) / len(known) if full else None
        rows.setdefault(variant.arm, []).append(Tuned(variant.key, variant.arm, variant.setting, known, mean, settled))
    found = []
    for tried in rows.values():
        legal = [row for row in tried if row.mean is not None] if all(row.settled for row in tried) else []
        best = min(legal, key=lambda row: sign * float(row.mean or 0.0), default=None)
        found += [row if row is not best else _chosen(row) for row in tried]
    return found


def choose(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> dict[str, str]:
    """The chosen variant of each arm; an arm whose settings are still tried, or all failed, is not in it.

    Where nothing is tuned, each arm has one variant, which is its own choice.
    """
    if not plan.question.get("tune"):
        return {variant.arm: variant.key for variant in plan.variants.values()}
    return {row.arm: row.variant for row in table(plan, values, ended) if row.chosen}


def due(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Cell]:
    """The cells that should have run, or run now or later, by the values there are."""
    if not plan.question.get("tune") or plan.question.get("tune_seeds") is None:
        return list(plan.cells)
    first = set(tuning_seeds(plan))
    chosen = set(choose(plan, values, ended).values())
    return [cell for cell in plan.cells if cell.seed in first or cell.variant in chosen]


def tuning_seeds(plan: SweepPlan) -> tuple[int, ...]:
    """The seeds that settings are tried on."""
    seeds = tuple(dict.fromkeys(cell.seed for cell in plan.cells))
    return seeds[: plan.question.get("tune_seeds") or len(seeds)]


def _value(found: float | Mapping[str, float] | None, metric: str) -> float | None:
    value = found.get(metric) if isinstance(found, Mapping) else found
    return float(value) if value is not None and math.isfinite(value) else None


def _chosen(row: Tuned) -> Tuned:
    return Tuned(row.variant, row.arm, row.setting, row.values, row.mean, row.settled, chosen=True)
