"""The events of a push and of a pull, and the manifests that both read first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from blockyard.errors import UserError
from blockyard.remote.address import Remote
from blockyard.remote.copies import FolderManifest, split
from blockyard.runs.housekeeping import FolderSize
from blockyard.runs.members import MANIFEST, MAX_LIST, Members
from blockyard.runs.record import RunRecord


class Verb(Enum):
    """The fate of a folder. BEGINS comes before its files are copied, and COPIED or REFUSED behind it."""

    BEGINS = "begins"
    COPIED = "copied"
    THERE = "there already"
    SKIPPED = "skipped"
    DIFFERS = "differs"
    REFUSED = "refused"


@dataclass(frozen=True)
class Event:
    """One folder of a transfer. text: a size, or the reason; left: files that stay where they are"""

    name: str
    verb: Verb
    text: str = ""
    left: tuple[str, ...] = ()


def size_of(members: Members) -> FolderSize:
    """Return the number and size of files."""
    return FolderSize(len(members), sum(size for _, size in members.values()))


def check_apart(remote: Remote, outputs: Path) -> None:
    """Raise UserError where the storage is a folder of this machine in, or around, the folder of runs."""
    if remote.local is None:
        return
    there = remote.local.resolve()
    here = outputs.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UserError(f"{remote.address} and the runs in {outputs} lie in one another; name a folder beside it")


def manifests(remote: Remote, listing: Mapping[str, int]) -> dict[str, FolderManifest | str]:
    """Return the manifest of each folder that has one, or the reason why it is not read."""
    sizes = {}
    manifest_of: dict[str, FolderManifest | str] = {}
    for path, size in listing.items():
        place = split(path)
        if place is None or place[1] != MANIFEST:
            continue
        if size > MAX_LIST:
            manifest_of[place[0]] = f"its {MANIFEST} has {size:,} bytes"
        else:
            sizes[path] = size
    for path, parts in remote.read(sizes):
        name = path.removesuffix(f"/{MANIFEST}")
        try:
            manifest_of[name] = FolderManifest.read(name, b"".join(parts))
        except ValueError as error:
            manifest_of[name] = str(error)
    return manifest_of


def sweeps_within(selected: Sequence[RunRecord], every: Sequence[RunRecord]) -> list[str]:
    """Return the sweeps whose runs are all selected, of those that have any."""
    names = {record.run for record in selected}
    left_out = {sweep for record in every if record.run not in names for sweep in record.sweep}
    return sorted({sweep for record in selected for sweep in record.sweep} - left_out)
