"""Whether a finished run was trained on what its data files hold now.

A file's path is part of a run's identity and its content is not, so a command that names the same path finds the run
done. Files that were not written since the run began are taken as they are; otherwise the data is read again and its
fingerprint compared with the recorded one.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.status import read_status

MOST = 20_000  # files of a folder whose times are read


def refuse_changed_data(run: RunFolder, config: dict[str, Any]) -> None:
    """Raise UserError where the data that a finished run read has changed since.

    config: complete and plain, of the command that found the run
    """
    recorded = (run.facts().get("data") or {}).get("fingerprint")
    started = read_status(run.path).started
    if not recorded or not started or _newest(config.get("data")) <= datetime.fromisoformat(started).timestamp():
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


def _newest(node: Any) -> float:
    """When the last of the files and folders that a config node names was written, in seconds; 0.0 if it names none."""
    return max((path.stat().st_mtime for path in named_files(node)), default=0.0)


def named_files(node: Any) -> Iterator[Path]:
    """The existing files and folders that a config node names, and what lies in these folders."""
    for text in _texts(node):
        yield from _files(text)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _texts(value)


def _files(text: str) -> Iterator[Path]:
    """The existing files and folders that a text names, by itself or as a pattern, and what lies in these folders."""
    try:
        named = [os.path.expanduser(text), *(glob.glob(os.path.expanduser(text)) if "*" in text else ())]
        files = [Path(name) for name in named if name and os.path.exists(name)]
    except ValueError:  # a null byte
        return
    for path in files:
        yield path
        inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        yield from (each for each in islice(inside, MOST) if each.exists())
