"""Computes the baselines of a run's task after its end, or in the dry run of a sweep, once for each data set.

A finished run is done, with its figures on disk, before the first baseline is computed: one that fails, or that takes
the process with it, loses nothing but itself. The results lie in `outputs/.baselines/HASH.json`, by data,
tokenizer and objective, where the next run of the same task finds it, and in summary.json of each run:

    baselines          name -> metric -> value
    baseline_notes     name -> the bound that it reached, such as "fitted on 5,000 of 60,000 samples"
    baselines_missing  name -> why it has no value

The cost is bounded by the samples that baselines read, see `objective._baselines`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from blockyard.atomic_files import read_json, remove_temporary, write_json
from blockyard.config.tree import Node
from blockyard.contracts import Baselines, Splits
from blockyard.engine.faults.interrupts import Interrupted, Interrupts
from blockyard.errors import UserError
from blockyard.runs.folder import PATHS, RunFolder
from blockyard.runs.lock import InUseError, RunLock
from blockyard.runs.status import reason_of

if TYPE_CHECKING:
    from blockyard.config.build import Components
    from blockyard.engine.job import Job

log = logging.getLogger("blockyard")

FOLDER = ".baselines"  # under the folder of runs
LOST = "the process ended while it was computed"
MOST_ATTEMPTS = 2  # of a baseline whose process ended: it may have been killed from outside, or for want of memory
_VERSION = 2  # of what the baselines compute
_LEFT = 3600.0  # seconds after which a temporary file has no writer any more
_WAIT = 300.0  # seconds for another run that computes the same ones
_SIZES = {"batch_size", "eval_batch_size", "drop_last"}  # options of data that change no sample


class BaselineEntry(TypedDict, total=False):
    """A baseline in the file of its task: its values, or why it has none. attempts: of a process that ended."""

    values: dict[str, float]
    seconds: float
    note: str
    missing: str
    attempts: int


def announced(job: Job) -> dict[str, Any]:
    """Return the entries of a summary about baselines until they are recorded: each of them was lost.

    It is in the file before the run is done: a process that is killed after that leaves no run without a reason.
    """
    try:
        baselines = job.components.objective.baselines(job.splits.test, job.splits.train)
    except Exception:  # which `record_baselines` reports, when the run is done
        return {}
    return _of_summary({name: {"missing": LOST} for name in baselines})


def record_baselines(folder: RunFolder, job: Job, interrupts: Interrupts, summary: dict[str, Any]) -> dict[str, Any]:
    """Compute the baselines of a finished run, or read them, and write its summary with them; return that summary.

    Nothing that happens here changes how the run ended.
    """
    entries: dict[str, BaselineEntry] = {}
    with contextlib.suppress(Interrupted), interrupts.open_again():
        entries = compute_baselines(folder.config, job.components, job.splits, folder.path.parent.parent)
    if entries:
        summary = summary | _of_summary(entries)
        try:
            folder.write_summary(summary)
        except OSError as error:
            log.warning("the baselines of %s were not written: %s", folder.path, error)
    return summary


def compute_baselines(config: Node, components: Components, splits: Splits, outputs: Path) -> dict[str, BaselineEntry]:
    """Return the baselines of a config's task from their file below `outputs`; missing ones are computed."""
    entries: dict[str, BaselineEntry] = {}
    try:
        baselines = components.objective.baselines(splits.test, splits.train)
        entries = {name: {"missing": LOST} for name in baselines}
        if entries:
            key = _key(config, components, splits)
            entries = _known_or_computed(baselines, outputs / FOLDER / f"{key}.json")
    except Interrupted as stop:
        entries = {name: {"missing": str(stop)} for name in entries}
    except Exception as error:  # the run is done, whatever a component's baselines raise
        log.warning("the baselines of runs in %s were not computed: %s", outputs, reason_of(error))
        entries = {name: {"missing": reason_of(error)} for name in entries}
    for name, entry in entries.items():
        if "missing" in entry:
            log.warning("baseline %s has no value: %s", name, entry["missing"])
    return entries


