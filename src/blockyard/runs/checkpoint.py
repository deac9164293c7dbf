"""Checkpoint files: verified before they are loaded, written atomically.

A run keeps `last.ckpt`, `previous.ckpt` (the last one before) and `best.ckpt`. Each carries a stamp: the format, the
identity and seed of its run, and its step. Before a checkpoint is loaded, the CRC-32 of every record in the zip file is
checked (16 ms per 50 MB), because torch loads a flipped bit without an error. Loading never runs code: `weights_only`
is always on.

`AtomicCheckpointIO` (in `checkpoint_io`, imported on access here) writes them for Lightning.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blockyard.errors import UserError

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
STAMP = "blockyard"
FORMAT = 1


class BadCheckpoint(UserError):  # noqa: N818 - it describes the file
    """A checkpoint that must not be loaded, and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path, self.reason = path, reason


class Stamp(NamedTuple):
    """The run that a checkpoint belongs to, and its optimizer step."""

    identity: str | None
    seed: int | None
    step: int


@dataclass(frozen=True)
class Newest:
    """The newest usable checkpoint, or None, and those that were refused."""

    path: Path | None
    step: int | None = None
    refused: list[BadCheckpoint] = field(default_factory=list)

    def __str__(self) -> str:
        notes = [str(bad) for bad in self.refused]
        if self.path is not None and notes:
            notes.append(f"using {self.path.name} (step {self.step})")
        return "; ".join(notes)


def verify(path: str | Path, *, identity: str | None = None, seed: int | None = None) -> Stamp:
    """Check that a file is complete, undamaged, written by blockyard and, if they are given, of this run.

    Raises BadCheckpoint with the reason, FileNotFoundError without a file.
    """
    path = Path(path)
    _check_whole(path)
    return _check_ours(path, _load(path, mmap=True), identity, seed)


def read(
    path: str | Path,
    *,
    identity: str | None = None,
    seed: int | None = None,
    map_location: Any = "cpu",
) -> dict[str, Any]:
    """Load and verify a checkpoint. Raises BadCheckpoint with the reason, or FileNotFoundError."""
    path = Path(path)
    _check_whole(path)
    content = _load(path, mmap=False, map_location=map_location)
    _check_ours(path, content, identity, seed)
    return content


def newest_good(folder: str | Path, *, identity: str | None = None, seed: int | None = None) -> Newest:
    """The checkpoint with the most steps among last, previous and best that passes `verify`."""
    refused, good = [], []
    for rank, name in enumerate((LAST, PREVIOUS, BEST)):
        path = Path(folder) / name
        if not path.exists():
            continue
        try:
            good.append((verify(path, identity=identity, seed=seed).step, -rank, path))
        except BadCheckpoint as bad:
            refused.append(bad)
    if not good:
        return Newest(None, None, refused)
    step, _, path = max(good)
    return Newest(path, step, refused)


def _check_whole(path: Path) -> None:
    if path.is_dir():
        raise BadCheckpoint(path, "it is a folder of shards; save the full state (trainer state_dict_type=full)")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            names = archive.namelist()
    except FileNotFoundError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        size = path.stat().st_size
        raise BadCheckpoint(path, f"it is truncated or not a checkpoint ({size} bytes; {error})") from error
    except OSError as error:
        raise BadCheckpoint(path, f"it cannot be read ({error.strerror or error})") from error
    if broken is not None:
        raise BadCheckpoint(path, f"it is damaged: the checksum of {broken} is wrong")
    if not any(name.endswith("data.pkl") for name in names):
        raise BadCheckpoint(path, "it is a zip file but not a checkpoint")


def _load(path: Path, *, mmap: bool, map_location: Any = "cpu") -> dict[str, Any]:
    import torch

    try:
        content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0][:200]
        raise BadCheckpoint(path, f"it holds more than tensors and plain values ({reason})") from error
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OSError) as error:
        raise BadCheckpoint(path, f"it cannot be read ({str(error).splitlines()[0][:200]})") from error
    if not isinstance(content, dict):
        raise BadCheckpoint(path, "it is not a checkpoint of a training run")
    return content


def _check_ours(path: Path, content: dict[str, Any], identity: str | None, seed: int | None) -> Stamp:
    stamp = content.get(STAMP)
    if not isinstance(stamp, dict) or "state_dict" not in content:
        raise BadCheckpoint(path, "it was not written by blockyard")
    if stamp.get("format") != FORMAT:
        raise BadCheckpoint(path, f"its format is {stamp.get('format')!r}; this version reads {FORMAT}")
    checked = Stamp(stamp.get("identity"), stamp.get("seed"), int(stamp.get("step") or 0))
    if identity is not None and checked.identity != identity:
        raise BadCheckpoint(path, f"it belongs to another run (identity {checked.identity}, expected {identity})")
    if seed is not None and checked.seed != seed:
        raise BadCheckpoint(path, f"it belongs to seed {checked.seed}, expected seed {seed}")
    return checked


def __getattr__(name: str) -> object:
    # Importing Lightning takes seconds, and reading runs does not need it.
    if name == "AtomicCheckpointIO":
        from blockyard.runs.checkpoint_io import AtomicCheckpointIO

        return AtomicCheckpointIO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
