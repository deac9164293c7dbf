"""The cache folder of trained tokenizers."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path


def cache_dir() -> Path:
    """Returns BLOCKYARD_CACHE, or the platform's cache folder."""
    if named := os.environ.get("BLOCKYARD_CACHE"):
        return Path(named).expanduser()
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
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        warnings.warn(
            f"the tokenizer is not cached in {path.parent} ({error}); set BLOCKYARD_CACHE=FOLDER", stacklevel=2
        )
