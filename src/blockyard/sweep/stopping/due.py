"""Selects the due cells of a sweep that stops when its question is decided.

Every arm that is compared gets the first seeds, one that no clause of `expect` names three at most. Then, seed by seed,
the arms of each open comparison get one more, until all are decided or given up, the largest number of seeds have run,
or the budget is spent. From twice the first seeds on a comparison is given up where it would need more seeds than the
largest number (`forecast`). The next seed is due when all cells of earlier seeds have ended. So the cells that run
follow from the values alone, in whatever order and by however many processes the values were computed, and after any
number of kills.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from blockyard.atomic_files import read_json
from blockyard.runs.costs import COSTS
from blockyard.runs.folder import SUMMARY
from blockyard.runs.status import diverged, read_status
from blockyard.sweep.cell.states import duration
from blockyard.sweep.cells import Cell
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import tune
from blockyard.sweep.spec.threshold import Threshold, of_metric
from blockyard.sweep.stopping.decisions import ArmComparison, Judgement, comparisons, judge
from blockyard.sweep.stopping.forecast import beyond_limit
from blockyard.sweep.stopping.rule import UNNAMED, StoppingRule

Values = Mapping[str, Mapping[str, float]]  # by run: the metrics of a finished one
Reason = Literal["open", "decided", "beyond the limit", "most seeds", "budget", "failed"]


@dataclass(frozen=True)
class Standing:
    """The progress of a sweep that runs until it is decided.

    due: the cells that have run, run now or may run next
    reason: why no further cells become due, or "open"; "failed" where an open comparison needs an arm without any
        value, "beyond the limit" where one would need more than the most seeds
    judgements: over the seeds of which all cells have ended
    seeds: the number of these seeds
    spent: of the budget, in its unit
    seconds: the mean time of a run of each arm, where it is known
    """

    due: list[Cell]
    reason: Reason
    judgements: list[Judgement] = field(default_factory=list)
    seeds: int = 0
    spent: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def due_cells(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> list[Cell]:
    """Return the cells that have run, run now or may run next, by the values so far.

    values: by run, of finished runs
    ended: the runs that ended without values and will not run again
    """
    return standing(plan, values, ended).due


def standing(plan: SweepPlan, values: Values, ended: Collection[str] = ()) -> Standing:
    """Return the progress of the sweep. With a fixed number of seeds all its cells are due."""
    until = plan.question.get("until")
    if not until:
        return Standing(tune.cells_of_tuning(plan, values, ended), "open")
    tuning: list[Cell] = []
    if plan.question.get("tune"):
        tuning_seeds = set(tune.tuning_seeds(plan))
        tuning = [cell for cell in plan.cells if cell.seed in tuning_seeds]
    if any(cell.run not in values and cell.run not in ended for cell in tuning):
        return Standing(tuning, "open")  # a setting is chosen on validation before any test value counts
    chosen = tune.chosen_variants(plan, values, ended)
    cells: dict[tuple[str, int], Cell] = {}
    for cell in plan.cells:
        arm = plan.variants[cell.variant].arm
        if chosen.get(arm) == cell.variant:
            cells[arm, cell.seed] = cell
    return _Rounds(plan, cells, tuning, values, ended).run(int(until["first"]))


def seeded_arms(plan: SweepPlan) -> set[str]:
    """Return the arms that get seeds until all is decided. The others, which no clause names, get three at most."""
    arms = [arm.name for arm in plan.arms]
    if StoppingRule.of(plan.question["until"]).by is None:
        return set(arms)
    clauses = comparisons(plan.question.get("expect"), arms, plan.question.get("baseline"))
    return set(itertools.chain(*(clause.arms for clause in clauses)))


@dataclass
class _Rounds:
    """Adds the seeds one after another.

    cells: the cell of each arm and seed, of the chosen setting
    tuning: the cells of the tuning
    """

    plan: SweepPlan
    cells: dict[tuple[str, int], Cell]
    tuning: list[Cell]
    values: Values
    ended: Collection[str]

    def run(self, first: int) -> Standing:
        """Add the first seeds to the arms, then one more to each that still needs it."""
        question = self.plan.question
        seeds = list(question["seeds"])
        budget = question.get("budget") or {}
        clauses = comparisons(question.get("expect"), [arm.name for arm in self.plan.arms], question.get("baseline"))
        seeded = seeded_arms(self.plan)
        active = [arm for arm in self._arms if arm in seeded]
        given_up: set[str] = set()  # names of comparisons
        due = {cell.run: cell for cell in self.tuning}
        judgements: list[Judgement] = []
        reason: Reason = "most seeds"
        count = 0
        while count < len(seeds):
            next_seeds = seeds[count : count + 1] if count else seeds[:first]
            new: dict[str, Cell] = {}
            for position, seed in enumerate(next_seeds):
                arms = self._arms if not count and position < UNNAMED else active
                for arm in arms:
                    cell = self.cells.get((arm, seed))
                    if cell is not None and cell.run not in due:
                        new[cell.run] = cell
            if count and budget and self._exceeds(budget, due.values(), new.values()):
                reason = "budget"
                break
            due |= new
            if any(cell.run not in self.values and cell.run not in self.ended for cell in due.values()):
                reason = "open"
                break
            count += len(next_seeds)
            judgements = self._judgements(clauses, seeds[:count])
            if self._rule.by is not None and 2 * first <= count < len(seeds):
                given_up.update(one.comparison.name for one in judgements if self._is_beyond_limit(one))
            active = self._active(judgements, seeds[:count], given_up)
            if not active:
                reason = "decided"
                if any(one.outcome is None for one in judgements):
                    reason = "beyond the limit" if given_up else "failed"
                break
        ordered = [cell for cell in self.plan.cells if cell.run in due]
        return Standing(ordered, reason, judgements, count, self._spent(budget, due.values()), self._seconds(ordered))

    @cached_property
    def _rule(self) -> StoppingRule:
        return StoppingRule.of(self.plan.question["until"])

    def _is_beyond_limit(self, one: Judgement) -> bool:
        """Return whether an open comparison would need more than the most seeds. Nothing forecasts signs."""
        if one.outcome is not None or of_metric(self.plan.facts["metric"]["name"]):
            return False
        return beyond_limit(one.ends, one.gains)

    @property
    def _arms(self) -> list[str]:
        """The names of the arms that have cells, in order."""
        return list(dict.fromkeys(arm for arm, _ in self.cells))

    def _judgements(self, clauses: Sequence[ArmComparison], seeds: Sequence[int]) -> list[Judgement]:
        metric = self.plan.facts["metric"]
        margin = self.plan.question.get("margin")
        signs = of_metric(metric["name"]) is not None
        return judge(clauses, self._by_seed, seeds, metric["direction"], margin, rule=self._rule, signs=signs)

    def _active(self, judgements: Sequence[Judgement], seeds: Sequence[int], given_up: Collection[str]) -> list[str]:
        """Return the arms of the open comparisons that can still be decided.

        An arm that is refused, or has no value on any of the first seeds, decides nothing more.
        """
        values = self._by_seed
        alive = {arm for arm in self._arms if any(seed in values.get(arm, {}) for seed in seeds)}
        wanted: set[str] = set()
        for judgement in judgements:
            going = judgement.outcome is None and judgement.comparison.name not in given_up
            if going and alive.issuperset(judgement.comparison.arms):
                wanted.update(judgement.comparison.arms)
        return [arm for arm in self._arms if arm in wanted]

    @cached_property  # the files of runs are read once, not after every seed
    def _by_seed(self) -> dict[str, dict[int, float]]:
        """The values of the sweep's metric, NaN for a run that diverged: arm -> seed -> value."""
        name = self.plan.facts["metric"]["name"]
        reached = of_metric(name)
        if reached:
            values = self._outcomes(reached)
        else:
            values = {run: metrics[name] for run, metrics in self.values.items() if name in metrics}
        by_arm: dict[str, dict[int, float]] = {}
        for (arm, seed), cell in self.cells.items():
            value = values.get(cell.run)
            if value is not None and math.isfinite(value):
                by_arm.setdefault(arm, {})[seed] = float(value)
            elif cell.run in self._diverged and name not in COSTS:
                by_arm.setdefault(arm, {})[seed] = math.nan
        return by_arm

    def _outcomes(self, reached: Threshold) -> dict[str, float]:
        """Return by run whether, or when, it has reached a threshold. Runs that diverged have an outcome, too."""
        runs: dict[str, tuple[Mapping[str, float], Path]] = {}
        for cell in self.cells.values():
            if cell.run in self.values:
                runs[cell.run] = (self.values[cell.run], self.plan.path(cell))
        return reached.outcomes(runs, self._diverged)

    @cached_property
    def _diverged(self) -> set[str]:
        """The runs that ended with a loss that is not finite."""
        runs = set()
        for cell in self.cells.values():
            if cell.run in self.ended:
                status = read_status(self.plan.path(cell))
                if diverged(status.state, status.reason):
                    runs.add(cell.run)
        return runs

    def _spent(self, budget: Mapping[str, float], cells: Collection[Cell]) -> float | None:
        """Return the cost of cells in the unit of the budget; None without a budget."""
        if not budget:
            return None
        (unit,) = budget
        return math.fsum(self._cost(unit, cell) for cell in cells)

    def _seconds(self, cells: Iterable[Cell]) -> dict[str, float]:
        """Return the mean time of the cells of each arm that have ended."""
        times: dict[str, list[float]] = {}
        for cell in cells:
            seconds = self.values.get(cell.run, {}).get("seconds")
            if seconds is not None:
                times.setdefault(self.plan.variants[cell.variant].arm, []).append(seconds)
        return {arm: statistics.fmean(of_arm) for arm, of_arm in times.items()}

    def _exceeds(self, budget: Mapping[str, float], before: Collection[Cell], new: Collection[Cell]) -> bool:
        """Return whether new cells would exceed the budget, at the mean cost of their arms' cells so far."""
        ((unit, limit),) = budget.items()
        costs: dict[str, list[float]] = {}
        for cell in before:
            costs.setdefault(cell.variant, []).append(self._cost(unit, cell))
        spent = math.fsum(itertools.chain(*costs.values()))
        return spent + math.fsum(statistics.fmean(costs[cell.variant]) for cell in new) > limit

    def _cost(self, unit: str, cell: Cell) -> float:
        """Return the cost of a cell that has ended; 0 where it is unknown.

        unit: cells, flops of training, or hours from start to end
        """
        if unit == "cells":
            return 1.0
        path = self.plan.path(cell)
        try:
            summary: dict[str, Any] = read_json(path / SUMMARY)
            if unit == "hours":
                # The status has the last attempt alone, the summary the training of all attempts.
                return max(duration(read_status(path)) or 0.0, float(summary["seconds"])) / 3600
            return float(summary["flops_per_sample"]["training"]) * float(summary["samples"])
        except (OSError, ValueError, KeyError, TypeError):
            if unit == "hours":
                return (duration(read_status(path)) or 0.0) / 3600
            return 0.0
