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
    """Every run under `outputs`, the latest started first; none where there is no such folder."""
    root = local_path(outputs, "outputs")
    if not root.is_dir():
        return []
    folders = dict(_folders(root))
    with _open(root) as index:
        stored = _stored(index)
        listed = {run: record for run in folders if (record := _record(run, folders[run], stored.get(run))) is not None}
        _store(index, {}, set(stored) - set(folders))
        listed |= _read_again(index, root, {run: folders[run] for run in folders if run not in listed})
    return sorted((_now(listed[run], root) for run in folders), key=lambda run: run.started or "", reverse=True)


def _read_again(index: sqlite3.Connection, root: Path, missing: dict[str, str]) -> dict[str, RunRecord]:
    """The records of runs from their folders. They are stored in parts, so that a stopped listing goes on from there.

    missing: the signature of each run
    """
    fresh: dict[str, RunRecord] = {}
    names, live, shown = list(missing), sys.stderr.isatty(), time.monotonic()
    for start in range(0, len(names), _PART):
        part = {run: read_record(root / run) for run in names[start : start + _PART]}
        _store(index, {run: (missing[run], record) for run, record in part.items()}, ())
        fresh |= part
        if time.monotonic() - shown > (_LIVE if live else _PIPED):
            shown = time.monotonic()
            text = f"reading runs: {len(fresh):,} of {len(names):,}"
            sys.stderr.write(f"\r{text}" if live else f"{text}\n")
            sys.stderr.flush()
    if live:
        sys.stderr.write(f"\r{' ' * 60}\r")
    return fresh


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
    """The index of a folder; one in memory where the file can be neither used nor made again."""
    file = root / FILE
    connection = None
    if (reason := database_reason(file, only_own=True)) is not None:
        log.warning("%s is not used, since %s; all runs are read. Remove it to have an index", file, reason)
    for attempt in () if reason else ("open", "remake"):
        try:
            if attempt == "remake":
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
    """The signature, record and config of each row, by run."""
    try:
        return {run: (*row,) for run, *row in index.execute("SELECT run, signature, record, config FROM runs")}
    except sqlite3.Error as error:  # damaged further in
        log.debug("the index of runs cannot be read: %s", error)
        return {}


def _store(index: sqlite3.Connection, fresh: dict[str, tuple[str, RunRecord]], gone: Collection[Any]) -> None:
    entries = [
        (run, signature, json.dumps(_stored_fields(record)), record.config_json)
        for run, (signature, record) in fresh.items()
    ]
    if not entries and not gone:
        return
    try:
        with index:
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", entries)
            index.executemany("DELETE FROM runs WHERE run IS ?", [(run,) for run in gone])
    except sqlite3.Error as error:  # a full disk, a folder of somebody else's: the listing is right without it
        log.debug("the index of runs cannot be written: %s", error)


def _stored_fields(record: RunRecord) -> dict[str, Any]:
    """Return the fields of a row beside the config, that most listings never parse."""
    return {key: value for key, value in asdict(record).items() if key not in (*_OF_SWEEPS, "config_json")}


def _record(run: str, signature: str, row: tuple[Any, Any, Any] | None) -> RunRecord | None:
    """A row's record; None where it is missing, out of date or not a record, so that the folder is read."""
    if row is None or row[0] != signature:
        return None
    try:
        value = {key: each for key, each in json.loads(row[1]).items() if key not in _OF_SWEEPS}
        record = RunRecord(**value | {"tags": tuple(value["tags"]), "config_json": row[2]})
        if record.run == run and _is_whole(record):
            return record
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.debug("a row of the index of runs is damaged: %s", error)
    return None


def _is_whole(record: RunRecord) -> bool:
    """Return whether every field of a record has the type that `read_record` gives it."""
    texts = (record.reason, record.started, record.damage)
    return (
        all(text is None or isinstance(text, str) for text in texts)
        and record.state in STATES
        and isinstance(record.note, str)
        and isinstance(record.archived, bool)
        and all(isinstance(tag, str) for tag in record.tags)
        and all(number is None or _is_number(number) for number in (record.seconds, record.steps, record.parameters))
        and all(map(_is_number, record.metrics.values()))
        and all(isinstance(value, str) for value in record.directions.values())
        and all(value is None or isinstance(value, str) for value in record.choices.values())
        and isinstance(record.config_json, str)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
