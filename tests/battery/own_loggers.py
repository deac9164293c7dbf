"""A logger as a user may write it, and every way in which it may fail."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from blockyard.engine.loggers.base import RunLogger
from blockyard.runs.folder import RunFolder


class TextlessError(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: dict[str, BaseException] = {
    "error": ConnectionError("planted"),
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "unprintable": RuntimeError("\x1b[31mred\x07"),
    "surrogate": OSError("file \udcff.txt"),
    "textless": TextlessError(),
}


def seed_all(number: int) -> None:
    """Seed, and draw from, every global generator, as Lightning's `seed_everything` and careless libraries do."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    random.random()
    np.random.random()


class Own(RunLogger):
    """Fails in one of its methods.

    Options:
        at: the method
        how: what it does there
    """

    def __init__(self, *, at: str, how: str) -> None:
        self.at = at
        self.how = how

    def _do(self, method: str, values: Any = None) -> None:
        if method != self.at and not (self.at == "abandon" and method == "start"):
            return
        if self.how in ERRORS:
            raise ERRORS[self.how]
        if self.how == "hang":
            time.sleep(90)
        elif self.how == "change":
            values.clear()
        elif self.how == "seed":
            for number in range(1000):
                seed_all(number)
                time.sleep(0.0001)  # the run's thread goes on in between
        elif self.how == "print":
            sys.stdout.write("a row\n" * 2)

    def prepare(self, folder: RunFolder) -> None:
        """Fail, or do nothing."""
        self._do("prepare")

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Fail, or do nothing."""
        self._do("start", config)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Fail, or do nothing."""
        self._do("log", values)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Fail, or do nothing."""
        self._do("finish", summary)

    def abandon(self) -> None:
        """Fail, or do nothing."""
        self._do("abandon")
