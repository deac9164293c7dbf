"""A sweep as tables of arms by seeds: its plan, and live while it runs.

A plan has the state of each cell, what is refused and why. Without a terminal the live table is plain lines.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from blockyard.runs.metric_name import MetricName
from blockyard.sweep.cell.states import CellState, PlannedRun, baseline_values, read_progress, read_state
from blockyard.sweep.cells import Cell, cell_name
from blockyard.sweep.execution.estimate import Estimate, seconds_left
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.sweep_plan import MetricFacts, SweepPlan
from blockyard.sweep.search import tune
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.stopping.due import Reason, standing
from blockyard.terminal import console, table

PLAN_SEEDS, LIVE_SEEDS = 10, 8  # columns; with more seeds each arm shows counts
ARMS = 60  # rows that are shown
_LABELS = {"missing": "to run", "queued": "to run", "interrupted": "to resume", "running": "running", "done": "done"}
_EVERY = 1.0  # seconds between two refreshes
_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


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
        values = {run: state.metrics for run, state in states.items() if state.state == "done"}
        failed = [run for run, state in states.items() if state.state == "failed"]
        progress, chosen = standing(plan, values, failed), tune.chosen_variants(plan, values, failed)
        return cls(plan, states, progress.due, chosen, progress.reason)

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
    """Print the question, the table of cells, the refused arms, the planner's notes and the remarks of `check`."""
    plan, screen = status.plan, console()
    for line in _question(plan):
        screen.print(line)
    screen.print()
    screen.print(_grid(status, retry))
    if len(plan.arms) > ARMS:
        screen.print(f"and {len(plan.arms) - ARMS} more arms")
    notes = [f"note: {text}" for text in (*plan.facts.get("notes", ()), *plan.facts.get("remarks", ()))]
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
        len(seeds) <= PLAN_SEEDS
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
        return rows, ["model.dim", "params", "steps", "training FLOPs"]
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


