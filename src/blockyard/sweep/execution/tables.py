"""Shows a sweep as tables of arms by seeds: its plan, and live while it runs.

A plan has the state of each cell, and the refused arms with the reasons. Without a terminal the live table is plain
lines.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
from blockyard.sweep.stopping.due import Reason, seeded_arms, standing
from blockyard.terminal import console, table

PLAN_SEEDS = 10  # columns of a plan; with more seeds each arm shows counts
LIVE_SEEDS = 8  # columns of the live table
ARMS = 60  # rows that are shown
_LABELS = {"missing": "to run", "queued": "to run", "interrupted": "to resume", "running": "running", "done": "done"}
_LENGTHS = {"seconds": "seconds of training", "flops": "training FLOPs"}  # that `match` gives every arm
_EVERY = 1.0  # seconds between two refreshes
_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


@dataclass
class PlanStatus:
    """The state of a plan's cells.

    states: by run
    due: the cells that have run, run now or may run next; the rest may become due later
    chosen: the chosen variant of each arm that has one
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
        cells = {cell.run: cell for cell in plan.cells}
        states = {run: read_state(plan.path(cell), plan.metric_names) for run, cell in cells.items()}
        values = {run: state.metrics for run, state in states.items() if state.state == "done"}
        failed = [run for run, state in states.items() if state.state == "failed"]
        progress = standing(plan, values, failed)
        chosen = tune.chosen_variants(plan, values, failed)
        return cls(plan, states, progress.due, chosen, progress.reason)

    def remaining(self, *, retry: bool = False) -> list[Cell]:
        """Return the cells that the sweep would run now, one for each run folder."""
        finished = ("done", "running") if retry else ("done", "running", "failed")
        cells = {cell.run: cell for cell in self.due}
        return [cell for run, cell in cells.items() if self.states[run].state not in finished]

    def label(self, cell: Cell, retry: bool) -> str:
        """Return the state of one cell in one or two words."""
        state = self.states[cell.run].state
        if state == "failed":
            return "to retry" if retry else "failed"
        return _LABELS[state]


def print_plan(status: PlanStatus, *, retry: bool = False) -> None:
    """Print the question, the table of cells, the refused arms, the planner's notes and the remarks of `check`."""
    plan = status.plan
    screen = console()
    for line in _question(plan):
        screen.print(line)
    screen.print()
    screen.print(_grid(status, retry))
    if len(plan.arms) > ARMS:
        screen.print(f"and {len(plan.arms) - ARMS} more arms")
    for line in [*_refused(plan), *_failed(status, retry)]:
        screen.print(line)
    for text in [*plan.facts.get("notes", ()), *plan.facts.get("remarks", ())]:
        screen.print(f"note: {text}")


