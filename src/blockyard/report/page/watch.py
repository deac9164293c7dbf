"""A comparison that is made again when its runs change."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.load.named_runs import named
from blockyard.report.page.document import encode, render
from blockyard.report.page.thin import thin
from blockyard.sweep.plan.sweep_plan import SweepPlan

ADDRESS = "comparison.json"  # where the page asks for newer data
FILES = ("config.yaml", "status.json", "metrics.csv", "summary.json", "run.json")
_REST = 2.0  # seconds at least between two comparisons
_SHARE = 4.0  # and this many times what the last one took,
_MOST = 30.0  # but no longer


@dataclass(frozen=True)
class Snapshot:
    """A comparison as it is served: the page, its data, and the mark of that data."""

    page: bytes
    data: bytes
    etag: str


class Watched:
    """What `compare` says of some paths, as new as the files in the run folders.

    paths: of a sweep, of runs, of a folder of runs, as `compare` takes them
    options: `compare`'s own: outputs, baseline, metric, by
    """

    def __init__(self, paths: Sequence[str], *, options: dict[str, Any]) -> None:
        self.paths = list(paths)
        self.options = options
        self._lock = threading.Lock()
        self._print: object = None
        self._next = 0.0
        self._last: dict[str, Any] | None = None
        self._snapshot: Snapshot | None = None
        # What means no run at all is for the user to know at once, not for a page.
        self.fingerprint()

    def fingerprint(self) -> tuple[Any, ...]:
        """Changes whenever a file that the comparison reads does. Raises UserError where a path means no run."""
        found = named(self.paths, self.options.get("outputs", "outputs"))
        folders = [*found.runs]
        for sweep in found.sweeps:
            folders += _cells(sweep, _stat(sweep / "plan.json"))
        return tuple((str(folder), *(_stat(folder / name) for name in FILES)) for folder in folders)

    def snapshot(self) -> Snapshot:
        """The newest state; the last one while nothing has changed or the last one is too young."""
        with self._lock:
            if self._snapshot is None or time.monotonic() >= self._next:
                self._refresh()
            assert self._snapshot is not None
            return self._snapshot

    def _refresh(self) -> None:
        try:
            now: object = self.fingerprint()
        except UserError as error:
            now = str(error)
        if self._snapshot is not None and now == self._print:
            self._next = time.monotonic() + _REST / 4
            return
        started, first = time.monotonic(), self._snapshot is None
        self._snapshot = _snapshot(self._compared())
        self._print = now
        # The first one also imports what the statistics need; that says nothing about the next.
        took = 0.0 if first else time.monotonic() - started
        self._next = time.monotonic() + min(_MOST, max(_REST, _SHARE * took))

    def _compared(self) -> dict[str, Any]:
        """The comparison; where there is none now, the last one or an empty one, and why."""
        asked = self.paths[0] if len(self.paths) == 1 else self.paths
        try:
            self._last = compare(asked, **self.options).as_dict()
        except UserError as error:
            return (self._last or empty(", ".join(self.paths))) | {"board": {"error": str(error)}}
        return self._last | {"board": {"error": None}}


def empty(title: str) -> dict[str, Any]:
    """A comparison of nothing, for a page that waits for the first run."""
    lists = ("metrics", "warnings", "seeds", "arms", "cells", "curves", "tuning", "attention")
    none = ("claim", "source", "question", "baseline", "expect", "effects", "cost_axis")
    fixed = {"title": title, "answer": "", "metric": "", "direction": "max", "directions": {}, "provenance": {}}
    return fixed | {name: [] for name in lists} | dict.fromkeys(none)


def _snapshot(comparison: dict[str, Any]) -> Snapshot:
    small = thin(comparison)
    data = encode(small).encode()
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Snapshot(render(small, live=ADDRESS, etag=etag).encode(), data, etag)


@lru_cache(maxsize=64)
def _cells(sweep: Path, stamp: tuple[int, int] | None) -> list[Path]:  # noqa: ARG001 - the key of the cache
    """The run folders of a plan; read again only when the plan's file has another stamp."""
    plan = SweepPlan.load(sweep)
    return [sweep, *(plan.path(cell) for cell in plan.cells)]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
