"""One live table of a running sweep, arm by seed; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from blockyard.sweep.execution.cell_states import progress
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.terminal import table

if TYPE_CHECKING:
    from blockyard.sweep.execution.runner import Run

_EVERY = 1.0  # seconds between two drawings
_SEEDS = 8  # columns; more seeds are counted instead
_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


class LiveTable(Protocol):
    """What the runner tells while it works."""

    total: int  # runs, so far as they are known
    count: int  # of them that have ended

    def show(self, runs: dict[str, Run], places: int | None, *, last: bool = False) -> None:
        """How everything stands."""

    def ended(self, run: Run) -> None:
        """A run ended, or was found to have."""


class Screen:
    """The table on standard error where that is a terminal, else a line for each finished cell through `say`."""

    def __init__(self, plan: SweepPlan, say: Callable[[str], None], live: bool) -> None:
        self.plan = plan
        self.say = say
        metric = plan.facts.get("metric") or {}
        self.metric = str(metric.get("name") or plan.question.get("metric") or "test/accuracy")
        self._twin = str(metric.get("validation") or "val/" + self.metric.partition("/")[2])
        self._live = live
        self._display: Any = None
        self._drawn = 0.0
        self._began = time.monotonic()
        self.count = 0
        self.total = 0

    def __enter__(self) -> Screen:
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if self._live and console.is_terminal:
            from rich.live import Live as Display

            self._display = Display(console=console, auto_refresh=False, transient=False)
            self._display.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._display is not None:
            with contextlib.suppress(OSError):
                self._display.stop()
            self._display = None

    def show(self, runs: dict[str, Run], places: int | None, *, last: bool = False) -> None:
        """Draw the table, at most once a second."""
        if self._display is None or (not last and time.monotonic() - self._drawn < _EVERY):
            return
        self._drawn = time.monotonic()
        with contextlib.suppress(OSError):  # a terminal that is gone is no reason to stop
            self._display.update(self._table(runs, places), refresh=True)

    def ended(self, run: Run) -> None:
        """Say a failure at once, and where there is no table every ending."""
        self.count += 1
        name = f"{self.plan.variants[run.cells[0].variant].key}/s{run.cells[0].seed}"
        took = f" in {_time(run.seconds)}" if run.seconds is not None else ""
        if run.now.state == "done":
            if self._display is None:
                name_, value = self._value(run.now.metrics)
                found = f" {name_} {value:.4g}" if value is not None else ""
                self.say(f"[{self.count}/{self.total}] {name} done{found}{took}")
        else:
            self.say(f"[{self.count}/{self.total}] {name} {run.now.state}{took}: {run.now.reason}")

    def stopped(self, signum: int) -> None:
        """Say that the sweep was asked to stop."""
        self.say(f"stopped by {signal.Signals(signum).name}; what ran is saved, the same command goes on")

    def summary(self, runs: dict[str, Run]) -> None:
        """The last line."""
        counts = _counts(runs)
        failed = [run for run in runs.values() if run.now.state in ("failed", "interrupted")]
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        self.say(f"{words or 'nothing to do'} after {_time(time.monotonic() - self._began)}")
        if failed:
            logs = " ".join(str(run.path / "log.txt") for run in failed[:3])
            self.say(f"why: {logs}{' ...' if len(failed) > 3 else ''}; the same command with --retry tries again")

    # -- the table --------------------------------------------------------------------------------------

    def _table(self, runs: dict[str, Run], places: int | None) -> Any:
        from rich.console import Group
        from rich.text import Text

        seeds = list(dict.fromkeys(cell.seed for cell in self.plan.cells))
        cells = {(c.variant, c.seed): run for run in runs.values() for c in run.cells}
        variants = self._rows(runs)
        if len(seeds) <= _SEEDS:
            made = table(None, "arm", *(f"seed {seed}" for seed in seeds))
            for key in variants:
                made.add_row(Text(key), *(self._cell(cells.get((key, seed))) for seed in seeds))
        else:
            made = table(None, "arm", "cells")
            for key in variants:
                mine = {str(seed): cells[key, seed] for seed in seeds if (key, seed) in cells}
                made.add_row(Text(key), Text(", ".join(f"{n} {state}" for state, n in _counts(mine).items())))
        return Group(made, Text(self._footer(runs, places)))

    def _rows(self, runs: dict[str, Run]) -> list[str]:
        """The variants that fit the terminal: those where something happens first."""
        known = list(dict.fromkeys(cell.variant for run in runs.values() for cell in run.cells))
        room = max(4, self._display.console.height - 4)
        if len(known) <= room:
            return sorted(known, key=list(self.plan.variants).index)
        busy = [c.variant for run in runs.values() if run.ours for c in run.cells]
        return list(dict.fromkeys([*busy, *known]))[:room]

    def _cell(self, run: Run | None) -> Any:
        from rich.text import Text

        if run is None:
            return Text("")
        state = "running" if run.ours else run.now.state
        if state == "running":
            at = progress(run.path, run.config, self._twin)
            words = [f"{100 * at.part:.0f}%" if at.part is not None else "starting" if run.ours else "running"]
            words += [f"{at.value:.4g}"] if at.value is not None else []
            words += [_time(at.left)] if at.left is not None else []
            words += [] if run.ours else ["elsewhere"]
            return Text(" ".join(words), style=_STYLES["running"])
        _, value = self._value(run.now.metrics)
        if state == "done":
            return Text("done" if value is None else f"{value:.4g}", style=_STYLES["done"])
        return Text("" if state in ("missing", "queued") else state, style=_STYLES.get(state, ""))

    def _footer(self, runs: dict[str, Run], places: int | None) -> str:
        words = ", ".join(f"{count} {state}" for state, count in _counts(runs).items())
        left = [run for run in runs.values() if run.open]
        took = [run.seconds for run in runs.values() if run.seconds is not None and run.now.state == "done"]
        ends = ""
        if took and left and places:  # of a queue that others use too nobody knows
            mean = sum(took) / len(took)
            here = sum(min(mean, time.monotonic() - run.began) for run in left if run.ours and run.began)
            ends = f", about {_time(max(0.0, mean * len(left) - here) / max(1, min(places, len(left))))} left"
        return f"{words}, {_time(time.monotonic() - self._began)} so far{ends}"

    def _value(self, metrics: dict[str, float]) -> tuple[str, float | None]:
        for name in (self.metric, "test/accuracy", "test/loss"):
            if name in metrics:
                return name, metrics[name]
        return "", None


def _counts(runs: dict[str, Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs.values():
        state = "running" if run.ours else run.now.state
        state = "queued" if state in ("missing", "queued") else state
        counts[state] = counts.get(state, 0) + 1
    order = ("done", "running", "queued", "interrupted", "failed")
    return {state: counts[state] for state in order if state in counts}


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
