"""Checkpoint files: verified before they are loaded, written atomically.

A run keeps `last.ckpt`, `previous.ckpt` (the last one before) and `best.ckpt`. Each carries a stamp: the format, the
identity and seed of its run, and its step. Before a checkpoint is loaded, the CRC-32 of every record in the zip file is
checked (16 ms per 50 MB), because torch loads a flipped bit without an error. Loading never runs code: `weights_only`
is always on. Whether the content fits a model is checked in `checkpoint_content`.

`AtomicCheckpointIO` (in `checkpoint_io`, imported on access here) writes them for Lightning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.runs.checkpoint_file import BadCheckpoint, Stamp, load_content, read, verify

if TYPE_CHECKING:
    from blockyard.runs.checkpoint_io import AtomicCheckpointIO

__all__ = [
    "BEST",
    "LAST",
    "PREVIOUS",
    "AtomicCheckpointIO",
    "BadCheckpoint",
    "Newest",
    "Stamp",
    "newest_good",
    "read",
    "verify",
]

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


@dataclass(frozen=True)
class Newest:
    """The newest usable checkpoint, or None, and those that were refused.

    steps: of every checkpoint that passed `verify`, by file name
    """

    path: Path | None
    step: int | None = None
    refused: list[BadCheckpoint] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        notes = [str(bad) for bad in self.refused]
        if self.path is not None and notes:
            notes.append(f"using {self.path.name} (step {self.step})")
        return "; ".join(notes)


def newest_good(
    folder: str | Path,
    *,
    identity: str | None = None,
    seed: int | None = None,
    check: Callable[[Path, dict[str, Any]], None] | None = None,
) -> Newest:
    """The checkpoint with the most steps among last, previous and best that passes `verify` and `check`.

    check: called with a path and its content, newest first; raises BadCheckpoint for what the run cannot load
    """
    refused: list[BadCheckpoint] = []
    steps: dict[str, int] = {}
    for name in (LAST, PREVIOUS, BEST):
        path = Path(folder) / name
        if not os.path.lexists(path):
            continue
        try:
            steps[name] = verify(path, identity=identity, seed=seed).step
        except FileNotFoundError:
            refused.append(BadCheckpoint(path, "it is a link to nothing"))
        except BadCheckpoint as bad:
            refused.append(bad)
    for name in sorted(steps, key=lambda name: -steps[name]):  # of equal steps, `last` first
        path = Path(folder) / name
        try:
            if check is not None:
                check(path, load_content(path, mmap=True))
        except BadCheckpoint as bad:
            refused.append(bad)
            continue
        good = {other: step for other, step in steps.items() if other not in {bad.path.name for bad in refused}}
        return Newest(path, steps[name], refused, good)
    return Newest(None, None, refused)


def __getattr__(name: str) -> object:
    # Importing Lightning takes seconds, and reading runs does not need it.
    if name == "AtomicCheckpointIO":
        from blockyard.runs.checkpoint_io import AtomicCheckpointIO

        return AtomicCheckpointIO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
