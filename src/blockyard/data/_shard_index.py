"""The cached index of a tar shard, so that its headers are read once and not at the start of every run.

An entry is of one shard, read with one ending of labels. It holds the size of the shard and the time of its last
change, and is computed again where they differ. A shard that changed a moment ago is not cached: it could change once
more within the resolution of the file system's clock.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, remove_temporary, write_json
from blockyard.data._cache_dir import IDLE, cache_dir
from blockyard.data._split import sha256
from blockyard.data._tar_shard import Member, Sample, read_shard

log = logging.getLogger("blockyard")

FORMAT = 1
_SETTLED = 2.0  # seconds since the last change of a shard


def samples_of(shard: Path, label: str) -> list[Sample]:
    """Returns the samples of a shard, from the cache where it is of this very file. Raises UserError as `read_shard`.

    label: the ending of the members with the class
    """
    path = cache_dir() / "shards" / f"{sha256([str(shard.absolute()), label])[:32]}.json"
    facts = _facts(shard, label)
    cached = _cached(path, facts)
    if cached is not None:
        return cached
    samples = list(read_shard(shard, label))
    if facts == _facts(shard, label) and time.time() - facts["mtime_ns"] / 1e9 > _SETTLED:
        _save(path, facts, samples)
    return samples


def _facts(shard: Path, label: str) -> dict[str, Any]:
    stat = shard.stat()
    return {
        "format": FORMAT,
        "shard": str(shard.absolute()),
        "label": label,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
    }


def _cached(path: Path, facts: dict[str, Any]) -> list[Sample] | None:
    """The samples of an entry. None where there is none, it is damaged, or of another state of the shard."""
    try:
        entry = read_json(path)
        if {key: entry.get(key) for key in facts} != facts:
            return None
        return [
            Sample(key, {name: Member(start, size) for name, start, size in files}, label)
            for key, label, files in entry["samples"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _save(path: Path, facts: dict[str, Any], samples: list[Sample]) -> None:
    listed = [
        [sample.key, sample.label, [[name, *member] for name, member in sample.files.items()]] for sample in samples
    ]
    try:
        write_json(path, facts | {"samples": listed}, indent=None, checked=True)
        remove_temporary(path.parent, untouched=IDLE)
    except OSError as error:
        log.warning("the index of shards is not cached in %s (%s); set BLOCKYARD_CACHE=FOLDER", path.parent, error)
