"""An index of the runs under `outputs`, so that listing ten thousand runs reads only the changed ones.

It is a SQLite file, `outputs/.runs.sqlite3`, with a row for each run: when its files last changed, and its record. The
run folders stay the truth. A row is read again if its files have another time or size, and a file that is missing,
damaged, of another version or not writable costs time only: all folders are read.

A folder of runs may come from a stranger. An index that is a link or of another user is neither read nor written, one
with any other table than ours is made again, and a row that is not a whole record counts as missing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import database_reason
from blockyard.config.untrusted.local_path import local_path
from blockyard.runs.record import SOURCES, RunRecord, read_record
from blockyard.runs.status import STATES, read_status

log = logging.getLogger("blockyard")

FILE = ".runs.sqlite3"
_VERSION = 3
_WAIT = 5.0  # seconds for another process that writes the index
_TABLE = "CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, signature TEXT, record TEXT, config TEXT)"
_OF_SWEEPS = ("sweep", "arm")  # fields of a record that are not of the run's own files
_PART = 200  # runs that are stored at a time
_LIVE, _PIPED = 0.2, 5.0  # seconds between two lines of progress, on a terminal and elsewhere


def records(outputs: str | os.PathLike[str] = "outputs") -> list[RunRecord]:
    """Return every run under `outputs`, the latest started first; none if there is no such folder."""
    root = local_path(outputs, "outputs")
    if not root.is_dir():
        return []
    folders = dict(_folders(root))
    with _open(root) as index:
        stored = _stored(index)
        listed: dict[str, RunRecord] = {}
        changed: dict[str, str] = {}
        for run, signature in folders.items():
            record = _record(run, signature, stored.get(run))
            if record is None:
                changed[run] = signature
            else:
                listed[run] = record
        _store(index, {}, set(stored) - set(folders))
        listed |= _read_again(index, root, changed)
    current = [_with_present_state(listed[run], root) for run in folders]
    return sorted(current, key=lambda record: record.started or "", reverse=True)


def _read_again(index: sqlite3.Connection, root: Path, missing: dict[str, str]) -> dict[str, RunRecord]:
    """Read the records of runs from their folders. A stopped listing goes on from the parts stored so far.

    missing: the signature of each run
    """
    fresh: dict[str, RunRecord] = {}
    names = list(missing)
    live = sys.stderr.isatty()
    shown = time.monotonic()
    for start in range(0, len(names), _PART):
        part = {run: read_record(root / run) for run in names[start : start + _PART]}
        _store(index, {run: (missing[run], record) for run, record in part.items()}, ())
        fresh |= part
        interval = _LIVE if live else _PIPED
        if time.monotonic() - shown > interval:
            shown = time.monotonic()
            text = f"reading runs: {len(fresh):,} of {len(names):,}"
            sys.stderr.write(f"\r{text}" if live else f"{text}\n")
            sys.stderr.flush()
    if live:
        sys.stderr.write(f"\r{' ' * 60}\r")
    return fresh


def _with_present_state(record: RunRecord, root: Path) -> RunRecord:
    """Return a record with the present state of a run that was running: its process may have ended without a word."""
    if record.state != "running":
        return record
    status = read_status(root / record.run)
    return replace(record, state=status.state, reason=status.reason, steps=status.step)


def _folders(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each run folder, `NAME-HASH/sSEED`, with times and sizes of its files."""
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


@contextlib.contextmanager
def _open(root: Path) -> Iterator[sqlite3.Connection]:
    """Open the index of a folder; one in memory if the file can be neither used nor made again."""
    file = root / FILE
    connection = None
    reason = database_reason(file, only_own=True)
    if reason is not None:
        log.warning("%s is not used, since %s; all runs are read. Remove it to have an index", file, reason)
    attempts = () if reason else ("open", "remake")
    for attempt in attempts:
        try:
            if attempt == "remake":  # a damaged index is lost: it holds nothing that the folders do not
                file.unlink(missing_ok=True)
            connection = _prepared(sqlite3.connect(file, timeout=_WAIT))
            break
        except (sqlite3.Error, OSError) as error:
            log.debug("%s: %s", file, error)
            if "locked" in str(error):
                break  # another process writes it at this moment
    connection = connection or _prepared(sqlite3.connect(":memory:"))
    try:
        yield connection
    finally:
        connection.close()


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, _VERSION):
            raise sqlite3.DatabaseError("another version")
        with connection:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        # A view or a trigger of somebody else would run with the statements below.
        schema = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        if schema != [("table", "runs", _TABLE.replace("IF NOT EXISTS ", ""))]:
            raise sqlite3.DatabaseError("another schema")
        connection.execute("SELECT run, signature, record, config FROM runs LIMIT 1").fetchall()
        return connection
    except BaseException:
        connection.close()
        raise


def _stored(index: sqlite3.Connection) -> dict[str, tuple[Any, Any, Any]]:
    """Return the signature, record and config of each row, by run."""
    try:
        return {run: (*row,) for run, *row in index.execute("SELECT run, signature, record, config FROM runs")}
    except sqlite3.Error as error:  # damaged further in
        log.debug("the index of runs cannot be read: %s", error)
        return {}


def _store(index: sqlite3.Connection, fresh: dict[str, tuple[str, RunRecord]], gone: Collection[Any]) -> None:
    entries = []
    for run, (signature, record) in fresh.items():
        # The config has a column of its own, because most listings never parse it.
        fields = {key: value for key, value in asdict(record).items() if key not in (*_OF_SWEEPS, "config_json")}
        entries.append((run, signature, json.dumps(fields), record.config_json))
    if not entries and not gone:
        return
    try:
        with index:
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", entries)
            index.executemany("DELETE FROM runs WHERE run IS ?", [(run,) for run in gone])
    except sqlite3.Error as error:  # a full disk, a folder of somebody else's: the listing is right without it
        log.debug("the index of runs cannot be written: %s", error)


def _record(run: str, signature: str, row: tuple[Any, Any, Any] | None) -> RunRecord | None:
    """Return a row's record; None if it is missing, out of date or not a record, so that the folder is read."""
    if row is None or row[0] != signature:
        return None
    try:
        fields = {key: value for key, value in json.loads(row[1]).items() if key not in _OF_SWEEPS}
        record = RunRecord(**fields | {"tags": tuple(fields["tags"]), "config_json": row[2]})
        if record.run == run and _is_whole(record):
            return record
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.debug("a row of the index of runs is damaged: %s", error)
    return None


def _is_whole(record: RunRecord) -> bool:
    """Return whether every field of a record has the type that `read_record` gives it."""
    # The file lies in a folder that others may write to, and its rows reach pages and comparisons.
    texts = [record.note, record.config_json, *record.tags, *record.directions.values()]
    optional_texts = [record.reason, record.started, record.damage, *record.choices.values()]
    numbers = [*record.metrics.values()]
    optional_numbers = [record.seconds, record.steps, record.parameters]
    return (
        record.state in STATES
        and isinstance(record.archived, bool)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(text, str | None) for text in optional_texts)
        and not any(isinstance(number, bool) for number in (*numbers, *optional_numbers))
        and all(isinstance(number, int | float) for number in numbers)
        and all(isinstance(number, int | float | None) for number in optional_numbers)
    )
