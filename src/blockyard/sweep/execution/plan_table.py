"""A plan on the screen: arms by seeds with how each cell stands, what is refused and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from blockyard.sweep.execution.cell_states import Standing, standing
from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan
from blockyard.sweep.search import tune
from blockyard.terminal import console, table

SEEDS = 10  # columns; more are counted instead
ARMS = 60  # rows that are shown in full
_WORDS = {"missing": "to run", "queued": "to run", "interrupted": "to go on", "running": "running", "done": "done"}


@dataclass
class Stand:
    """How the cells of a plan stand. due: those that should have run, or run now; the rest may come later.

    chosen: the setting of each arm that has one
    """

    plan: SweepPlan
    states: dict[str, Standing]
    due: list[Cell]
    chosen: dict[str, str]

    @classmethod
    def of(cls, plan: SweepPlan) -> Stand:
        """As the run folders say."""
        states = {run: standing(plan.path(cell)) for run, cell in {cell.run: cell for cell in plan.cells}.items()}
        values = {run: now.metrics for run, now in states.items() if now.state == "done"}
        failed = [run for run, now in states.items() if now.state == "failed"]
        return cls(plan, states, tune.due(plan, values, failed), tune.choose(plan, values, failed))

    def left(self, *, retry: bool = False) -> list[Cell]:
        """The cells that a run of the sweep would run, one for each run folder."""
        finished = ("done", "running") if retry else ("done", "running", "failed")
        return [c for c in {c.run: c for c in self.due}.values() if self.states[c.run].state not in finished]

    def word(self, cell: Cell, retry: bool) -> str:
        """How one cell stands, in a word or two."""
        state = self.states[cell.run].state
        if state == "failed":
            return "to try again" if retry else "failed"
        return _WORDS[state]


def show(stand: Stand, *, retry: bool = False) -> None:
    """Print what is asked, the grid, the refusals and what was decided."""
    plan, screen = stand.plan, console()
    for line in _question(plan):
        screen.print(line)
    screen.print()
    screen.print(_grid(stand, retry))
    if len(plan.arms) > ARMS:
        screen.print(f"and {len(plan.arms) - ARMS} more arms")
    for line in [*_refused(plan), *_failed(stand, retry), *(f"note: {text}" for text in plan.facts.get("notes", ()))]:
        screen.print(line)


def _question(plan: SweepPlan) -> Iterator[str]:
    question = plan.question
    yield f"{plan.name}: {question['claim']}"
    for key in ("source", "expect", "margin"):
        if question.get(key):
            yield f"  {key:<9} {question[key]}"
    metric = plan.facts["metric"]
    yield f"  {'metric':<9} {metric['name']} ({metric['direction']})"
    yield f"  {'base':<9} {' '.join(question['base']) or '(the defaults)'}"
    if question.get("tune"):
        said = ", ".join(f"{key} in {values}" for key, values in question["tune"].items())
        seeds = tune.tuning_seeds(plan)
        yield f"  {'tune':<9} {said}, by {metric['validation']} on seeds {', '.join(map(str, seeds))}"
    if question.get("search"):
        search = question["search"]
        yield (
            f"  {'search':<9} {search['trials']} trials for each arm ({search['sampler']}, pruner {search['pruner']}), "
            f"by {metric['validation']}, over {', '.join(search['space'])}; then the best on all seeds"
        )


def _grid(stand: Stand, retry: bool) -> object:
    plan = stand.plan
    seeds = list(plan.question["seeds"])
    single = len(seeds) <= SEEDS and not plan.question.get("tune") and not plan.question.get("search")
    columns = [f"s{seed}" for seed in seeds] if single else ["cells"]
    matched = (plan.facts.get("match") or {}).get("arms") or {}
    rows = table(None, "arm", "changes", *(["model.dim", "mismatch"] if matched else []), *columns)
    by_arm: dict[str, list[Cell]] = {}
    due = set(stand.due)
    for cell in plan.cells:
        by_arm.setdefault(plan.variants[cell.variant].arm, []).append(cell)
    for arm in plan.arms[:ARMS]:
        cells = by_arm.get(arm.name, [])
        name = f"{arm.name} (baseline)" if arm.name == plan.question.get("baseline") else arm.name
        width = matched.get(arm.name)
        extra = ([str(width["dim"]), f"{width['off']:+.2%}"] if width else ["", ""]) if matched else []
        if single:
            states = {cell.seed: stand.word(cell, retry) for cell in cells}
            shown = [states.get(seed, "refused") for seed in seeds]
        else:
            shown = [_counted(plan, arm.name, Counter(_state(stand, cell, due, retry) for cell in cells))]
        rows.add_row(name, " ".join(arm.overrides) or "(as the base)", *extra, *shown)
    return rows


def _state(stand: Stand, cell: Cell, due: set[Cell], retry: bool) -> str:
    if cell not in due:
        return "not chosen" if stand.plan.variants[cell.variant].arm in stand.chosen else "if chosen"
    return stand.word(cell, retry)


def _counted(plan: SweepPlan, arm: str, counts: Counter[str]) -> str:
    if counts:
        return ", ".join(f"{count} {word}" for word, count in counts.items())
    standing_ = any(variant.arm == arm for variant in plan.variants.values())
    return f"{len(plan.question['seeds'])} after the search" if standing_ else "refused"


def _refused(plan: SweepPlan) -> Iterator[str]:
    for refused in plan.refused[:ARMS]:
        setting = "".join(f" {key}={value}" for key, value in refused.setting.items())
        yield f"refused: {refused.arm}{setting}"
        yield from (f"  - {reason}" for reason in refused.reasons)
    if len(plan.refused) > ARMS:
        yield f"and {len(plan.refused) - ARMS} more are refused"


def _failed(stand: Stand, retry: bool) -> Iterator[str]:
    failed = [cell for cell in stand.due if stand.states[cell.run].state == "failed"]
    for cell in failed[:ARMS]:
        yield f"failed: {cell.variant}/s{cell.seed}: {stand.states[cell.run].reason or 'no reason recorded'}"
    if failed and not retry:
        yield f"--retry tries the {len(failed)} failed again"
