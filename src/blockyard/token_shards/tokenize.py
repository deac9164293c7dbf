"""From text files to a folder of shards: scanned, planned, encoded in parallel, with a manifest at the end.

manifest.json      counts and hashes of shards and texts, the tokenizer; written last
tokenizer.json     the fitted state of the tokenizer
train-00000.bin    token ids, little-endian uint16, or uint32 for more than 65,536 of them
unfinished.json    the plan, as long as shards are missing; a second start compares it and continues
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import cast

import numpy as np

from blockyard.atomic_files import TEMPORARY, read_json, remove_temporary, replacing, write_json
from blockyard.contracts import TextTokenizer
from blockyard.data.files.token_shards import (
    FORMAT,
    MANIFEST,
    PLAN,
    TOKENIZER,
    Manifest,
    ShardRecord,
    SplitRecord,
    TokenizerRecord,
    TokenSource,
    read_manifest,
)
from blockyard.data.tokens import check_tokenizer, describe, state_hash
from blockyard.errors import UserError, fold
from blockyard.token_shards.plan import SPLITS, Cutting, ShardPlan, plan_record, plan_shards
from blockyard.token_shards.text_files import scan

Progress = Callable[[int, int, int, int], None]  # shards that are written, of how many; bytes of text, of how many
_UINT16 = 2**16
_OWN = re.compile(  # names of the files that tokenize writes
    rf"{'|'.join(map(re.escape, (MANIFEST, PLAN, TOKENIZER)))}|({'|'.join(SPLITS)})-[0-9]{{5,}}\.bin(\.json)?"
    rf"|{re.escape(TEMPORARY)}.*",
    re.S,
)
# A shard is written in a worker process: the ids, and beside them a record of what was written.
_tokenizer: TextTokenizer | None = None  # of a worker process


def tokenize(
    files: Sequence[Path],
    folder: Path,
    tokenizer: TextTokenizer,
    cutting: Cutting,
    *,
    vocabulary: Callable[[], int],
    workers: int,
    like: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Manifest:
    """Write the missing shards of `folder`, then the manifest; return the manifest.

    vocabulary: returns the number of token ids, once the tokenizer is fitted
    like: a folder of shards, with the tokenizer to take as it is; None fits it on the training texts
    Raises UserError for files that are no text, and a folder that holds something else.
    """
    with _pool(workers, None) as pool:
        sources = list(pool.map(scan, files))
    shards = plan_shards(sources, cutting)
    if like is not None:
        manifest_of_like = read_manifest(like)
        if not manifest_of_like:
            raise UserError(f"like={like} is not a folder of `blockyard tokenize`: it has no {MANIFEST}")
        check_tokenizer(tokenizer, [TokenSource(like, {}, manifest_of_like)])
    elif not tokenizer.state():
        tokenizer.fit(span.read() for shard in shards if shard.split == "train" for span in shard.spans)
    named: TokenizerRecord = {**describe(tokenizer), "sha256": state_hash(tokenizer)}
    plan = plan_record(sources, cutting, named, shards)
    done = _started(folder, plan)
    if done is not None:
        return done
    write_json(folder / TOKENIZER, tokenizer.state())
    dtype = "uint16" if vocabulary() <= _UINT16 else "uint32"
    records = _write_all(folder, shards, tokenizer, dtype, workers, progress)
    splits = {}
    for split in SPLITS:
        of_split = [record for shard, record in records if shard.split == split]
        tokens = sum(record["tokens"] for record in of_split)
        size = sum(record["bytes"] for record in of_split)
        splits[split] = SplitRecord(tokens=tokens, bytes=size, shards=of_split)
    manifest: Manifest = {
        "format": FORMAT,
        "version": 1,
        "dtype": dtype,
        "vocabulary": vocabulary(),
        "plan": plan,
        "tokenizer": named,
        "splits": splits,
    }
    # Last of all: a folder with a manifest is whole.
    write_json(folder / MANIFEST, manifest)
    for shard in shards:
        record_path(folder, shard).unlink(missing_ok=True)
    (folder / PLAN).unlink()
    return manifest


def clear(folder: Path) -> None:
    """Remove the files that an earlier tokenize wrote. Raises UserError for a folder that holds anything else."""
    if not (folder / MANIFEST).is_file() and not (folder / PLAN).is_file():
        raise UserError(f"force=true removes shards of `blockyard tokenize`, and {folder} has no {MANIFEST} of it")
    files = sorted(folder.iterdir())
    others = []
    for file in files:
        is_file = file.is_symlink() or file.is_file()
        if not (_OWN.fullmatch(file.name) and is_file):
            others.append(file.name)
    if (folder / MANIFEST).is_file() and not _is_own_manifest(folder):
        others.insert(0, MANIFEST)
    if others:
        raise UserError(
            f"force=true removes shards of `blockyard tokenize`, and {folder} holds {fold(others)}, which it did not "
            "write; nothing was removed"
        )
    for file in files:
        file.unlink(missing_ok=True)


def _is_own_manifest(folder: Path) -> bool:
    """Return whether `blockyard tokenize` wrote the manifest, or it is damaged beyond reading."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return True
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _started(folder: Path, plan: dict[str, object]) -> Manifest | None:
    """Return the manifest that this plan has written; save the plan and return None where shards are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporary(folder)
    manifest = Manifest() if (folder / PLAN).is_file() else read_manifest(folder)
    if manifest or (folder / PLAN).is_file():
        try:
            other = manifest.get("plan") if manifest else read_json(folder / PLAN)
        except (OSError, ValueError):
            other = None
        if other != plan:
            different = [key for key in plan if not isinstance(other, dict) or other.get(key) != plan[key]]
            raise UserError(
                f"{folder} holds shards of other {' and '.join(different)}; use another out=FOLDER, or force=true, "
                "which removes them"
            )
        return manifest or None
    if any(folder.glob("*")):
        raise UserError(f"{folder} is not empty and holds no shards of `blockyard tokenize`; use another out=FOLDER")
    write_json(folder / PLAN, plan)
    return None


def _write_all(
    folder: Path, shards: Sequence[ShardPlan], tokenizer: TextTokenizer, dtype: str, workers: int, progress: Progress
) -> list[tuple[ShardPlan, ShardRecord]]:
    """Return the records of all shards, in order. Missing shards are written in parallel."""
    records: dict[str, ShardRecord] = {}
    missing: list[ShardPlan] = []
    for shard in shards:
        record = finished(folder, shard, dtype)
        if record is None:
            missing.append(shard)
        else:
            records[shard.file] = record
    total = sum(shard.size for shard in shards)
    written = total - sum(shard.size for shard in missing)
    progress(len(records), len(shards), written, total)
    with _pool(workers, tokenizer) as pool:
        futures: dict[Future[ShardRecord], ShardPlan] = {
            pool.submit(write_shard, folder, shard, dtype): shard for shard in missing
        }
        try:
            for future in as_completed(futures):
                records[futures[future].file] = future.result()
                written += futures[future].size
                progress(len(records), len(shards), written, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [(shard, records[shard.file]) for shard in shards]


def _pool(workers: int, tokenizer: TextTokenizer | None) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker, initargs=(tokenizer, os.getpid()))


def start_worker(tokenizer: TextTokenizer | None, parent: int) -> None:
    """Prepare a worker process. It ends when its parent has died, even before this call.

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
    """Return the path of a shard's record, until all shards are written."""
    return folder / f"{shard.file}.json"


def finished(folder: Path, shard: ShardPlan, dtype: str) -> ShardRecord | None:
    """Return the record of a shard that was written before, or None."""
    try:
        record = read_json(record_path(folder, shard))
        size = (folder / shard.file).stat().st_size
    except (OSError, ValueError):
        return None
    if size == record["tokens"] * np.dtype(dtype).itemsize:
        return cast(ShardRecord, record)
    return None


def write_shard(folder: Path, shard: ShardPlan, dtype: str) -> ShardRecord:
    """Write the ids of a shard's texts. Return file, tokens, bytes of text, SHA-256 and the largest id.

    Raises UserError for an id that the type does not hold.
    """
    assert _tokenizer is not None, "start_worker was called with one"
    digest = hashlib.sha256()
    tokens = 0
    largest = -1
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
