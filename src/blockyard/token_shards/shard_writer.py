"""Writes one shard, in a worker process: the ids, and beside them a record of what was written."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import cast

import numpy as np

from blockyard.atomic_files import read_json, replacing, write_json
from blockyard.contracts import TextTokenizer
from blockyard.data.files.token_shards import ShardRecord
from blockyard.errors import UserError
from blockyard.token_shards.plan import ShardPlan

_tokenizer: TextTokenizer | None = None  # of a worker process


def start_worker(tokenizer: TextTokenizer | None, parent: int) -> None:
    """Prepare a worker process, which ends when its parent has died, even before this.

    tokenizer: for `write_shard`; parent: its process id
    """
    global _tokenizer
    _tokenizer = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it would start threads of its own
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def record_path(folder: Path, shard: ShardPlan) -> Path:
    """Returns where the record of a shard lies until all are written."""
    return folder / f"{shard.file}.json"


def finished(folder: Path, shard: ShardPlan, dtype: str) -> ShardRecord | None:
    """Returns the record of a shard that was written before, or None."""
    try:
        record = read_json(record_path(folder, shard))
        size = (folder / shard.file).stat().st_size
    except (OSError, ValueError):
        return None
    return cast(ShardRecord, record) if size == record["tokens"] * np.dtype(dtype).itemsize else None


def write_shard(folder: Path, shard: ShardPlan, dtype: str) -> ShardRecord:
    """Writes the ids of a shard's texts; returns file, tokens, bytes of text, SHA-256 and the largest id.

    Raises UserError for an id that the type does not hold.
    """
    assert _tokenizer is not None, "start_worker was called with one"
    digest, tokens, largest = hashlib.sha256(), 0, -1
    with replacing(folder / shard.file) as temporary, temporary.open("wb") as file:
        for span in shard.spans:
            ids = np.asarray(_tokenizer.encode(span.read()), dtype=np.int64)
            if len(ids):
                largest = max(largest, int(ids.max()))
            if largest > np.iinfo(dtype).max or (len(ids) and ids.min() < 0):
                raise UserError(f"{span.path}: token id {largest} is too large for {dtype}")
            content = ids.astype(dtype).tobytes()
            digest.update(content)
            file.write(content)
            tokens += len(ids)
    record: ShardRecord = {
        "file": shard.file,
        "tokens": tokens,
        "bytes": shard.size,
        "sha256": digest.hexdigest(),
        "largest": largest,
    }
    write_json(record_path(folder, shard), record, checked=True)  # last: it says that the shard is whole
    return record
