"""Checks that a finished run was trained on the present content of its data files.

A file's path is part of a run's identity and its content is not, so a command that names the same path finds the run
done. Files that were not written since the run began are taken as they are; otherwise the data is read again and its
fingerprint compared with the recorded one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.folder import PATHS, RunFolder
from blockyard.runs.status import read_status

MOST = 20_000  # files of a folder whose times are read


def refuse_changed_data(run: RunFolder, config: Node) -> None:
    """Raise UserError where the data that a finished run read has changed since.

    config: complete and plain, of the command that found the run
    """
    recorded = _fingerprint(run)
    started = read_status(run.path).started
    if not recorded or not started:
        return
    # The fingerprint reads all data; times of files tell almost always that nothing has changed.
    if newest(config.get("data")) <= datetime.fromisoformat(started).timestamp():
        return
    from blockyard.config.build import Components

    components = Components(config)
    components.load()
    now = components.data.fingerprint()
    if now != recorded:
        raise UserError(
            f"{run.path} is done, but its data changed since it began (fingerprint {recorded[:12]}, now {now[:12]}); "
            "restore the old data, write the new data to another file, or force=true trains again (the old run is kept)"
        )


def newest(node: Any) -> float:
    """Return when the last file or folder that a config node names was written, in seconds; 0.0 if it names none.

    A file that replaces another one may be older than the run, but not its entry in the file system.
    """
    return max((max(status.st_mtime, status.st_ctime) for status in named_files(node)), default=0.0)


def named_files(node: Any) -> Iterator[os.stat_result]:
    """Yield the status of the files and folders that a config node names, and of all files in these folders."""
    for text in _texts(node):
        for path in _paths(text):
            with contextlib.suppress(OSError):  # absent, gone since, or not for this user
                yield os.stat(path)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        values = node.values() if isinstance(node, dict) else node
        for value in values:
            yield from _texts(value)


def _paths(text: str) -> Iterator[str]:
    """Yield the files and folders that a text names, by itself or as a pattern, and all files in these folders."""
    try:
        names = [os.path.expanduser(text)]
        # As tables and shards are named. Of braces any text is taken: more files than are read do no harm.
        pattern = re.sub(r"\{[^{}]*\}", "*", names[0])
        if glob.has_magic(pattern):
            names += glob.glob(pattern)
        paths = [name for name in names if name and os.path.exists(name)]
    except ValueError:  # a null byte
        return
    for path in paths:
        yield path
        # A folder may hold millions of files, and nobody waits for the times of all of them.
        inside = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        yield from islice(inside, MOST)


def pop_moved(folder: RunFolder, overrides: dict[str, Any]) -> dict[str, Any]:
    """Remove the paths of data from `overrides` that differ from the run's, and return them by option.

    A run may be resumed with its data files in another place, if their content is the same. The path of the data stays
    in the frozen config, and so the identity; only this process reads the other path.

    Raises UserError where nothing tells whether the data are the same, and where other processes read the old path.
    """
    data = folder.config.get("data") or {}
    moved = {}
    for name in PATHS:
        path = overrides.get(f"data.{name}")
        if name in data and isinstance(path, str) and path != data[name]:
            moved[name] = overrides.pop(f"data.{name}")
    if not moved:
        return {}
    shown = ", ".join(f"data.{name}={value}" for name, value in moved.items())
    advice = f"put a link to the data at {', '.join(str(data[name]) for name in moved)} instead"
    if not _fingerprint(folder):
        raise UserError(f"{shown}: {folder.name} recorded no fingerprint of its data to compare with; {advice}")
    trainer = folder.config.get("trainer") or {}
    for option in ("devices", "num_nodes"):
        if overrides.get(f"trainer.{option}", trainer.get(option, 1)) != 1:
            raise UserError(f"{shown}: the other processes of a run read its own config.yaml; {advice}")
    return moved


def check_moved(folder: RunFolder, config: Node) -> None:
    """Raise UserError if the data that `config` names differ from the data of the run.

    config: that of the run with the new paths, checked
    """
    from blockyard.config.build import Components

    components = Components(config)
    components.load()
    recorded = _fingerprint(folder)
    now = components.data.fingerprint()
    if now != recorded:
        raise UserError(
            f"{folder.name} was trained on other data (fingerprint {str(recorded)[:12]}, here {now[:12]}); "
            "give the path of the same data, or start a new run with `blockyard train`"
        )


def _fingerprint(folder: RunFolder) -> str | None:
    fingerprint: str | None = folder.facts().get("data", {}).get("fingerprint")
    return fingerprint
