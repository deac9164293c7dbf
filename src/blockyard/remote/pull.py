"""`blockyard runs pull`: takes copies of runs and sweeps in, as those of a stranger."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from blockyard.atomic_files import TEMPORARY, passing_name, remove_leftovers, sync_folder, write_text
from blockyard.config.untrusted.local_path import check_inside
from blockyard.errors import UserError, fold
from blockyard.remote.address import Remote
from blockyard.remote.copies import SWEEPS, FolderManifest, differing, digests_in, is_sweep, split
from blockyard.remote.soundness import fault_of_run, fault_of_sweep, page_of
from blockyard.remote.transfer import Event, Verb, manifests, size_of, sweeps_within
from blockyard.report.home.stale import PAGE
from blockyard.runs.folder import RUN
from blockyard.runs.lock import RunLock
from blockyard.runs.members import MemberError, is_run, write_checked
from blockyard.runs.query import Condition, select
from blockyard.runs.record import SOURCES, read_record
from blockyard.runs.start import keep_replaced
from blockyard.runs.status import read_status
from blockyard.sweep.plan.cell_names import cell_names
from blockyard.sweep.plan.sweep_plan import FILE as PLAN


def pull(
    remote: Remote, outputs: Path, conditions: Sequence[Condition], *, allow: Sequence[str] = (), replace: bool
) -> Iterator[Event]:
    """Copy the runs that meet every condition, and the sweeps that consist of them; yield an event for each.

    A folder is downloaded into one beside the runs, compared with its manifest, checked, and moved in place as a whole.
    One that is here already is left as it is, unless it differs and `replace` is set.

    allow: packages whose components the configs may name; they are not imported here

    Raises UserError, before the first event, where the storage cannot be read or has no such run, and TransferError.
    """
    listing = remote.listing()
    copies = manifests(remote, listing)
    sound: dict[str, FolderManifest] = {}
    faults: dict[str, str] = {}
    for name, manifest in copies.items():
        fault = manifest if isinstance(manifest, str) else _size_fault(manifest, listing)
        if isinstance(manifest, FolderManifest) and fault is None:
            sound[name] = manifest
        else:
            faults[name] = str(fault)
    unfinished = sorted({place[0] for place in map(split, listing) if place is not None} - copies.keys())
    if not copies and not unfinished:
        raise UserError(f"{remote.address} holds no runs; `blockyard runs push` puts them there")
    with _stage(outputs) as stage:
        chosen = list(sound)
        if conditions:
            chosen = _chosen(remote, sound, conditions, stage)
        _check_space(outputs, [sound[name] for name in chosen if not os.path.lexists(outputs / name)])
        for name in unfinished:
            yield Event(name, Verb.SKIPPED, "its push has not ended")
        for name, fault in faults.items():
            yield Event(name, Verb.REFUSED, fault)
        for name in sorted(chosen, key=lambda name: (is_sweep(name), name)):
            try:
                yield from _pull_one(remote, outputs, sound[name], stage, allow, replace=replace)
            except UserError as error:
                yield Event(name, Verb.REFUSED, str(error).replace(f"{stage}/", ""))


@contextlib.contextmanager
def _stage(outputs: Path) -> Iterator[Path]:
    """Yield a folder in which copies are checked; it and the ones that killed pulls have left are removed."""
    remove_leftovers(outputs)
    stage = outputs / passing_name(TEMPORARY, "pull")
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {outputs}: {error.strerror or error}") from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _size_fault(manifest: FolderManifest, listing: Mapping[str, int]) -> str | None:
    """Return the reason why a copy is not whole, by the sizes of its files; None for one that may be."""
    for member, (_, size) in manifest.members.items():
        there = listing.get(f"{manifest.name}/{member}")
        if there is None:
            return f"{member} is missing there, or is a link"
        if there != size:
            return f"{member} has {there:,} bytes there, and its manifest says {size:,}"
    return None


def _chosen(
    remote: Remote, sound: Mapping[str, FolderManifest], conditions: Sequence[Condition], stage: Path
) -> list[str]:
    """Return the copies that the conditions select. Raises UserError where they select no run."""
    needed: dict[str, FolderManifest] = {}
    for name, manifest in sound.items():
        members = (PLAN,) if is_sweep(name) else SOURCES
        for member in members:
            if member in manifest.members:
                needed[f"{name}/{member}"] = manifest
    faults = _fetch(remote, needed, stage)
    readable = [name for name in sound if is_run(name) and name not in faults]
    every = cell_names([read_record(stage / name) for name in readable], stage)
    selected = select(every, conditions)
    if not selected:
        raise UserError(f"{remote.address}: none of its {len(every)} runs meets the conditions")
    sweeps = [f"{SWEEPS}/{sweep}" for sweep in sweeps_within(selected, every)]
    return [record.run for record in selected] + [name for name in sweeps if name in sound]


def _fetch(remote: Remote, files: Mapping[str, FolderManifest], stage: Path) -> dict[str, str]:
    """Write files of copies that are not there yet into the stage, and return the reasons against copies by name.

    files: the manifest of each file, by its path at the storage

    Raises TransferError, OSError.
    """
    sizes = {}
    for path, manifest in files.items():
        if not (stage / path).exists():
            sizes[path] = manifest.members[_member(path, manifest)][1]
    faults = {}
    for path, parts in remote.read(sizes):
        manifest = files[path]
        try:
            write_checked(stage / manifest.name, _member(path, manifest), parts, manifest.members)
        except MemberError as error:
            faults[manifest.name] = str(error)
    return faults


def _member(path: str, manifest: FolderManifest) -> str:
    return path.removeprefix(f"{manifest.name}/")


def _check_space(outputs: Path, missing: Sequence[FolderManifest]) -> None:
    """Raise UserError where the disk has no room for the copies."""
    needed = sum(manifest.size for manifest in missing)
    free = shutil.disk_usage(outputs).free
    if needed > free:
        raise UserError(
            f"{needed / 1e6:,.1f} MB are to be copied, and {outputs} has {free / 1e6:,.1f} MB free; nothing was copied"
        )


def _pull_one(
    remote: Remote, outputs: Path, manifest: FolderManifest, stage: Path, allow: Sequence[str], *, replace: bool
) -> Iterator[Event]:
    name = manifest.name
    target = outputs / name
    check_inside(target, outputs)
    if os.path.lexists(target):
        here = tuple(member for member in manifest.members if os.path.lexists(target / member))
        changed = differing(manifest.members, digests_in(target, here))
        if not changed:
            yield Event(name, Verb.THERE)
            return
        if not replace:
            yield Event(name, Verb.DIFFERS, f"the one in {outputs} differs in {fold(changed)}")
            return
    yield Event(name, Verb.BEGINS, str(size_of(manifest.members)))
    faults = _fetch(remote, {f"{name}/{member}": manifest for member in manifest.members}, stage)
    folder = stage / name
    if faults:
        fault: str | None = faults[name]
    elif is_sweep(name):
        fault = fault_of_sweep(folder)
    else:
        fault = fault_of_run(folder, allow)
    if fault is not None:
        yield Event(name, Verb.REFUSED, fault.replace(f"{stage}/", ""))
        return
    if is_sweep(name) and (page := page_of(folder, target)) is not None:
        write_text(folder / PAGE, page)
    yield _move_in(folder, outputs, name, replace=replace)


def _move_in(folder: Path, outputs: Path, name: str, *, replace: bool) -> Event:
    """Move a checked folder to its place. Raises UserError where a process runs that run."""
    target = outputs / name
    _flush(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    note = ""
    lock = RunLock(target)
    try:
        if not is_sweep(name):
            lock.acquire()
        if os.path.lexists(target):
            if not replace:
                return Event(name, Verb.DIFFERS, f"another process has written {target} meanwhile")
            # A hidden folder beside the plans of other sweeps would be taken for one.
            kept = keep_replaced(target, outputs if is_sweep(name) else None)
            note = f"the former one is kept as {kept}"
        os.rename(folder, target)
        sync_folder(target.parent)
    finally:
        lock.release()
    return Event(name, Verb.COPIED, note)


def _flush(folder: Path) -> None:
    """Flush every file of a folder to disk, and set the time of run.json, by which `last` is found, to the run's."""
    started = read_status(folder).started
    record = folder / RUN
    if started is not None and record.exists():
        with contextlib.suppress(ValueError, OverflowError):
            seconds = min(datetime.fromisoformat(started).timestamp(), time.time())
            os.utime(record, (seconds, seconds))
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
