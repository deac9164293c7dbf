"""A progress bar with loss, speed and time left; plain lines where there is no terminal.

Reference: pytorch_lightning.callbacks.RichProgressBar
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, ClassVar

from blockyard.contracts import NonNegative
from blockyard.engine.callbacks.base import RunCallback, RunState


class Progress(RunCallback):
    """Shows where the run stands, on standard error, each time metrics are logged.

    Options:
        bar: true for a bar, false for plain lines, null for a bar on a terminal only
        seconds: least time between two plain lines; evaluations are always shown
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only watches
    turn = 5

    def __init__(self, *, bar: bool | None = None, seconds: NonNegative = 10.0) -> None:
        self.bar = bar
        self.seconds = seconds
        self._console: Any = None
        self._display: Any = None
        self._task: Any = None
        self._evaluation = ""
        self._shown = float("-inf")
        self._mark = (0.0, 0)  # seconds and step of the last speed

    def begin(self, live: RunState) -> None:
        """Open the bar, in the process that writes."""
        if not live.main:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._mark = (live.seconds, live.step)
        if self.bar is False or (self.bar is None and not self._console.is_terminal):
            return
        self._display = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[words]}"),
            console=self._console,
            auto_refresh=False,
        )
        self._display.start()
        self._task = self._display.add_task(live.name, total=live.total, completed=live.step, words="")

    def logged(self, live: RunState, values: dict[str, float]) -> None:
        """Move on."""
        if self._console is not None:
            self._show(live, self._words(live, values), now=False)

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """Say what the evaluation found."""
        if self._console is None:
            return
        self._evaluation = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._show(live, self._evaluation, now=True)

    def end(self, live: RunState) -> None:
        """Close the bar, leaving its last state in view."""
        if self._display is not None:
            with contextlib.suppress(OSError, SystemExit):
                self._display.update(self._task, completed=live.step, refresh=True)
                self._display.stop()
            self._display = None

    def _show(self, live: RunState, words: str, *, now: bool) -> None:
        try:
            self._print(live, words, now)
        except (OSError, SystemExit):
            # Nobody reads any more (`| head`), for which rich would exit; a run has better to do.
            self._console = self._display = None

    def _print(self, live: RunState, words: str, now: bool) -> None:
        if self._display is not None:
            shown = words if now else f"{words} {self._evaluation}"
            self._display.update(self._task, completed=live.step, words=shown, refresh=True)
        elif now or live.step >= live.total or time.monotonic() - self._shown >= self.seconds:
            self._shown = time.monotonic()
            self._console.print(f"{live.name} {live.step}/{live.total} {words}", markup=False)

    def _words(self, live: RunState, values: dict[str, float]) -> str:
        seconds, step = live.seconds - self._mark[0], live.step - self._mark[1]
        self._mark = (live.seconds, live.step)
        words = [f"loss {values['train/loss']:.4f}"] if "train/loss" in values else []
        if step > 0 and seconds > 0:
            rate = step * live.batch_size / seconds
            unit = "samples/s"
            if live.modality == "text":
                rate, unit = rate * live.tokens, "tokens/s"
            left = (live.total - live.step) * seconds / step
            words += [f"{rate:,.0f} {unit}", f"{int(left) // 60}:{int(left) % 60:02d} left"]
        return " ".join(words)
