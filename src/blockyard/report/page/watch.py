"""Recompute a comparison when its runs change."""

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
from blockyard.report.arms import pictures, written_texts
from blockyard.report.comparison import compare
from blockyard.report.load.document import ComparisonDocument, plain
from blockyard.report.load.resolve import resolve
from blockyard.report.page.document import encode, linked, render
from blockyard.report.page.thin import thin
from blockyard.runs.predictions_file import TEST
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import SweepPlan

DATA_PATH = "comparison.json"  # the path that the page polls
FILES = (
    *("config.yaml", "status.json", "metrics.csv", "summary.json", "run.json", TEST, written_texts.FILE),
    *pictures.FILES.values(),
)
_MIN_INTERVAL = 2.0  # seconds between two comparisons,
_DURATION_FACTOR = 4.0  # or this many times the duration of the last one,
_MAX_INTERVAL = 30.0  # up to this


@dataclass(frozen=True)
class Snapshot:
    """A comparison as it is served: the page, its data and the data's ETag."""

    page: bytes
    data: bytes
    etag: str


class WatchedComparison:
    """The comparison of some paths, kept up to date with the files in the run folders.

    paths: of a sweep, of runs, of a folder of runs, as `compare` takes them
    options: keyword arguments of `compare`: outputs, baseline, metric, by
    """

    def __init__(self, paths: Sequence[str], *, options: dict[str, Any]) -> None:
        self.paths = list(paths)
        self.options = options
        self._lock = threading.Lock()
        self._fingerprint: object = None
        self._next_check = 0.0
        self._last: dict[str, Any] | None = None
        self._snapshot: Snapshot | None = None
        # A path without any run is an error now, not a message on the page later.
        self.fingerprint()

    def fingerprint(self) -> tuple[Any, ...]:
        """Return a value that changes with the files that the comparison reads.

        Raises UserError for a path without runs.
        """
        resolved = resolve(self.paths, self.options.get("outputs", "outputs"))
        folders = [*resolved.runs]
        plans = [_stat(sweep / PLAN) for sweep in resolved.sweeps]
        for sweep, stamp in zip(resolved.sweeps, plans, strict=True):
            folders += _cell_folders(sweep, stamp)
        return (*plans, *((str(folder), *(_stat(folder / name) for name in FILES)) for folder in folders))

    def snapshot(self) -> Snapshot:
        """Return the current state; the last one while nothing has changed or too little time has passed."""
        with self._lock:
            if self._snapshot is None or time.monotonic() >= self._next_check:
                self._refresh()
            assert self._snapshot is not None
            return self._snapshot

    def _refresh(self) -> None:
        try:
            now: object = self.fingerprint()
        except UserError as error:  # such as a sweep that was removed: the page shows the error
            now = str(error)
        if self._snapshot is not None and now == self._fingerprint:
            self._next_check = time.monotonic() + _MIN_INTERVAL / 4
            return
        started, first = time.monotonic(), self._snapshot is None
        small = thin(linked(self._compare(), None))  # a server of two paths has no folders to link to
        data = encode(small).encode()
        etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        self._snapshot = Snapshot(render(small, live=DATA_PATH, etag=etag).encode(), data, etag)
        self._fingerprint = now
        # The first comparison also imports the statistics libraries, so its duration does not predict the next.
        duration = 0.0 if first else time.monotonic() - started
        self._next_check = time.monotonic() + min(_MAX_INTERVAL, max(_MIN_INTERVAL, _DURATION_FACTOR * duration))

    def _compare(self) -> dict[str, Any]:
        """Return the comparison; where it fails, the last one or an empty one, with the error."""
        selection = self.paths[0] if len(self.paths) == 1 else self.paths
        try:
            self._last = compare(selection, **self.options).as_dict()
        except UserError as error:
            return {**(self._last or empty(", ".join(self.paths))), "board": {"error": str(error)}}
        return {**self._last, "board": {"error": None}}


def empty(title: str) -> dict[str, Any]:
    """Return a comparison without arms, for a page that waits for the first run."""
    document: dict[str, Any] = plain(
        ComparisonDocument(title=title, metric="", direction="max", answer="", cost_axis=None)
    )
    return document


@lru_cache(maxsize=64)
def _cell_folders(sweep: Path, stamp: tuple[int, int] | None) -> list[Path]:  # noqa: ARG001 - part of the cache key
    """Return the run folders of a plan; it is read again only when the stamp of its file has changed."""
    plan = SweepPlan.load(sweep)
    return [sweep, *(plan.path(cell) for cell in plan.cells)]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
