"""Mark the saved answer of a sweep as outdated when the sweep is started again.

A sweep may be stopped at any moment, so the mark is set before the first cell runs; the new answer replaces it.
"""

from __future__ import annotations

import os
from pathlib import Path

from blockyard.atomic_files import read_json, write_json
from blockyard.report.load.document import ComparisonDocument, read_document
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
        comparison = read_document(content)
    except (OSError, ValueError):
        if (folder / PAGE).exists():
            os.replace(folder / PAGE, folder / _EARLIER)
        return
    # The content is written again, not the tree: another release may have written parts that this one does not know.
    marked = {**content, "stale": comparison.stale or _notice(comparison, folder)}
    write_json(folder / DATA, marked)
    if (folder / PAGE).exists():
        write(marked, folder / PAGE)


def _notice(comparison: ComparisonDocument, folder: Path) -> str:
    done = sum(cell.state == "done" for cell in comparison.cells)
    time = comparison.provenance.time or "an unknown time"
    return (
        f"Outdated: this is the state of {time}, with {done} of {len(comparison.cells)} cells done; the sweep was "
        f"started again at {now()}. `blockyard compare {folder.name}` shows the current state"
    )
