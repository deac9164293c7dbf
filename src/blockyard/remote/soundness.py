"""The gate in both directions: a run or a sweep that another machine may take in, by this machine's checks.

A push asks before it sends, so that nobody sends what nobody takes. A pull asks before it moves a folder in place. The
files of a run have been compared with their names, sizes and sums by then; nothing of them has been built or imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.atomic_files import read_json, read_member
from blockyard.errors import UserError, first_line, quoted
from blockyard.report.home.stale import DATA
from blockyard.report.page import render
from blockyard.runs.checkpoint import BEST, LAST, verify
from blockyard.runs.folder import CHECKPOINTS, SUMMARY, RunFolder, read_mapping
from blockyard.runs.housekeeping import why_changed, why_no_run
from blockyard.runs.members import UNSOUND, is_run
from blockyard.runs.untrusted_run import harm_in
from blockyard.runs.weights_file import WEIGHTS, shapes_of
from blockyard.sweep.plan.sweep_plan import SweepPlan

ENDED = ("done", "failed")  # the states of a run whose results are complete; that a run failed is one too


def fault_of_run(folder: Path, allow: Sequence[str]) -> str | None:
    """Return the reason why a run is not copied; None for a run of that name that has ended and does no harm.

    allow: packages besides the trusted ones whose classes its config may name; they are not imported here
    """
    try:
        run = RunFolder.open(folder)
        reason = harm_in(folder, allow) or why_no_run(run) or why_changed(run)
        if reason is not None:
            return reason
        if run.status.state not in ENDED:
            return f"it is {run.status}"
        if run.finished:
            read_mapping(folder / SUMMARY)
        _check_weights(run)
    except FileNotFoundError:
        return f"it is done, and has no {SUMMARY}"
    except (UserError, ValueError, OSError) as error:
        return first_line(error)
    return None


def _check_weights(run: RunFolder) -> None:
    """Raise UserError for weights that hold more than tensors and plain values, or are those of another run."""
    weights = run.path / WEIGHTS
    if weights.exists():
        shapes_of([weights])
    for name in (BEST, LAST):
        path = run.path / CHECKPOINTS / name
        if path.exists():
            verify(path, identity=run.identity, seed=run.seed)


def fault_of_sweep(folder: Path) -> str | None:
    """Return the reason why the folder of a sweep is not copied; None for a plan of that name with sound runs."""
    try:
        plan = SweepPlan.load(folder)
        if plan.name != folder.name:
            return f"its plan is that of {quoted(plan.name)}"
        for cell in plan.cells:
            if not is_run(cell.run):
                return f"its plan names the run {quoted(cell.run)}, which is not a folder of runs"
        page_of(folder, folder)
    except (UserError, OSError, *UNSOUND) as error:
        return first_line(error)
    return None


def page_of(folder: Path, place: Path) -> str | None:
    """Return the page of the comparison in a sweep's folder; None without one. Raises OSError or one of UNSOUND.

    place: the folder that the page will lie in, from which it links to the folders of runs
    """
    try:
        comparison = read_json(folder / DATA, read=read_member)
    except FileNotFoundError:
        return None
    cells = []
    for cell in comparison["cells"]:
        if is_run(cell.get("run")):
            # The folder that it records is one of the machine that has compared the runs.
            cell = {**cell, "folder": str(place.parents[1] / cell["run"])}
        cells.append(cell)
    return render({**comparison, "cells": cells}, folder=place)