def _of_summary(entries: dict[str, BaselineEntry]) -> dict[str, Any]:
    """Return the entries of a summary about baselines, without empty ones."""
    summary: dict[str, Any] = {}
    for name, entry in entries.items():
        for key, value in (
            ("baselines", entry.get("values")),
            ("baseline_notes", entry.get("note")),
            ("baselines_missing", entry.get("missing")),
        ):
            if value:
                summary.setdefault(key, {})[name] = value
    return summary


def _known_or_computed(baselines: Baselines, path: Path) -> dict[str, BaselineEntry]:
    """Return the entry of each baseline: from the file, or computed and added to it, one after the other.

    An entry of the file: values, seconds and note, or missing; `attempts` where it is LOST.
    """
    with _alone(path) as alone:
        entries = {name: entry for name, entry in _read(path).items() if name in baselines}
        for name in baselines:
            attempts = _attempts(entries.get(name, {}))
            # Beside another run, a lost one may be the one that the other computes at this moment.
            if name in entries and (not alone or not 0 < attempts < MOST_ATTEMPTS):
                continue
            # Where the process does not survive it, a later run tries once more, then goes on with the others.
            _write(path, entries | {name: {"missing": LOST, "attempts": attempts + 1}})
            entries[name] = _computed(baselines, name)
            _write(path, entries)
    return {name: entries[name] for name in baselines}


def _attempts(entry: BaselineEntry) -> int:
    """Return how many processes have ended while they computed a baseline; an older file has no number for its one."""
    attempts = entry.get("attempts", 1)
    if entry.get("missing") != LOST:
        return 0
    # The file may be damaged, and a baseline that kills the process must not be tried for ever.
    if isinstance(attempts, int):
        return attempts
    return MOST_ATTEMPTS


def _computed(baselines: Baselines, name: str) -> BaselineEntry:
    began = time.monotonic()
    try:
        values = {metric: float(value) for metric, value in baselines[name].items()}
    except Exception as error:  # one that fails, also for lack of memory, does not lose the others
        return {"missing": reason_of(error)}
    entry: BaselineEntry = {"values": values, "seconds": round(time.monotonic() - began, 3)}
    note = baselines.note(name)
    if note:
        entry["note"] = note
    return entry


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Wait until no other run computes the same baselines, and keep others waiting. Yield whether that succeeded."""
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError:
        yield False
        return
    lock = RunLock(path)
    deadline = time.monotonic() + _WAIT
    alone = False
    while True:
        try:
            lock.acquire()
            alone = True
            remove_temporary(path.parent, untouched=_LEFT)  # what killed runs left; others may write beside it
            break
        except InUseError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        except UserError:  # a file system without locks
            break
    try:
        yield alone
    finally:
        lock.release()


def _read(path: Path) -> dict[str, BaselineEntry]:
    try:
        entries = read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {name: entries[name] for name in entries if isinstance(entries[name], dict)}


def _write(path: Path, entries: dict[str, BaselineEntry]) -> None:
    try:
        write_json(path, entries, checked=True)
    except OSError as error:  # computed again by the next run
        log.debug("%s: %s", path, error)


def _key(config: Node, components: Components, splits: Splits) -> str:
    """Return a hash of everything that the baselines depend on: data, tokenizers and objective."""
    data = components.data
    left_out = {*_SIZES, *PATHS, *getattr(data, "incidental", ())}
    facts = {
        "version": _VERSION,
        "fingerprint": data.fingerprint(),
        "data": {name: value for name, value in (config.get("data") or {}).items() if name not in left_out},
        "samples": [len(splits.train), len(splits.test)],
        **{name: config.get(name) for name in ("tokenizer", "source_tokenizer", "objective")},
        "states": [components.tokenizer.state(), components.source_tokenizer.state()],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
