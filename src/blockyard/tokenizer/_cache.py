"""Trained tokenizers in the cache folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from blockyard.atomic_files import read_json, remove_temporary, write_text
from blockyard.contracts import Tokenizer
from blockyard.data.files.cache import IDLE, cache_dir
from blockyard.data.files.digest import sha256


def save(path: Path, text: str) -> None:
    """Write a cache file atomically. Warns if the folder cannot be written."""
    try:
        write_text(path, text)
        remove_temporary(path.parent, untouched=IDLE)
    except OSError as error:
        warnings.warn(
            f"the tokenizer is not cached in {path.parent} ({error}); set BLOCKYARD_CACHE=FOLDER", stacklevel=2
        )


def fit_once(tokenizer: Tokenizer, kind: str, contents: Iterable[Tensor | str], learn: Callable[[], None]) -> None:
    """Load the state of a tokenizer from the cache; if it is missing or damaged, learn it and cache it.

    contents: everything that the state depends on; its hash names the file in the folder `kind`
    """
    path = cache_dir() / kind / f"{sha256(contents)[:32]}.json"
    try:
        tokenizer.load_state(read_json(path))
    except (OSError, ValueError):
        tokenizer.load_state({})
    if not tokenizer.state():
        learn()
        save(path, json.dumps(tokenizer.state()))
