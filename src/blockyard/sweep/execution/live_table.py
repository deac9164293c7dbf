"""A live table of a running sweep, arms by seeds; plain lines without a terminal."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

from blockyard.sweep.cell.states import PlannedRun, read_progress
from blockyard.sweep.cells import cell_name
from blockyard.sweep.plan.sweep_plan import MetricFacts, SweepPlan
from blockyard.terminal import table

_EVERY = 1.0  # seconds between two refreshes
_SEEDS = 8  # columns; with more seeds each arm shows counts
_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


class SweepScreen:
    """Shows a sweep: a table on standard error where that is a terminal, else a line for each cell through `say`.

    total: the runs so far; count: those that have ended
    """

    def __init__(self, plan: SweepPlan, say: Callable[[str], object], live: bool) -> None:
        self.plan = plan
        self.say = say
        metric = plan.facts.get("metric") or MetricFacts()
        self.metric = str(metric.get("name") or plan.question.get("metric") or "test/accuracy")
        self._validation = str(metric.get("validation") or "val/" + self.metric.partition("/")[2])
        self._live = live
        self._display: Any = None
        self._refreshed = 0.0
        self._started = time.monotonic()
        self.count = 0
        self.total = 0
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
        """Refresh the table, at most once a second."""
        self._shown = (runs, parallel)
        if self._display is None or (not last and time.monotonic() - self._refreshed < _EVERY):
            return
        self._refreshed = time.monotonic()
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
            self.say(f"[{self.count}/{self.total}] {name} done{result}{duration}{_left(*self._shown)}")

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
        if len(seeds) <= _SEEDS:
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
        return f"{_count_text(runs)}, {_time(time.monotonic() - self._started)} so far{_left(runs, parallel)}"

    def _value(self, metrics: dict[str, float]) -> tuple[str, float | None]:
        for name in (self.metric, "test/accuracy", "test/loss"):
            if name in metrics:
                return name, metrics[name]
        return "", None


def _left(runs: dict[str, PlannedRun], parallel: int | None) -> str:
    """The time that the sweep still takes, by its finished cells: ", about 3:20 left"; "" where that is unknown."""
    unfinished = [run for run in runs.values() if run.open]
    durations = [run.seconds for run in runs.values() if run.seconds is not None and run.now.state == "done"]
    if not durations or not unfinished or not parallel:  # how fast a shared queue moves is unknown
        return ""
    mean = sum(durations) / len(durations)
    starts = [run.started for run in unfinished if run.submitted and run.started]
    spent = sum(min(mean, time.monotonic() - start) for start in starts)
    seconds = max(0.0, mean * len(unfinished) - spent) / max(1, min(parallel, len(unfinished)))
    return f", about {_time(seconds)} left"


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