def _question(plan: SweepPlan) -> Iterator[str]:
    """Yield the lines that describe the question of a plan."""
    question = without_secrets(plan.question)
    yield f"{plan.name}: {question['claim']}"
    for key in ("source", "expect", "margin"):
        if question.get(key):
            yield f"  {key:<9} {question[key]}"
    metric = plan.facts["metric"]
    yield f"  {'metric':<9} {metric['name']} ({metric['direction']})"
    if question.get("until"):
        until = question["until"]
        line = f"  {'seeds':<9} {until['first']} at first, until all is decided, {until['most']} at most"
        line += ", by a boundary" if until.get("by") == "boundary" else ", by e-values"
        for unit, limit in (question.get("budget") or {}).items():
            line += f"; budget {limit:g} {unit}"
        yield line
    if question.get("ladder"):
        ladder = question["ladder"]
        kind = ladders.kind(ladder)
        line = f"  {'ladder':<9} {', '.join(map(ladders.label, ladder[kind]))} {ladders.UNITS[kind]}"
        if ladder.get("tokens_per_param"):
            line += f", {ladder['tokens_per_param']:g} tokens a parameter"
        if ladders.floors_of(ladder) == "own":
            line += ", a law with an E of its own for each arm"
        yield line
    if isinstance(question.get("match"), dict):
        for unit, value in question["match"].items():
            yield f"  {'match':<9} {value:g} {_LENGTHS[unit]} for every arm"
    yield f"  {'base':<9} {' '.join(question['base']) or '(defaults)'}"
    if question.get("tune"):
        values = ", ".join(f"{key} in {values}" for key, values in question["tune"].items())
        seeds = ", ".join(map(str, tune.tuning_seeds(plan)))
        yield f"  {'tune':<9} {values}, by {metric['validation']} on seeds {seeds}"
    if question.get("search"):
        search = question["search"]
        trials = f"{search['trials']} trials for each arm"
        if "seeds" in search:
            trials += f" on {search['seeds']} seeds each"
        space = ", ".join(search["space"])
        for arm, dimensions in search.get("only", {}).items():
            space += f", {arm} also {', '.join(dimensions)}"
        yield (
            f"  {'search':<9} {trials} ({search['sampler']}, pruner {search['pruner']}), by {metric['validation']}, "
            f"over {space}; then the best one on all seeds"
        )


def _grid(status: PlanStatus, retry: bool) -> object:
    """Return the table of a plan's cells: one column a seed, or with many seeds or settings the counts of states."""
    plan = status.plan
    seeds = list(plan.question["seeds"])
    chooses = any(plan.question.get(key) for key in ("until", "tune", "search"))
    by_seed = len(seeds) <= PLAN_SEEDS and not chooses
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
            labels = {cell.seed: status.label(cell, retry) for cell in cells}
            shown = [labels.get(seed, "refused") for seed in seeds]
        elif cells:
            counts = Counter(_choice_label(status, cell, due, retry) for cell in cells)
            shown = [", ".join(f"{count} {label}" for label, count in counts.items())]
        elif any(variant.arm == arm.name for variant in plan.variants.values()):
            shown = [f"{len(seeds)} after the search"]
        else:
            shown = ["refused"]
        grid.add_row(name, " ".join(without_secrets(list(arm.overrides))) or "(base)", *size, *shown)
    return grid


def _sizes(plan: SweepPlan) -> tuple[dict[str, list[str]], list[str]]:
    """Return the sizes that were solved for, by arm, and their columns; both empty without any."""
    rows: dict[str, list[str]] = {}
    rungs = (plan.facts.get("ladder") or {}).get("arms")
    if rungs:
        for name, rung in rungs.items():
            training = ["by the data", ""]
            if rung["steps"] is not None:
                training = [f"{rung['steps']:,}", f"{rung['flops']:.3g}"]
            rows[name] = [str(rung["dim"]), f"{rung['params']:,}", *training]
        return rows, ["model.dim", "params", "steps", "training FLOPs"]
    matched = (plan.facts.get("match") or {}).get("arms") or {}
    for name, width in matched.items():
        rows[name] = [str(width["dim"]), f"{width['off']:+.2%}"]
    return rows, ["model.dim", "mismatch"] if rows else []


def _choice_label(status: PlanStatus, cell: Cell, due: set[Cell], retry: bool) -> str:
    """Return the label of a cell of a sweep that chooses its cells: its state, or why it is not due."""
    if cell in due:
        return status.label(cell, retry)
    arm = status.plan.variants[cell.variant].arm
    chosen = status.chosen.get(arm)
    if status.plan.question.get("until") and chosen == cell.variant:
        if status.reason == "open" and arm in seeded_arms(status.plan):
            return "if undecided"
        return "not needed"
    return "if chosen" if chosen is None else "not chosen"


def _refused(plan: SweepPlan) -> Iterator[str]:
    for refused in plan.refused[:ARMS]:
        setting = "".join(f" {key}={value}" for key, value in refused.setting.items())
        yield f"refused: {refused.arm}{setting}"
        for reason in refused.reasons:
            yield f"  - {reason}"
    if len(plan.refused) > ARMS:
        yield f"and {len(plan.refused) - ARMS} more are refused"


