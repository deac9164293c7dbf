"""A progress bar with loss, speed and time left; plain lines without a terminal.

Reference: pytorch_lightning.callbacks.RichProgressBar
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, ClassVar

from blockyard.contracts import NonNegative
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.device_stats import MFU
from blockyard.evaluate.span_types import of_type


class Progress(RunCallback):
    """Shows the progress of a run on standard error, each time metrics are logged.

    Options:
        bar: true for a bar, false for plain lines, null for a bar on a terminal only
        seconds: least time between two plain lines; evaluations are always shown
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes
    priority = 5

    def __init__(self, *, bar: bool | None = None, seconds: NonNegative = 10.0) -> None:
        self.bar = bar
        self.seconds = seconds
        self._console: Any = None
        self._display: Any = None
        self._task: Any = None
        self._evaluation = ""
        self._printed = float("-inf")
        self._mark = (0.0, 0, 0)  # seconds, step, and tokens or samples of the last speed

    def on_run_start(self, state: RunState) -> None:
        """Open the bar, in the main process."""
        if not state.main:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._mark = (state.seconds, state.step, _seen(state))
        if self.bar is False or (self.bar is None and not self._console.is_terminal):
            return
        self._display = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[text]}"),
            console=self._console,
            auto_refresh=False,
        )
        self._display.start()
        self._task = self._display.add_task(state.name, total=_total(state), completed=state.step, text="")

    def on_log(self, state: RunState, values: dict[str, float]) -> None:
        """Advance the bar, and show loss, speed and time left."""
        if self._console is not None:
            self._show(state, self._status(state, values), now=False)

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Show the validation metrics."""
        if self._console is None:
            return
        self._evaluation = " ".join(f"{name} {value:.4g}" for name, value in values.items() if not of_type(name))
        self._show(state, self._evaluation, now=True)

    def on_run_end(self, state: RunState) -> None:
        """Close the bar; its last state stays visible."""
        if self._display is not None:
            with contextlib.suppress(OSError, SystemExit):
                self._display.update(self._task, completed=state.step, refresh=True)
                self._display.stop()
            self._display = None

    def _show(self, state: RunState, text: str, *, now: bool) -> None:
        try:
            self._print(state, text, now)
        except (OSError, SystemExit):
            # The reader has closed the pipe (`| head`). rich would exit; the run continues.
            self._console = self._display = None

    def _print(self, state: RunState, text: str, now: bool) -> None:
        if self._display is not None:
            shown = text
            if not now:
                shown += f" {self._evaluation}"
            self._display.update(self._task, completed=state.step, total=_total(state), text=shown, refresh=True)
        elif now or state.complete or time.monotonic() - self._printed >= self.seconds:
            self._printed = time.monotonic()
            self._console.print(f"{state.name} {state.step}/{_total(state)} {text}", markup=False)

    def _status(self, state: RunState, values: dict[str, float]) -> str:
        """Return loss, speed and time left since the last call, in one line."""
        mark = (state.seconds, state.step, _seen(state))
        seconds, steps, count = (now - before for now, before in zip(mark, self._mark, strict=True))
        self._mark = mark
        parts = []
        if "train/loss" in values:
            parts.append(f"loss {values['train/loss']:.4f}")
        if steps > 0 and seconds > 0:
            unit = "tokens/s" if state.modality == "text" else "samples/s"
            minutes, rest = divmod(int((_total(state) - state.step) * seconds / steps), 60)
            parts.append(f"{count / seconds:,.0f} {unit}")
            parts.append(f"{minutes}:{rest:02d} left")
        if MFU in values:
            parts.append(f"{values[MFU]:.1%} of peak")
        return " ".join(parts)


def _total(state: RunState) -> int:
    """Return the steps of the run, by its pace so far where time ends it."""
    if state.out_of_time:
        return state.step
    return state.expected_total(state.step)


def _seen(state: RunState) -> int:
    """Return the tokens of a text, or the samples of other data, of all steps so far."""
    samples, tokens = state.seen
    return tokens if state.modality == "text" else samples
