"""Mark the saved answer of a sweep as outdated when the sweep is started again.

A sweep may be stopped at any moment, so the mark is set before the first cell runs; the new answer replaces it.
"""

from __future__ import annotations

import os
from pathlib import Path

from blockyard.atomic_files import read_json, write_json
from blockyard.report.load.document import ComparisonDocument
from blockyard.report.page import write
from blockyard.runs.status import now

DATA, PAGE = "comparison.json", "report.html"
_EARLIER = "report-earlier.html"


def mark(folder: Path) -> None:
    """Mark comparison.json and report.html in a sweep's folder as outdated. Raises OSError.

    A page whose data is missing or damaged cannot be rendered again; it is renamed to report-earlier.html.
    """
    try:
        content = read_json(folder / DATA)
    except (OSError, ValueError):
        content = None
    valid = isinstance(content, dict) and isinstance(content.get("cells"), list)
    if not valid:
        if (folder / PAGE).exists():
            os.replace(folder / PAGE, folder / _EARLIER)
        return
    data: ComparisonDocument = content
    data["stale"] = data.get("stale") or _notice(data, folder)
    write_json(folder / DATA, data)
    if (folder / PAGE).exists():
        write(data, folder / PAGE)


def _notice(data: ComparisonDocument, folder: Path) -> str:
    cells = data["cells"]
    done = sum(isinstance(cell, dict) and cell.get("state") == "done" for cell in cells)
    time = str((data.get("provenance") or {}).get("time") or "an unknown time")
    return (
        f"Outdated: this is the state of {time}, with {done} of {len(cells)} cells done; the sweep was started again "
        f"at {now()}. `blockyard compare {folder.name}` shows the current state"
    )
