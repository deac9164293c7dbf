"""The folder of results that are expensive to compute again: trained tokenizers and indices of shards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

IDLE = 60.0  # seconds after which the temporary file of another process counts as left over


def cache_dir() -> Path:
    """Return BLOCKYARD_CACHE, or the platform's cache folder."""
    folder = os.environ.get("BLOCKYARD_CACHE")
    if folder:
        return Path(os.path.expanduser(folder))
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "blockyard"
