"""Prints a plan: arms by seeds with the state of each cell, what is refused and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from blockyard.sweep.cell.states import CellState, read_state
from blockyard.sweep.cells import Cell
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import tune
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.stopping.due import Reason, standing
from blockyard.terminal import console, table

SEEDS = 10  # columns; with more seeds each arm shows counts
ARMS = 60  # rows that are shown
_LABELS = {"missing": "to run", "queued": "to run", "interrupted": "to resume", "running": "running", "done": "done"}


@dataclass
class PlanStatus:
    """The state of a plan's cells.

    states: by run; due: the cells that have run, run now or may run next; the rest may become due later
    chosen: the setting of each arm that has one
    reason: why no further cells become due, "open" where they may
    """

    plan: SweepPlan
    states: dict[str, CellState]
    due: list[Cell]
    chosen: dict[str, str]
    reason: Reason = "open"

    @classmethod
    def read(cls, plan: SweepPlan) -> PlanStatus:
        """Read the state of every run folder."""
        states = {run: read_state(plan.path(cell)) for run, cell in {cell.run: cell for cell in plan.cells}.items()}
        values = {run: now.metrics for run, now in states.items() if now.state == "done"}
        failed = [run for run, now in states.items() if now.state == "failed"]
        now, chosen = standing(plan, values, failed), tune.chosen_variants(plan, values, failed)
        return cls(plan, states, now.due, chosen, now.reason)

    def remaining(self, *, retry: bool = False) -> list[Cell]:
        """The cells that the sweep would run now, one for each run folder."""
        finished = ("done", "running") if retry else ("done", "running", "failed")
        return [c for c in {c.run: c for c in self.due}.values() if self.states[c.run].state not in finished]

    def label(self, cell: Cell, retry: bool) -> str:
        """The state of one cell in one or two words."""
        state = self.states[cell.run].state
        if state == "failed":
            return "to retry" if retry else "failed"
        return _LABELS[state]


def print_plan(status: PlanStatus, *, retry: bool = False) -> None:
    """Print the question, the table of cells, the refused arms and the planner's notes."""
    plan, screen = status.plan, console()
    for line in _question(plan):
        screen.print(line)
    screen.print()
    screen.print(_grid(status, retry))
    if len(plan.arms) > ARMS:
        screen.print(f"and {len(plan.arms) - ARMS} more arms")
    notes = (f"note: {text}" for text in plan.facts.get("notes", ()))
    for line in [*_refused(plan), *_failed(status, retry), *notes]:
        screen.print(line)


def _question(plan: SweepPlan) -> Iterator[str]:
    question = without_secrets(plan.question)
    yield f"{plan.name}: {question['claim']}"
    for key in ("source", "expect", "margin"):
        if question.get(key):
            yield f"  {key:<9} {question[key]}"
    metric = plan.facts["metric"]
    yield f"  {'metric':<9} {metric['name']} ({metric['direction']})"
    if until := question.get("until"):
        budget = "".join(f"; budget {limit:g} {unit}" for unit, limit in (question.get("budget") or {}).items())
        yield f"  {'seeds':<9} {until['first']} at first, until all is decided, {until['most']} at most{budget}"
    if ladder := question.get("ladder"):
        kind, tokens = ladders.kind(ladder), ladder.get("tokens_per_param")
        rungs = ", ".join(map(ladders.label, ladder[kind]))
        laws = ", a law with an E of its own for each arm" if ladders.floors_of(ladder) == "own" else ""
        budget = f", {tokens:g} tokens a parameter" if tokens else ""
        yield f"  {'ladder':<9} {rungs} {ladders.UNITS[kind]}{budget}{laws}"
    yield f"  {'base':<9} {' '.join(question['base']) or '(defaults)'}"
    if question.get("tune"):
        values = ", ".join(f"{key} in {values}" for key, values in question["tune"].items())
        seeds = ", ".join(map(str, tune.tuning_seeds(plan)))
        yield f"  {'tune':<9} {values}, by {metric['validation']} on seeds {seeds}"
    if question.get("search"):
        search = question["search"]
        on = f" on {search['seeds']} seeds each" if "seeds" in search else ""
        own = "".join(f", {arm} also {', '.join(more)}" for arm, more in search.get("only", {}).items())
        yield (
            f"  {'search':<9} {search['trials']} trials for each arm{on} ({search['sampler']}, pruner "
            f"{search['pruner']}), by {metric['validation']}, over {', '.join(search['space'])}{own}; "
            "then the best one on all seeds"
        )


