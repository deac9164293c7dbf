"""An answer that was written before its sweep was started again, marked as of then.

Whoever starts a sweep may be stopped at any moment, so the mark is made before the first cell runs, and
the new answer takes its place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_json
from blockyard.report.page import write
from blockyard.runs.status import now

DATA, PAGE = "comparison.json", "report.html"
_ASIDE = "report-earlier.html"


def mark(folder: Path) -> None:
    """Say in comparison.json and report.html that they are of an earlier state. Raises OSError.

    A page without its data, which cannot be made anew, is put aside as report-earlier.html.
    """
    try:
        data = read_json(folder / DATA)
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        if (folder / PAGE).exists():
            os.replace(folder / PAGE, folder / _ASIDE)
        return
    data["stale"] = data.get("stale") or _words(data, folder)
    write_json(folder / DATA, data)
    if (folder / PAGE).exists():
        write(data, folder / PAGE)


def _words(data: dict[str, Any], folder: Path) -> str:
    cells = data["cells"]
    done = sum(isinstance(cell, dict) and cell.get("state") == "done" for cell in cells)
    made = str((data.get("provenance") or {}).get("time") or "an unknown time")
    return (
        f"An earlier state, of {made} with {done} of {len(cells)} cells done: the sweep was started again at {now()} "
        f"and has not come to a new answer; `blockyard compare {folder.name}` gives the present one"
    )
