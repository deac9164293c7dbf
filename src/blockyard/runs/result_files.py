"""The names of files with results of a run; `blockyard eval` writes them into the run's folder.

predictions-test                 of the weights and the data that the run's summary is about
predictions-test-last            of other weights; -best@ema, of an average of them
written-test-data-1f3a5c7e-beam4   of other data, by the beginning of their fingerprint; then of options

No file of other weights or data thus replaces one that the summary, or the page of `compare`, is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockyard.runs.load import Loaded

_DIGITS = 8  # of a fingerprint


def result_stem(loaded: Loaded, kind: str, part: str, *options: str) -> str:
    """Return the name of a file without its suffix. part: "test", "val" or "train"; options: empty ones are left out"""
    parts = [kind, part]
    if not _has_own_weights(loaded):
        name, at, average = loaded.weights.partition("@")
        parts.append(f"{Path(name).stem}{at}{average}")  # "last", "best@ema"
    if not _has_own_data(loaded):
        parts.append(f"data-{loaded.data.fingerprint()[:_DIGITS]}")
    return "-".join([*parts, *filter(None, options)])


def is_own(loaded: Loaded) -> bool:
    """Return whether a run in memory has the weights and the data of its summary; True without a summary."""
    return _has_own_weights(loaded) and _has_own_data(loaded)


def _has_own_weights(loaded: Loaded) -> bool:
    return bool(loaded.folder.summary().get("weights", loaded.weights) == loaded.weights)


def _has_own_data(loaded: Loaded) -> bool:
    for record in (loaded.folder.summary(), loaded.folder.facts()):
        if fingerprint := record.get("data", {}).get("fingerprint"):
            return bool(fingerprint == loaded.data.fingerprint())
    return True
