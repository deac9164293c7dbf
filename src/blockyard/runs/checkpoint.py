"""Checkpoint files: verified before they are loaded, written atomically.

A run keeps `last.ckpt`, `previous.ckpt` (the last one before) and `best.ckpt`. Each carries a stamp: the format, the
identity and seed of its run, and its step. Before a checkpoint is loaded, the CRC-32 of every record in the zip file is
checked (16 ms per 50 MB), because torch loads a flipped bit without an error. Loading never runs code: `weights_only`
is always on. Whether the content fits a model is checked in `checkpoint_content`.

`checkpoint_io.AtomicCheckpointIO` writes them for Lightning, whose import takes seconds; reading needs none of it.
"""

from __future__ import annotations

import os
import pickle
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from blockyard.errors import UserError, quoted

STAMP = "blockyard"
FORMAT = 1


class BadCheckpointError(UserError):
    """A checkpoint that must not be loaded, and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path, self.reason = path, reason


class Stamp(NamedTuple):
    """The run that a checkpoint belongs to, and its optimizer step."""

    identity: str | None
    seed: int | None
    step: int


def verify(path: str | Path, *, identity: str | None = None, seed: int | None = None) -> Stamp:
    """Check that a file is complete, undamaged, written by blockyard and, if they are given, of this run.

    Raises BadCheckpointError with the reason, FileNotFoundError without a file.
    """
    path = Path(path)
    _check_whole(path)
    return _check_ours(path, load_content(path, mmap=True), identity, seed)


def read(
    path: str | os.PathLike[str],
    *,
    identity: str | None = None,
    seed: int | None = None,
    map_location: Any = "cpu",
) -> dict[str, Any]:
    """Load and verify a checkpoint. Raises BadCheckpointError with the reason, or FileNotFoundError."""
    path = Path(path)
    _check_whole(path)
    content = load_content(path, mmap=False, map_location=map_location)
    _check_ours(path, content, identity, seed)
    return content


def _check_whole(path: Path) -> None:
    try:
        status = path.stat()  # first, because opening a named pipe waits for a writer
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadCheckpointError(path, f"it cannot be read ({error.strerror or error})") from error
    if stat.S_ISDIR(status.st_mode):
        raise BadCheckpointError(path, "it is a folder of shards; save the full state (trainer state_dict_type=full)")
    if not stat.S_ISREG(status.st_mode):
        raise BadCheckpointError(path, "it is not a regular file but a pipe, a socket or a device")
    try:
        with zipfile.ZipFile(path) as archive:
            # torch stores records as they are; a small file that unpacks to a large one was not written by it.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise BadCheckpointError(path, "it is a zip file but not a checkpoint: it is compressed")
            broken = archive.testzip()
            names = archive.namelist()
    except FileNotFoundError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, BadCheckpointError):
            raise
        reason = f"it is truncated or not a checkpoint ({status.st_size} bytes; {error})"
        raise BadCheckpointError(path, reason) from error
    except OSError as error:
        raise BadCheckpointError(path, f"it cannot be read ({error.strerror or error})") from error
    if broken is not None:
        raise BadCheckpointError(path, f"it is damaged: the checksum of {broken} is wrong")
    if not any(name.endswith("data.pkl") for name in names):
        raise BadCheckpointError(path, "it is a zip file but not a checkpoint")


def load_content(path: Path, *, mmap: bool, map_location: Any = "cpu") -> dict[str, Any]:
    """Load a file that was verified. Raises BadCheckpointError."""
    import torch

    try:
        content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0][:200]
        raise BadCheckpointError(path, f"it holds more than tensors and plain values ({reason})") from error
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OSError) as error:
        raise BadCheckpointError(path, f"it cannot be read ({str(error).splitlines()[0][:200]})") from error
    if not isinstance(content, dict):
        raise BadCheckpointError(path, "it is not a checkpoint of a training run")
    return content


def _check_ours(path: Path, content: dict[str, Any], identity: str | None, seed: int | None) -> Stamp:
    stamp = content.get(STAMP)
    if not isinstance(stamp, dict) or "state_dict" not in content:
        raise BadCheckpointError(path, "it was not written by blockyard")
    if stamp.get("format") != FORMAT:
        raise BadCheckpointError(path, f"its format is {stamp.get('format')!r}; this version reads {FORMAT}")
    step, counted = stamp.get("step"), content.get("global_step")
    if type(step) is not int or type(counted) is not int or step != counted or step < 0:
        raise BadCheckpointError(path, f"its stamp says step {step!r:.40}, its content step {counted!r:.40}")
    checked = Stamp(stamp.get("identity"), stamp.get("seed"), step)
    if identity is not None and checked.identity != identity:
        raise BadCheckpointError(
            path, f"it belongs to another run (identity {quoted(checked.identity)}, expected {quoted(identity)})"
        )
    if seed is not None and checked.seed != seed:
        raise BadCheckpointError(path, f"it belongs to seed {checked.seed}, expected seed {seed}")
    return checked


LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


@dataclass(frozen=True)
class Newest:
    """The newest usable checkpoint, or None, and those that were refused.

    steps: of every checkpoint that passed `verify`, by file name
    """

    path: Path | None
    step: int | None = None
    refused: list[BadCheckpointError] = field(default_factory=list)
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

    check: called with a path and its content, newest first; raises BadCheckpointError for what the run cannot load
    """
    refused: list[BadCheckpointError] = []
    steps: dict[str, int] = {}
    for name in (LAST, PREVIOUS, BEST):
        path = Path(folder) / name
        if not os.path.lexists(path):
            continue
        try:
            steps[name] = verify(path, identity=identity, seed=seed).step
        except FileNotFoundError:
            refused.append(BadCheckpointError(path, "it is a link to nothing"))
        except BadCheckpointError as bad:
            refused.append(bad)
    for name in sorted(steps, key=lambda name: -steps[name]):  # of equal steps, `last` first
        path = Path(folder) / name
        try:
            if check is not None:
                check(path, load_content(path, mmap=True))
        except BadCheckpointError as bad:
            refused.append(bad)
            continue
        good = {other: step for other, step in steps.items() if other not in {bad.path.name for bad in refused}}
        return Newest(path, steps[name], refused, good)
    return Newest(None, None, refused)
