"""Compares the announced time of a sweep with the time that it took.

The time taken is that of the command, from the announcement to its end: the runs, the start of their processes, the
comparison and the page. The estimate is made of runs alone, so the ratio shows what it leaves out.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from blockyard.atomic_files import read_json, write_json
from blockyard.runs.lock import exclusive
from blockyard.runs.status import now
from blockyard.sweep.execution.estimate import Estimate, format_duration

FILE = "time.json"
_KEPT = 50  # records, the newest


class TimeRecord(TypedDict):
    """One command of a sweep in `time.json`: the announced time and the time that it took."""

    ended: str
    cells: int
    parallel: int | None
    announced_seconds: float | None
    announced_at_most_seconds: float | None
    taken_seconds: float
    ratio: float | None


def record_time(folder: Path, announced: Estimate, seconds: float, *, at_most: bool = False) -> str | None:
    """Append a record to `time.json` in a sweep's folder and return a line for the end of the command.

    None where nothing was left to run, and so nothing was announced. Raises OSError.

    seconds: from the announcement to the end of the command
    at_most: whether more runs were announced than may be necessary, as for a search
    """
    if not announced.cells:
        return None
    ratio = None
    if announced.seconds:
        ratio = seconds / announced.seconds
    record: TimeRecord = {
        "ended": now(),
        "cells": announced.cells,
        "parallel": announced.parallel,
        "announced_seconds": announced.seconds,
        "announced_at_most_seconds": announced.seconds if at_most else announced.at_most,
        "taken_seconds": seconds,
        "ratio": ratio,
    }
    with exclusive(folder):
        write_json(folder / FILE, {"commands": [*read_times(folder), record][-_KEPT:]})
    if announced.seconds is None or ratio is None:
        return f"took {format_duration(seconds)}; no time was announced, because none of its cells had been measured"
    bound = "at most" if at_most else "about"
    return (
        f"took {format_duration(seconds)}, announced were {bound} {format_duration(announced.seconds)}: "
        f"{ratio:.2f} times as long"
    )


def read_times(folder: Path) -> list[TimeRecord]:
    """Return the records of earlier commands, the oldest first; none where the file is missing or damaged."""
    try:
        content = read_json(folder / FILE)
        return TypeAdapter(dict[str, list[TimeRecord]]).validate_python(content)["commands"]
    except (OSError, ValueError, KeyError):  # pydantic's ValidationError is a ValueError
        return []
