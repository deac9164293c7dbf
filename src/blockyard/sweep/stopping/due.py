"""Which cells of a sweep are due, where it stops when its question is decided.

Every arm gets the first seeds. Then, seed by seed, the arms of each open comparison get one more, until all are
decided, the most seeds have run, or the budget is spent. The next seed is due when all cells of the seeds before it
have ended, so that which cells run follows from the values alone, in whatever order and by however many processes they
were made, and after any number of kills.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from blockyard.atomic_files import read_json
from blockyard.runs.folder import SUMMARY
from blockyard.runs.status import diverged, read_status
from blockyard.sweep.cell.states import duration
from blockyard.sweep.cells import Cell
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import tune
from blockyard.sweep.spec.threshold import of_metric
from blockyard.sweep.stopping.decisions import ArmComparison, Judgement, comparisons, judge

Values = Mapping[str, Mapping[str, float]]  # by run: the metrics of a finished one
Reason = Literal["open", "decided", "most seeds", "budget", "failed"]
Cost = Callable[[Cell], float]


@dataclass(frozen=True)
class Standing:
    """How far a sweep that runs until it is decided has come.

    due: the cells that have run, run now or may run next; reason: why no further ones are, or "open"; "failed" where
        an open comparison needs an arm without any value
    judgements: over the seeds whose cells have all ended; seeds: how many these are
    spent: of the budget, in its unit
    """

    due: list[Cell]
    reason: Reason
    judgements: list[Judgement] = field(default_factory=list)
    seeds: int = 0
    spent: float | None = None


def due_cells(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Cell]:
    """The cells that have run, run now or may run next, by the values so far.

    values: by run, of those that are done; ended: the runs that ended without values and will not run again
    """
    return standing(plan, values, ended).due


def standing(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> Standing:
    """How far the sweep has come: also of one with a fixed number of seeds, whose cells are all due."""
    tuned = tune.cells_of_tuning(plan, values, ended)
    until = plan.question.get("until")
    if not until:
        return Standing(tuned, "open")
    chosen = tune.chosen_variants(plan, values, ended)
    trying = _tuning_cells(plan)
    if any(cell.run not in values and cell.run not in ended for cell in trying):
        return Standing(trying, "open")  # a setting is chosen on validation before any test value counts
    own = {
        (plan.variants[cell.variant].arm, cell.seed): cell
        for cell in plan.cells
        if chosen.get(plan.variants[cell.variant].arm) == cell.variant
    }
    return _Rounds(plan, own, trying, values, ended).run(int(until["first"]))


def _tuning_cells(plan: SweepPlan) -> list[Cell]:
    if not plan.question.get("tune"):
        return []
    seeds = set(tune.tuning_seeds(plan))
    return [cell for cell in plan.cells if cell.seed in seeds]


@dataclass
class _Rounds:
    """Gives out the seeds one after another. own: the cell of each arm and seed; trying: the cells of the tuning."""

    plan: SweepPlan
    own: dict[tuple[str, int], Cell]
    trying: list[Cell]
    values: Values
    ended: Collection[str]

    def run(self, first: int) -> Standing:
        """Give out the first seeds to every arm, then one more to each that still needs it."""
        seeds = list(self.plan.question["seeds"])
        question, budget = self.plan.question, self.plan.question.get("budget") or {}
        active = list(dict.fromkeys(arm for arm, _ in self.own))
        clauses = comparisons(question.get("expect"), [arm.name for arm in self.plan.arms], question.get("baseline"))
        due = {cell.run: cell for cell in self.trying}
        judged: list[Judgement] = []
        reason: Reason = "most seeds"
        count = 0
        while count < len(seeds):
            more = seeds[count : first if not count else count + 1]
            new = [self.own[arm, seed] for seed in more for arm in active if (arm, seed) in self.own]
            new = [cell for cell in new if cell.run not in due]
            if count and budget and self._over(budget, due.values(), new):
                reason = "budget"
                break
            due |= {cell.run: cell for cell in new}
            if any(cell.run not in self.values and cell.run not in self.ended for cell in due.values()):
                return Standing(self._ordered(due), "open", judged, count, self._spent(budget, due.values()))
            count += len(more)
            judged = self._judged(clauses, seeds[:count])
            active = self._active(judged, seeds[:count])
            if not active:
                reason = "failed" if any(one.outcome is None for one in judged) else "decided"
                break
        return Standing(self._ordered(due), reason, judged, count, self._spent(budget, due.values()))

    def _judged(self, clauses: Sequence[ArmComparison], seeds: Sequence[int]) -> list[Judgement]:
        metric = self.plan.facts["metric"]
        margin, signs = self.plan.question.get("margin"), of_metric(metric["name"]) is not None
        return judge(clauses, self._by_seed, seeds, metric["direction"], margin, signs=signs)

    def _active(self, judged: Sequence[Judgement], seeds: Sequence[int]) -> list[str]:
        """The arms of the open comparisons; one that has no value on any of the first seeds has failed."""
        values = self._by_seed
        lost = {arm for arm, _ in self.own if not any(seed in values.get(arm, {}) for seed in seeds)}
        lost |= {arm.name for arm in self.plan.arms} - {arm for arm, _ in self.own}  # refused
        open_ones = [one.comparison.arms for one in judged if one.outcome is None]
        wanted = {arm for arms in open_ones if not lost & set(arms) for arm in arms}
        return [arm for arm in dict.fromkeys(arm for arm, _ in self.own) if arm in wanted]

    @cached_property  # the files of runs are read once, not after every seed
    def _by_seed(self) -> dict[str, dict[int, float]]:
        """The finite values of the sweep's metric: arm -> seed -> value."""
        name = self.plan.facts["metric"]["name"]
        reached = of_metric(name)
        by_arm: dict[str, dict[int, float]] = {}
        outcomes = {}
        if reached:
            done = {cell.run: cell for cell in self.own.values() if cell.run in self.values}
            runs = {run: (self.values[run], self.plan.path(cell)) for run, cell in done.items()}
            ended = {cell.run: self.plan.path(cell) for cell in self.own.values() if cell.run in self.ended}
            states = {run: read_status(path) for run, path in ended.items()}
            outcomes = reached.outcomes(runs, [run for run, at in states.items() if diverged(at.state, at.reason)])
        for (arm, seed), cell in self.own.items():
            value = outcomes.get(cell.run) if reached else self.values.get(cell.run, {}).get(name)
            if value is not None and math.isfinite(value):
                by_arm.setdefault(arm, {})[seed] = float(value)
        return by_arm

    def _ordered(self, due: Mapping[str, Cell]) -> list[Cell]:
        return [cell for cell in self.plan.cells if cell.run in due]

    def _spent(self, budget: Mapping[str, float], cells: Collection[Cell]) -> float | None:
        """What the cells so far have cost, in the unit of the budget; None without one."""
        return math.fsum(self._cost(next(iter(budget)), cell) for cell in cells) if budget else None

    def _over(self, budget: Mapping[str, float], before: Collection[Cell], new: Sequence[Cell]) -> bool:
        """Whether the next round would exceed the budget, if its cells cost what their arms' cells did on average."""
        ((kind, most),) = budget.items()
        costs: dict[str, list[float]] = {}
        for cell in before:
            costs.setdefault(cell.variant, []).append(self._cost(kind, cell))
        spent = math.fsum(cost for own in costs.values() for cost in own)
        return spent + math.fsum(math.fsum(costs[cell.variant]) / len(costs[cell.variant]) for cell in new) > most

    def _cost(self, kind: str, cell: Cell) -> float:
        """Cells, FLOPs of training or hours from start to end, of a cell that has ended; 0 where that is unknown."""
        if kind == "cells":
            return 1.0
        path = self.plan.path(cell)
        try:
            summary: dict[str, Any] = read_json(path / SUMMARY)
            if kind == "hours":
                # The status has the last attempt alone, the summary the training of all attempts.
                return max(duration(read_status(path)) or 0.0, float(summary["seconds"])) / 3600
            return float(summary["flops_per_sample"]["training"]) * float(summary["samples"])
        except (OSError, ValueError, KeyError, TypeError):
            return (duration(read_status(path)) or 0.0) / 3600 if kind == "hours" else 0.0
