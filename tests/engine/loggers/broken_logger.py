"""A Lightning logger that fails."""

from __future__ import annotations

from typing import Any

from pytorch_lightning.loggers.logger import Logger


class Broken(Logger):
    """A Lightning logger that fails at `start`, `log` or `finish`."""

    def __init__(self, *, at: str) -> None:
        super().__init__()
        self.at = at

    name = version = "broken"

    def _fail(self, what: str) -> None:
        if self.at == what:
            raise ConnectionError("planted")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        self._fail("start")

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        self._fail("log")

    def finalize(self, status: str) -> None:
        self._fail("finish")