def _grid(status: PlanStatus, retry: bool) -> object:
    plan = status.plan
    seeds = list(plan.question["seeds"])
    by_seed = (
        len(seeds) <= SEEDS
        and not plan.question.get("until")
        and not plan.question.get("tune")
        and not plan.question.get("search")
    )
    columns = [f"s{seed}" for seed in seeds] if by_seed else ["cells"]
    sizes, size_columns = _sizes(plan)
    grid = table(None, "arm", "changes", *size_columns, *columns)
    by_arm: dict[str, list[Cell]] = {}
    due = set(status.due)
    for cell in plan.cells:
        by_arm.setdefault(plan.variants[cell.variant].arm, []).append(cell)
    for arm in plan.arms[:ARMS]:
        cells = by_arm.get(arm.name, [])
        name = f"{arm.name} (baseline)" if arm.name == plan.question.get("baseline") else arm.name
        size = sizes.get(arm.name, [""] * len(size_columns))
        if by_seed:
            states = {cell.seed: status.label(cell, retry) for cell in cells}
            shown = [states.get(seed, "refused") for seed in seeds]
        else:
            shown = [_counts(plan, arm.name, Counter(_tuned_label(status, cell, due, retry) for cell in cells))]
        grid.add_row(name, " ".join(without_secrets(list(arm.overrides))) or "(base)", *size, *shown)
    return grid


def _sizes(plan: SweepPlan) -> tuple[dict[str, list[str]], list[str]]:
    """What was solved for, by arm, and its columns; both empty where nothing was."""
    if climbed := (plan.facts.get("ladder") or {}).get("arms"):
        steps = {name: ["by the data", ""] if one["steps"] is None else [f"{one['steps']:,}", f"{one['flops']:.3g}"]
                 for name, one in climbed.items()}  # fmt: skip
        rows = {name: [str(one["dim"]), f"{one['params']:,}", *steps[name]] for name, one in climbed.items()}
        return rows, ["model.dim", "params", "steps", "FLOPs"]
    matched = (plan.facts.get("match") or {}).get("arms") or {}
    rows = {name: [str(one["dim"]), f"{one['off']:+.2%}"] for name, one in matched.items()}
    return rows, ["model.dim", "mismatch"] if matched else []


def _tuned_label(status: PlanStatus, cell: Cell, due: set[Cell], retry: bool) -> str:
    if cell not in due and status.plan.question.get("until") and not _other_setting(status, cell):
        return "if undecided" if status.reason == "open" else "not needed"
    if cell not in due:
        return "not chosen" if status.plan.variants[cell.variant].arm in status.chosen else "if chosen"
    return status.label(cell, retry)


def _other_setting(status: PlanStatus, cell: Cell) -> bool:
    """Whether another setting of the cell's arm is chosen, or none yet."""
    return status.chosen.get(status.plan.variants[cell.variant].arm) != cell.variant


def _counts(plan: SweepPlan, arm: str, counts: Counter[str]) -> str:
    if counts:
        return ", ".join(f"{count} {label}" for label, count in counts.items())
    planned = any(variant.arm == arm for variant in plan.variants.values())
    return f"{len(plan.question['seeds'])} after the search" if planned else "refused"


def _refused(plan: SweepPlan) -> Iterator[str]:
    for refused in plan.refused[:ARMS]:
        setting = "".join(f" {key}={value}" for key, value in refused.setting.items())
        yield f"refused: {refused.arm}{setting}"
        yield from (f"  - {reason}" for reason in refused.reasons)
    if len(plan.refused) > ARMS:
        yield f"and {len(plan.refused) - ARMS} more are refused"


def _failed(status: PlanStatus, retry: bool) -> Iterator[str]:
    failed = [cell for cell in status.due if status.states[cell.run].state == "failed"]
    for cell in failed[:ARMS]:
        yield f"failed: {cell.variant}/s{cell.seed}: {status.states[cell.run].reason or 'no reason recorded'}"
    if failed and not retry:
        yield f"--retry runs the {len(failed)} failed cells again" if len(failed) > 1 else "--retry runs it again"