def _failed(status: PlanStatus, retry: bool) -> Iterator[str]:
    failed = [cell for cell in status.due if status.states[cell.run].state == "failed"]
    for cell in failed[:ARMS]:
        yield f"failed: {cell.variant}/s{cell.seed}: {status.states[cell.run].reason or 'no reason recorded'}"
    if failed and not retry:
        which = "it" if len(failed) == 1 else f"the {len(failed)} failed cells"
        yield f"--retry runs {which} again"


class SweepScreen:
    """Shows a sweep: a table on standard error if that is a terminal, else a line for each cell through `say`.

    total: the number of runs so far
    count: the number of ended runs
    announced: the estimate of the sweep; an unknown time is announced after the first steps of the runs
    """

    def __init__(
        self, plan: SweepPlan, say: Callable[[str], object], live: bool, announced: Estimate | None = None
    ) -> None:
        self.plan = plan
        self._announced = announced
        self.say = say
        metric = plan.facts.get("metric") or MetricFacts()
        self.metric = str(metric.get("name") or plan.question.get("metric") or "test/accuracy")
        validation = MetricName.parse(metric.get("validation") or self.metric).on("val")
        self._validation = str(validation.logged())
        self._live = live
        self._display: Any = None
        self._refreshed = 0.0
        self._started = time.monotonic()
        self.count = 0
        self.total = 0
        self._baselines: Literal["not compared", "ahead", "reached"] = "not compared"
        self._shown: tuple[dict[str, PlannedRun], int | None] = ({}, None)  # arguments of the last call of `show`

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
        """Print the end of a run that failed, and without a table the end of every run.

        again: whether an earlier run of this command ended for the same reason, which is then not printed again
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
            result = "" if value is None else f" {metric} {value:.4g}"
            self.say(f"[{self.count}/{self.total}] {name} done{result}{duration}{self._left(*self._shown)}")
        if run.now.state == "done":
            self._compare_with_baselines(run, name)

    def _compare_with_baselines(self, run: PlannedRun, name: str) -> None:
        """Print whether the first finished run is worse than a simple baseline, and later the first one that is not."""
        value = run.now.metrics.get(self.metric)
        if self._baselines == "reached" or value is None or not self.metric.startswith("test/"):
            return
        sign = -1.0 if (self.plan.facts.get("metric") or {}).get("direction") == "min" else 1.0
        baselines = baseline_values(run.path, self.metric)
        ranked = sorted(baselines, key=lambda baseline: sign * baselines[baseline], reverse=True)
        if not ranked:
            return
        # Not `<`: every baseline is ahead of NaN.
        ahead = [baseline for baseline in ranked if not sign * value >= sign * baselines[baseline]]
        best = ranked[0]
        if not ahead:
            self._baselines = "reached"
            self.say(f"{name}: {self.metric} {value:.3g}; the best simple baseline, {best}, has {baselines[best]:.3g}")
        elif self._baselines == "not compared":
            self._baselines = "ahead"
            line = f"{name}: {self.metric} {value:.3g}; {best} has {baselines[best]:.3g}"
            if len(ahead) > 1:
                others = [f"{baseline} {baselines[baseline]:.3g}" for baseline in ahead[1:]]
                line += f" ({', '.join(others)})"
            if self.count < self.total:
                line += ": stop with Ctrl-C to change the base first"
            self.say(line)

    def report_stop(self, signum: int) -> None:
        """Print that a signal has stopped the sweep."""
        self.say(f"stopped by {signal.Signals(signum).name}; all progress is saved, the same command continues")

    def summary(self, runs: dict[str, PlannedRun]) -> None:
        """Print the last line, and the paths of the logs of failed runs."""
        failed = [run for run in runs.values() if run.now.state in ("failed", "interrupted")]
        self.say(f"{_count_text(runs.values()) or 'nothing to run'} after {_time(time.monotonic() - self._started)}")
        if failed:
            logs = [str(run.path / "log.txt") for run in failed[:3]]
            if len(failed) > 3:
                logs.append("...")
            retry = " with --retry" if any(run.now.state == "failed" for run in failed) else ""
            self.say(f"logs: {' '.join(logs)}; the same command{retry} tries again")

    def _table(self, runs: dict[str, PlannedRun], parallel: int | None) -> Any:
        from rich.console import Group
        from rich.text import Text

        seeds = list(dict.fromkeys(cell.seed for cell in self.plan.cells))
        run_of_cell: dict[tuple[str, int], PlannedRun] = {}
        for run in runs.values():
            for cell in run.cells:
                run_of_cell[cell.variant, cell.seed] = run
        by_seed = len(seeds) <= LIVE_SEEDS
        columns = [f"seed {seed}" for seed in seeds] if by_seed else ["cells"]
        grid = table(None, "arm", *columns)
        for key in self._visible_variants(runs):
            variant = self.plan.variants[key]
            runs_by_seed = [run_of_cell.get((key, seed)) for seed in seeds]
            if by_seed:
                row = [self._cell(run) for run in runs_by_seed]
            else:
                row = [Text(_count_text(run for run in runs_by_seed if run is not None))]
            grid.add_row(Text(cell_name(variant.arm, variant.setting)), *row)
        spent = _time(time.monotonic() - self._started)
        return Group(grid, Text(f"{_count_text(runs.values())}, {spent} so far{self._left(runs, parallel)}"))

    def _visible_variants(self, runs: dict[str, PlannedRun]) -> list[str]:
        """Return the variants that fit the terminal. Where not all fit, the ones with running cells come first."""
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
            if progress.fraction is not None:
                parts = [f"{100 * progress.fraction:.0f}%"]
            else:
                parts = ["starting" if run.submitted else "running"]
            if progress.value is not None:
                parts.append(f"{progress.value:.4g}")
            if progress.seconds_left is not None:
                parts.append(_time(progress.seconds_left))
            if not run.submitted:
                parts.append("in another process")
            return Text(" ".join(parts), style=_STYLES["running"])
        if state == "done":
            _, value = self._value(run.now.metrics)
            return Text("done" if value is None else f"{value:.4g}", style=_STYLES["done"])
        return Text("" if state in ("missing", "queued") else state, style=_STYLES.get(state, ""))

    def _seconds_left(self, runs: dict[str, PlannedRun], parallel: int | None) -> float | None:
        """Return the time until the end of the sweep; None where it is unknown."""
        # Nobody knows how fast a shared queue moves.
        if parallel is None or not any(run.open for run in runs.values()):
            return None
        sizes = {} if self._announced is None else self._announced.sizes
        return seconds_left(runs, parallel, sizes)

    def _left(self, runs: dict[str, PlannedRun], parallel: int | None) -> str:
        seconds = self._seconds_left(runs, parallel)
        if seconds is None:
            return ""
        return f", about {_time(seconds)} left"

    def _announce(self, runs: dict[str, PlannedRun], parallel: int | None) -> None:
        """Print the time of the whole sweep as soon as it is known, unless it was known before the first cell."""
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


def _count_text(runs: Iterable[PlannedRun]) -> str:
    """Return how many runs are in each state: "3 done, 1 running"."""
    counts: Counter[str] = Counter()
    for run in runs:
        state = "running" if run.submitted else run.now.state
        counts["queued" if state == "missing" else state] += 1
    order = ("done", "running", "queued", "interrupted", "failed")
    return ", ".join(f"{counts[state]} {state}" for state in order if state in counts)


def _time(seconds: float | None) -> str:
    """Return a time as text: "3.2 s", "4:05", "1:02:03"."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
