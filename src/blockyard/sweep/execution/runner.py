"""Run what is missing of a plan: one loop that hands out cells and hears how they ended.

The run folders are the only record. So the same command after a crash, a kill or a stop does what is
left, two planners on one output folder share the work, and a run that two sweeps want is made once.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.engine.system.interrupts import CODES
from blockyard.sweep.execution.cell_states import Standing, standing
from blockyard.sweep.execution.live_table import LiveTable, Screen
from blockyard.sweep.execution.scheduling import due, ordered
from blockyard.sweep.execution.signals import Signals
from blockyard.sweep.executor.base import BUSY, Executor, Outcome, Task
from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan

_BEAT = 0.5  # seconds between two looks at everything
_LOOK = 2.0  # seconds between two looks at a run that another process has


@dataclass
class Run:
    """One run of the plan and the cells that it answers, the first in order first."""

    cells: list[Cell]
    path: Path
    config: dict[str, Any]
    now: Standing
    ours: bool = False  # whether our executor has it
    tried: bool = False  # whether it ended in our hands, well or not
    looked: float = 0.0
    began: float | None = None
    seconds: float | None = None

    @property
    def open(self) -> bool:
        """Whether something is still to come of it."""
        return not self.tried and self.now.state != "done"


@dataclass
class _Loop:
    plan: SweepPlan
    executor: Executor
    retry: bool
    screen: LiveTable
    signals: Signals
    runs: dict[str, Run] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)
    elsewhere: set[str] = field(default_factory=set)

    def survey(self) -> None:
        """Take in the cells that are due and were not before; what is done already may make others due."""
        new: dict[str, Run] = {}
        while True:
            before = len(self.runs)
            for cell in ordered(self.plan, due(self.plan, self.runs)):
                if cell.run not in self.runs:
                    path = self.plan.path(cell)
                    new[cell.run] = self.runs[cell.run] = Run([], path, self.plan.config(cell), standing(path))
                known = self.runs[cell.run]
                if cell not in known.cells:
                    known.cells.append(cell)
            if len(self.runs) == before:
                break
        self.screen.total = len(self.runs)
        for key, run in new.items():
            self._sort(key, run)

    def _sort(self, key: str, run: Run) -> None:
        if run.now.state == "running":
            self.elsewhere.add(key)
        elif run.now.state == "failed" and not self.retry:
            run.tried = True
            self.screen.ended(run)
        elif run.now.state == "done":
            self.screen.count += 1
        else:
            self.ready.append(key)

    @property
    def waits(self) -> bool:
        """Whether anything is to be done or to be waited for."""
        return bool(self.ready or self.elsewhere or any(run.ours for run in self.runs.values()))

    def work(self) -> None:
        """Until nothing is due any more, or a signal says stop."""
        while self.waits and self.signals.signum is None:
            self._hand_out()
            self.screen.show(self.runs, self.executor.parallel)
            ended = self.executor.poll(_BEAT)
            for outcome in ended:
                self._heard(outcome)
            self._look_elsewhere()
            if not self.waits or (ended and self.plan.question.get("tune_seeds")):
                self.survey()
        self.screen.show(self.runs, self.executor.parallel, last=True)

    def _hand_out(self) -> None:
        flying = sum(run.ours for run in self.runs.values())
        while self.ready and flying < self.executor.places:
            key = self.ready.popleft()
            run = self.runs[key]
            run.now = standing(run.path)
            if run.now.state == "running":
                self.elsewhere.add(key)
            elif run.now.state == "done":
                self.screen.ended(run)
            else:
                variant = self.plan.variants[run.cells[0].variant]
                command = tuple(self.plan.facts.get("command") or ())
                self.executor.submit(Task(key, run.config, variant.choices, command, self.retry))
                run.ours, run.began = True, time.monotonic()
                flying += 1

    def _heard(self, outcome: Outcome) -> None:
        run = self.runs[outcome.key]
        run.ours = False
        if outcome.code == BUSY:
            self.elsewhere.add(outcome.key)
            return
        run.tried, run.now = True, standing(run.path)
        run.seconds = run.now.seconds
        if run.now.state != "done":  # however its process went away afterwards
            # Bad input leaves a run queued, with the reason; for this command it has failed.
            stopped = outcome.code in CODES.values() or run.now.state == "interrupted"
            reason = outcome.reason or run.now.reason
            run.now = Standing("interrupted" if stopped else "failed", reason, step=run.now.step)
        self.screen.ended(run)

    def _look_elsewhere(self) -> None:
        for key in list(self.elsewhere):
            run = self.runs[key]
            if time.monotonic() - run.looked < _LOOK:
                continue
            run.looked, run.now = time.monotonic(), standing(run.path)
            if run.now.state == "running":
                continue
            self.elsewhere.discard(key)
            if run.now.state in ("done", "failed"):
                run.tried = True
                self.screen.ended(run)
            else:
                self.ready.appendleft(key)


def run(
    plan: SweepPlan,
    executor: Executor,
    *,
    retry: bool = False,
    say: Callable[[str], None] | None = None,
    live: bool = True,
) -> int:
    """Run the cells of a plan that are not done: 0 all done, 1 some failed, 130 Ctrl-C, 143 SIGTERM.

    retry: try those again that have failed before
    say: takes a line for people; standard output where it is not given
    live: keep a table on the terminal, where standard error is one
    """
    say = say or (lambda text: sys.stdout.write(f"{text}\n") and None)
    with Signals() as signals, Screen(plan, say, live) as screen:
        loop = _Loop(plan, executor, retry, screen, signals)
        executor.home = plan.folder
        loop.survey()
        if loop.waits:
            with contextlib.suppress(KeyboardInterrupt), executor:
                loop.work()
        else:
            screen.show(loop.runs, 1, last=True)
        if signals.signum is not None:
            screen.stopped(signals.signum)
            return signals.code
    screen.summary(loop.runs)
    return 0 if all(each.now.state == "done" for each in loop.runs.values()) else 1