class SweepScreen:
    """Shows a sweep: a table on standard error where that is a terminal, else a line for each cell through `say`.

    total: the runs so far; count: those that have ended
    announced: the estimate of the sweep; where its time is unknown, the first steps of the runs tell it
    """

    def __init__(
        self, plan: SweepPlan, say: Callable[[str], object], live: bool, announced: Estimate | None = None
    ) -> None:
        self.plan = plan
        self._announced = announced
        self.say = say
        metric = plan.facts.get("metric") or MetricFacts()
        self.metric = str(metric.get("name") or plan.question.get("metric") or "test/accuracy")
        self._validation = str(metric.get("validation") or MetricName.parse(self.metric).on("val"))
        self._live = live
        self._display: Any = None
        self._refreshed = 0.0
        self._started = time.monotonic()
        self.count = 0
        self.total = 0
        self._baselines: Literal["not compared", "ahead", "reached"] = "not compared"
        self._shown: tuple[dict[str, PlannedRun], int | None] = ({}, None)  # what `show` was last called with

    def __enter__(self) -> SweepScreen:
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if self._live and console.is_terminal:
            from rich.live import Live

            self._display = Live(console=console, auto_refresh=False, transient=False)
            self._display.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._display is not None:
            with contextlib.suppress(OSError):
                self._display.stop()
            self._display = None

    def show(self, runs: dict[str, PlannedRun], parallel: int | None, *, last: bool = False) -> None:
        """Look at the running runs and refresh the table, at most once a second."""
        self._shown = (runs, parallel)
        if not last and time.monotonic() - self._refreshed < _EVERY:
            return
        self._refreshed = time.monotonic()
        for run in runs.values():
            if run.submitted:
                run.observe(read_progress(run.path, run.config, self._validation).fraction)
        self._announce(runs, parallel)
        if self._display is None:
            return
        with contextlib.suppress(OSError):  # the sweep continues without its terminal
            self._display.update(self._table(runs, parallel), refresh=True)

    def report(self, run: PlannedRun, *, again: bool = False) -> None:
        """Print how a run ended: always a failure, and without a table every run.

        again: whether an earlier run of this command ended for the same reason, which is not printed twice
        """
        self.count += 1
        variant = self.plan.variants[run.cells[0].variant]
        name = cell_name(variant.arm, variant.setting, run.cells[0].seed)
        duration = f" in {_time(run.seconds)}" if run.seconds is not None else ""
        if run.now.state != "done":
            reason = "as above" if again else run.now.reason
            self.say(f"[{self.count}/{self.total}] {name} {run.now.state}{duration}: {reason}")
        elif self._display is None:
            metric, value = self._value(run.now.metrics)
            result = f" {metric} {value:.4g}" if value is not None else ""
            self.say(f"[{self.count}/{self.total}] {name} done{result}{duration}{self._left(*self._shown)}")
        if run.now.state == "done":
            self._compare_with_baselines(run, name)

    def _compare_with_baselines(self, run: PlannedRun, name: str) -> None:
        """Print whether the first finished run is worse than a simple baseline, and later the first one that is not."""
        value = run.now.metrics.get(self.metric)
        if self._baselines == "reached" or value is None or not self.metric.startswith("test/"):
            return
        sign = -1.0 if (self.plan.facts.get("metric") or {}).get("direction") == "min" else 1.0
        found = baseline_values(run.path, self.metric)
        ranked = sorted(found, key=lambda baseline: sign * found[baseline], reverse=True)
        if not ranked:
            return
        ahead = [baseline for baseline in ranked if not sign * value >= sign * found[baseline]]  # also of NaN
        if not ahead:
            self._baselines = "reached"
            best = ranked[0]
            self.say(f"{name}: {self.metric} {value:.3g}; the best simple baseline, {best}, has {found[best]:.3g}")
        elif self._baselines == "not compared":
            self._baselines = "ahead"
            others = ", ".join(f"{baseline} {found[baseline]:.3g}" for baseline in ahead[1:])
            more = f" ({others})" if others else ""
            advice = ": stop with Ctrl-C to change the base first" if self.count < self.total else ""
            self.say(f"{name}: {self.metric} {value:.3g}; {ahead[0]} has {found[ahead[0]]:.3g}{more}{advice}")

    def report_stop(self, signum: int) -> None:
        """Print that a signal has stopped the sweep."""
        self.say(f"stopped by {signal.Signals(signum).name}; all progress is saved, the same command continues")

    def summary(self, runs: dict[str, PlannedRun]) -> None:
        """Print the last line, and where the logs of failed runs are."""
        failed = [run for run in runs.values() if run.now.state in ("failed", "interrupted")]
        self.say(f"{_count_text(runs) or 'nothing to run'} after {_time(time.monotonic() - self._started)}")
        if failed:
            logs = " ".join(str(run.path / "log.txt") for run in failed[:3])
            retry = " with --retry" if any(run.now.state == "failed" for run in failed) else ""
            self.say(f"logs: {logs}{' ...' if len(failed) > 3 else ''}; the same command{retry} tries again")

    # -- the table --------------------------------------------------------------------------------------

    def _table(self, runs: dict[str, PlannedRun], parallel: int | None) -> Any:
        from rich.console import Group
        from rich.text import Text

        seeds = list(dict.fromkeys(cell.seed for cell in self.plan.cells))
        cells = {(c.variant, c.seed): run for run in runs.values() for c in run.cells}
        variants = self._visible_variants(runs)
        if len(seeds) <= LIVE_SEEDS:
            grid = table(None, "arm", *(f"seed {seed}" for seed in seeds))
            for key in variants:
                grid.add_row(Text(self._name(key)), *(self._cell(cells.get((key, seed))) for seed in seeds))
        else:
            grid = table(None, "arm", "cells")
            for key in variants:
                own = {str(seed): cells[key, seed] for seed in seeds if (key, seed) in cells}
                grid.add_row(Text(self._name(key)), Text(_count_text(own)))
        return Group(grid, Text(self._footer(runs, parallel)))

    def _name(self, key: str) -> str:
        variant = self.plan.variants[key]
        return cell_name(variant.arm, variant.setting)

    def _visible_variants(self, runs: dict[str, PlannedRun]) -> list[str]:
        """The variants that fit the terminal; those with running cells come first where not all fit."""
        variants = list(dict.fromkeys(cell.variant for run in runs.values() for cell in run.cells))
        height = max(4, self._display.console.height - 4)
        if len(variants) <= height:
            return sorted(variants, key=list(self.plan.variants).index)
        running = [cell.variant for run in runs.values() if run.submitted for cell in run.cells]
        return list(dict.fromkeys([*running, *variants]))[:height]

    def _cell(self, run: PlannedRun | None) -> Any:
        from rich.text import Text

        if run is None:
            return Text("")
        state = "running" if run.submitted else run.now.state
        if state == "running":
            progress = read_progress(run.path, run.config, self._validation)
            start = "starting" if run.submitted else "running"
            parts = [f"{100 * progress.fraction:.0f}%" if progress.fraction is not None else start]
            parts += [f"{progress.value:.4g}"] if progress.value is not None else []
            parts += [_time(progress.seconds_left)] if progress.seconds_left is not None else []
            parts += [] if run.submitted else ["in another process"]
            return Text(" ".join(parts), style=_STYLES["running"])
        _, value = self._value(run.now.metrics)
        if state == "done":
            return Text("done" if value is None else f"{value:.4g}", style=_STYLES["done"])
        return Text("" if state in ("missing", "queued") else state, style=_STYLES.get(state, ""))

    def _footer(self, runs: dict[str, PlannedRun], parallel: int | None) -> str:
        return f"{_count_text(runs)}, {_time(time.monotonic() - self._started)} so far{self._left(runs, parallel)}"

    def _seconds_left(self, runs: dict[str, PlannedRun], parallel: int | None) -> float | None:
        """The time that the sweep still takes; None where it is unknown, as is how fast a shared queue moves."""
        if parallel is None or not any(run.open for run in runs.values()):
            return None
        return seconds_left(runs, parallel, {} if self._announced is None else self._announced.sizes)

    def _left(self, runs: dict[str, PlannedRun], parallel: int | None) -> str:
        seconds = self._seconds_left(runs, parallel)
        return "" if seconds is None else f", about {_time(seconds)} left"

    def _announce(self, runs: dict[str, PlannedRun], parallel: int | None) -> None:
        """Print the time of the whole sweep as soon as it is known, if it was not before the first cell."""
        if self._announced is None or self._announced.seconds is not None:
            return
        seconds = self._seconds_left(runs, parallel)
        if seconds is None:
            return
        self._announced.seconds = time.monotonic() - self._started + seconds
        self._announced.parallel = parallel
        self.say(f"{self._announced.time} in all, by the first steps")

    def _value(self, metrics: dict[str, float]) -> tuple[str, float | None]:
        for name in (self.metric, "test/accuracy", "test/loss"):
            if name in metrics:
                return name, metrics[name]
        return "", None


def _count_text(runs: dict[str, PlannedRun]) -> str:
    """How many runs are in each state: "3 done, 1 running"."""
    counts: dict[str, int] = {}
    for run in runs.values():
        state = "running" if run.submitted else run.now.state
        state = "queued" if state in ("missing", "queued") else state
        counts[state] = counts.get(state, 0) + 1
    order = ("done", "running", "queued", "interrupted", "failed")
    return ", ".join(f"{counts[state]} {state}" for state in order if state in counts)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
