"""`blockyard runs push`: copies runs and sweeps to a storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from blockyard.config.untrusted.targets import allow_of
from blockyard.errors import UserError, fold
from blockyard.remote.address import Remote
from blockyard.remote.copies import SWEEPS, FolderManifest, LocalFiles, differing, digests_in, is_sweep
from blockyard.remote.soundness import ENDED, fault_of_run, fault_of_sweep
from blockyard.remote.transfer import Event, Verb, manifests, size_of
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.members import MANIFEST, chunks_of


def push(
    remote: Remote, outputs: Path, runs: Sequence[str], sweeps: Sequence[str], *, replace: bool
) -> Iterator[Event]:
    """Copy runs, `NAME-HASH/sSEED`, and the folders of sweeps by name; yield an event for each.

    The manifest of a folder is written after its last file, so that a push that was killed is no copy. What is there
    already, with the same content, is not sent again; what differs is left as it is, unless `replace`.

    Raises UserError, before the first event, where the storage cannot be read, and TransferError after it.
    """
    there = manifests(remote, remote.listing())
    for name in [*runs, *(f"{SWEEPS}/{sweep}" for sweep in sweeps)]:
        try:
            yield from _push_one(remote, outputs, name, there.get(name), replace=replace)
        except UserError as error:  # such as a link in the folder
            yield Event(name, Verb.REFUSED, str(error))


def _push_one(
    remote: Remote, outputs: Path, name: str, there: FolderManifest | str | None, *, replace: bool
) -> Iterator[Event]:
    folder = outputs / name
    if is_sweep(name):
        fault = fault_of_sweep(folder)
    else:
        run = RunFolder.open(folder)
        if run.status.state not in ENDED or held(folder):
            yield Event(name, Verb.SKIPPED, f"it is {run.status}; runs are copied once they have ended")
            return
        fault = fault_of_run(folder, allow_of(run.config))
    if fault is not None:
        yield Event(name, Verb.REFUSED, fault)
        return
    files = LocalFiles.of(folder, name)
    manifest = FolderManifest(name, digests_in(folder, files.names))
    changed = set(files.names)
    surplus: list[str] = []
    if isinstance(there, FolderManifest):
        changed = set(differing(there.members, manifest.members))
        surplus = sorted(there.members.keys() - manifest.members.keys())
        if not changed:
            yield Event(name, Verb.THERE)
            return
    if there is not None and not replace:
        reason = there if isinstance(there, str) else f"in {fold(sorted(changed))}"
        yield Event(name, Verb.DIFFERS, f"the copy at {remote.address} differs: {reason}")
        return
    sent = {member: manifest.members[member] for member in files.names if member in changed}
    yield Event(name, Verb.BEGINS, str(size_of(sent)), files.left)
    if there is not None:
        # From here on, until the new manifest is written, there is no copy.
        remote.remove([f"{name}/{MANIFEST}"])
    for member in sent:
        remote.write(f"{name}/{member}", chunks_of(folder / member))
    remote.remove(f"{name}/{member}" for member in surplus)
    remote.write(f"{name}/{MANIFEST}", [manifest.as_json()])
    yield Event(name, Verb.COPIED)
