"""The cache folder of trained tokenizers."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from blockyard.atomic_files import remove_temporary, write_text

_IDLE = 60.0  # seconds after which the temporary file of another process counts as left over


def cache_dir() -> Path:
    """Returns BLOCKYARD_CACHE, or the platform's cache folder."""
    if named := os.environ.get("BLOCKYARD_CACHE"):
        return Path(os.path.expanduser(named))
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "blockyard"


def save(path: Path, text: str) -> None:
    """Writes a cache file atomically; warns if the folder cannot be written."""
    try:
        write_text(path, text)
        remove_temporary(path.parent, untouched=_IDLE)
    except OSError as error:
        warnings.warn(
            f"the tokenizer is not cached in {path.parent} ({error}); set BLOCKYARD_CACHE=FOLDER", stacklevel=2
        )
