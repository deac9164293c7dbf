"""Names the sweeps that have a run as a cell, and its arm in each."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.runs.record import RunRecord
from blockyard.sweep.plan.sweep_plan import FILE, FOLDER, SweepPlan

log = logging.getLogger("blockyard")


def cell_names(records: Sequence[RunRecord], outputs: str | os.PathLike[str]) -> list[RunRecord]:
    """Return the records with `sweep` and `arm`, from the plans under `outputs`. A damaged plan is a warning."""
    names: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(Path(local_path(outputs, "outputs"), FOLDER).glob(f"*/{FILE}")):
        try:
            plan = SweepPlan.load(file.parent)
        except UserError as error:
            log.warning("%s", error)
            continue
        for cell in plan.cells:
            names.setdefault(cell.run, []).append((plan.folder.name, plan.variants[cell.variant].arm))
    named = []
    for record in records:
        pairs = names.get(record.run)
        if pairs:
            sweeps, arms = zip(*pairs, strict=True)
            record = replace(record, sweep=sweeps, arm=arms)
        named.append(record)
    return named
