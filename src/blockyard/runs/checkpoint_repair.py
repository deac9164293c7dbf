"""Brings the checkpoints of a run back to what the next steps start from, before a run is resumed.

A save writes best.ckpt, then previous.ckpt, then last.ckpt. A run that was killed in between, or whose files were
damaged, has them from different steps. Here last.ckpt becomes the checkpoint that the run resumes from, so that the
next save keeps it as previous.ckpt, and a run without a step left ends with the right one. Each change is atomic and
leaves what the same call would choose again, so a kill in between does no harm.
"""

from __future__ import annotations

import os
from pathlib import Path

from blockyard.atomic_files import move_aside, sync_folder
from blockyard.runs.checkpoint import BEST, LAST, PREVIOUS, Newest
from blockyard.runs.checkpoint_io import link


def repair(folder: Path, newest: Newest, best_step: int | None) -> list[str]:
    """Repair the checkpoints in `folder` and return messages about it.

    newest: what the run resumes from; refused files are renamed, such as last.ckpt to last.damaged.ckpt
    best_step: the step of the best weights so far, as the checkpoint says; they are restored if any file has them

    Raises OSError if the folder cannot be written.
    """
    assert newest.path is not None
    messages = []
    for bad in newest.refused:
        if os.path.lexists(bad.path):
            messages.append(f"{bad.path.name} is kept as {move_aside(bad.path, 'damaged').name}")
    sync_folder(folder)
    steps = dict(newest.steps)
    if best_step is not None and steps.get(BEST) != best_step:
        source = next((name for name, step in steps.items() if step == best_step), None)
        if source is None:
            messages.append(f"the best weights so far, those of step {best_step}, are lost with {BEST}")
        else:
            link(folder / source, folder / BEST)
    if newest.path.name != LAST:
        if LAST in steps and newest.path.name != PREVIOUS:
            link(folder / LAST, folder / PREVIOUS)
        link(newest.path, folder / LAST)
    return messages
