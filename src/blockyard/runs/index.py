"""An index of the runs under `outputs`, so that listing ten thousand runs reads only those that changed.

It is a SQLite file, `outputs/.runs.sqlite3`, with a row for each run: when its files last changed, and its record. The
run folders stay the truth. A row whose files have another time or size is read again, and a file that is missing,
damaged, of another version or not writable costs time only: all folders are read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blockyard.config.local_path import local_path
from blockyard.runs.record import SOURCES, RunRecord, read_record
from blockyard.runs.status import read_status

log = logging.getLogger("blockyard")

FILE = ".runs.sqlite3"
_VERSION = 2
_WAIT = 5.0  # seconds for another process that writes the index


def records(outputs: str | os.PathLike[str] = "outputs") -> list[RunRecord]:
    """Every run under `outputs`, the latest started first; none where there is no such folder."""
    root = local_path(outputs, "outputs")
    if not root.is_dir():
        return []
    folders = dict(_folders(root))
    with _open(root) as index:
        stored = _stored(index)
        stale = {run for run, signature in folders.items() if stored.get(run, ("",))[0] != signature}
        fresh = {run: read_record(root / run) for run in stale}
        _store(index, {run: (folders[run], record) for run, record in fresh.items()}, set(stored) - set(folders))
    listed = (fresh.get(run) or _record(stored[run][1]) or read_record(root / run) for run in folders)
    return sorted((_now(each, root) for each in listed), key=lambda each: each.started or "", reverse=True)


def _now(record: RunRecord, root: Path) -> RunRecord:
    """A run that was running is asked again: its process may have ended without a word."""
    if record.state != "running":
        return record
    status = read_status(root / record.run)
    return replace(record, state=status.state, reason=status.reason, steps=status.step)


def _folders(root: Path) -> Iterator[tuple[str, str]]:
    """Each run folder, `NAME-HASH/sSEED`, with times and sizes of its files."""
    for arm in _subfolders(root):
        for seed in _subfolders(Path(arm.path)):
            if seed.name[:1] == "s" and seed.name[1:].isdigit():
                signature = _signature(seed.path)
                if not signature.startswith("-"):  # without a config it is no run
                    yield f"{arm.name}/{seed.name}", signature


def _subfolders(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []


def _signature(folder: str) -> str:
    parts = []
    for name in SOURCES:
        try:
            status = os.stat(f"{folder}/{name}")
            parts.append(f"{status.st_mtime_ns}.{status.st_size}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


# -- the SQLite file --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open(root: Path) -> Iterator[sqlite3.Connection]:
    """The index of a folder; one in memory where the file can be neither read nor made again."""
    connection = None
    for attempt in ("open", "remake"):
        try:
            if attempt == "remake":
                (root / FILE).unlink(missing_ok=True)
            connection = _prepared(sqlite3.connect(root / FILE, timeout=_WAIT))
            break
        except (sqlite3.Error, OSError) as error:
            log.debug("%s: %s", root / FILE, error)
    connection = connection or _prepared(sqlite3.connect(":memory:"))
    try:
        yield connection
    finally:
        connection.close()


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, _VERSION):
            raise sqlite3.DatabaseError("another version")
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, signature TEXT, record TEXT)")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("SELECT run, signature, record FROM runs LIMIT 1").fetchall()
        return connection
    except BaseException:
        connection.close()
        raise


def _stored(index: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    try:
        return {str(run): (str(sign), str(text)) for run, sign, text in index.execute("SELECT * FROM runs")}
    except sqlite3.Error as error:  # damaged further in
        log.debug("the index of runs cannot be read: %s", error)
        return {}


def _store(index: sqlite3.Connection, fresh: dict[str, tuple[str, RunRecord]], gone: set[str]) -> None:
    entries = [(run, signature, json.dumps(_stored_fields(record))) for run, (signature, record) in fresh.items()]
    if not entries and not gone:
        return
    try:
        with index:
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", entries)
            index.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
    except sqlite3.Error as error:  # a full disk, a folder of somebody else's: the listing is right without it
        log.debug("the index of runs cannot be written: %s", error)


def _stored_fields(record: RunRecord) -> dict[str, Any]:
    """What a row holds: everything that the files of the run say."""
    return {key: value for key, value in asdict(record).items() if key not in ("sweep", "arm")}


def _record(text: str) -> RunRecord | None:
    """A row's record; None where it is damaged, so that the folder is read."""
    try:
        value: dict[str, Any] = json.loads(text)
        return RunRecord(**value | {"tags": tuple(value["tags"])})
    except (ValueError, TypeError, KeyError) as error:
        log.debug("a row of the index of runs is damaged: %s", error)
        return None
