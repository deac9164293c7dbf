"""TensorBoard event files in the run folder, under `tensorboard/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.contracts import Count
from blockyard.engine.loggers.base import RunLogger, flatten
from blockyard.runs.folder import RunFolder


class TensorBoard(RunLogger):
    """Mirrors metrics to event files; `tensorboard --logdir outputs` shows all runs.

    Options:
        flush_seconds: how often rows are written out
    """

    package = "tensorboard"
    extra = "tensorboard"

    def __init__(self, *, flush_seconds: Count = 10) -> None:
        self.flush_seconds = flush_seconds
        self._purge: int | None = None  # the first step whose rows are said anew
        self._writer: Any = None

    def prepare(self, folder: RunFolder) -> None:
        """Ask where a resumed run stands, here in the run's own thread, which writes the table."""
        last = folder.metrics.last_step if folder.resumes else None
        self._purge = None if last is None else last + 1

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Open the event file, with the config as a text table; rows of a resumed run replace old ones."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            log_dir=str(folder.path / "tensorboard"),
            purge_step=self._purge,
            flush_secs=self.flush_seconds,
        )
        table = "\n".join(f"| {key} | {value} |" for key, value in flatten(config).items())
        self._writer.add_text("config", f"| option | value |\n|---|---|\n{table}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar per metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the state and close."""
        self._writer.add_text("state", state)
        self._writer.close()
