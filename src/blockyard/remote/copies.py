"""The files of a run or a sweep that are copied, and the manifest beside them.

Everything that a comparison, a page, `eval` and a longer training read is copied. Left out are locks, `report.html`,
which `pull` draws again so that no script of a stranger comes along, `previous.ckpt`, the database of a search, times
for estimates, and what is in no run of blockyard, such as the folders of loggers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blockyard.errors import first_line, quoted
from blockyard.runs.members import (
    FOLDER,
    MANIFEST,
    MAX_MEMBER,
    MAX_MEMBERS,
    UNSOUND,
    Members,
    as_json,
    digest_of,
    folded,
    from_json,
    is_run,
)

FORMAT = 1
SWEEPS = "sweeps"
_NAME = r"\w[\w.@+-]{0,119}"
_RUN_FILES = re.compile(
    rf"(?!{re.escape(MANIFEST)}$)"
    rf"(?:config\.yaml|{_NAME}\.(?:json|jsonl|csv|npz|txt|png|wav|safetensors)"
    rf"|inspect/{_NAME}\.(?:json|csv|npz|png)|checkpoints/(?:best|last)\.ckpt)"
)
_SWEEP_FILES = re.compile(r"plan(?:-[\w-]{1,60})?\.json|comparison\.json")
_SWEEP = re.compile(rf"{SWEEPS}/{FOLDER}")
_LARGE = (".ckpt", ".safetensors")  # weights, of any size
# Files that are left out on purpose; a push names all others that it leaves out.
_KNOWN = re.compile(
    r"report(-earlier)?\.html|checkpoints/(previous|\w+\.damaged(-\d+)?)\.ckpt|time\.json|search\.db.*|wandb/.*|"
    r"tensorboard/.*|(.*/)?\..*"
)


def is_sweep(name: str) -> bool:
    """Return whether a folder of a storage is that of a sweep, `sweeps/NAME`."""
    return bool(_SWEEP.fullmatch(name))


def split(path: str) -> tuple[str, str] | None:
    """Return the folder of a run or a sweep, and the name of a file in it; None for any other file of a storage."""
    parts = path.split("/")
    folder = "/".join(parts[:2])
    if len(parts) > 2 and (is_sweep(folder) or is_run(folder)):
        return folder, "/".join(parts[2:])
    return None


@dataclass(frozen=True)
class FolderManifest:
    """The files of a copied folder.

    name: of the folder, `NAME-HASH/sSEED` or `sweeps/NAME`
    """

    name: str
    members: Members

    @property
    def size(self) -> int:
        """The size of all files."""
        return sum(size for _, size in self.members.values())

    def as_json(self) -> bytes:
        """Return the content of manifest.json."""
        content = {"format": FORMAT, "name": self.name, "members": as_json(self.members)}
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def read(cls, name: str, content: bytes) -> FolderManifest:
        """Return the manifest in the folder `name`.

        Raises ValueError with a reason for one that is damaged, of another folder, or lists what is in no such folder.
        """
        try:
            raw = json.loads(content.decode("utf-8"))
            if raw["format"] != FORMAT:
                raise ValueError(f"format {quoted(raw['format'])}; this version reads {FORMAT}")
            manifest = cls(str(raw["name"]), from_json(raw["members"]))
        except UNSOUND as error:
            raise ValueError(f"its {MANIFEST} is damaged ({first_line(error)})") from error
        if manifest.name != name:
            raise ValueError(f"its {MANIFEST} is that of {quoted(manifest.name)}")
        manifest._check_members()
        return manifest

    def _check_members(self) -> None:
        if len(self.members) > MAX_MEMBERS:
            raise ValueError(f"its {MANIFEST} lists {len(self.members):,} files, at most {MAX_MEMBERS:,} are read")
        pattern = _pattern(self.name)
        seen: set[str] = set()
        for member, (_, size) in self.members.items():
            if not pattern.fullmatch(member):
                raise ValueError(f"its {MANIFEST} lists {quoted(member)}, which is not a file of a run or a sweep")
            if folded(member) in seen:
                raise ValueError(f"its {MANIFEST} lists {quoted(member)} twice, or in another case")
            seen.add(folded(member))
            if size > MAX_MEMBER and not member.endswith(_LARGE):
                raise ValueError(f"{member} has {size:,} bytes, at most {MAX_MEMBER:,} are read")


def _pattern(name: str) -> re.Pattern[str]:
    if is_sweep(name):
        return _SWEEP_FILES
    return _RUN_FILES


@dataclass(frozen=True)
class LocalFiles:
    """The files of a folder on this machine.

    names: of the files that travel; left: the files and folders at its top that stay without being known to
    """

    names: tuple[str, ...]
    left: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, name: str) -> LocalFiles:
        """Return the files of a folder that is, or is to be, the copy `name`. No link is followed."""
        pattern = _pattern(name)
        names = []
        left: set[str] = set()
        for path, folders, files in os.walk(folder):
            left |= {f"{inner}/" for inner in folders if (Path(path) / inner).is_symlink()}
            for file in files:
                relative = (Path(path) / file).relative_to(folder).as_posix()
                if pattern.fullmatch(relative):
                    names.append(relative)
                elif not _KNOWN.fullmatch(relative):
                    top, slash, _ = relative.partition("/")
                    left.add(f"{top}{slash}")
        return cls(tuple(sorted(names)), tuple(sorted(left)))


def digests_in(folder: Path, names: tuple[str, ...]) -> Members:
    """Return SHA-256 and size of files of a folder. Raises UserError for a link or a second name, OSError."""
    return {name: digest_of(folder / name) for name in names}


def differing(one: Mapping[str, tuple[str, int]], other: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return the files that only one of two lists has, or that have another content there."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
