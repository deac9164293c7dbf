"""Give a run another name: in its config, and in the folder NAME-HASH that it lies in. Its identity stays."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from blockyard.atomic_files import sync_folder, write_yaml
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RunFolder
from blockyard.runs.identity import run_name
from blockyard.runs.lock import RunLock
from blockyard.runs.redact import redact_text


def rename(run: RunFolder, name: str) -> RunFolder:
    """Return the run under its new name. Raises UserError for a name that cannot be one, or that is taken.

    `check_is_unchanged` of `blockyard.runs.delete` comes first.
    """
    if not re.search(r"[^\W_]", name) or not name.isprintable() or redact_text(name) != name:
        raise UserError(f"{name!a} cannot be the name of a run: write letters, digits, _ . or -")
    arm = run.path.parent
    label = run_name({"name": name}).rpartition("-")[0]
    target = arm.with_name(f"{label}-{arm.name.rpartition('-')[2]}") / run.path.name
    if os.path.lexists(target):
        raise UserError(f"{target} exists already; choose another name")
    try:
        target.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{target.parent} cannot be created: {error.strerror}") from error
    lock = RunLock(run.path).acquire()
    try:
        new = RunLock(target).acquire()
        try:
            _move(run.path, target)
            write_yaml(target / CONFIG, run.config | {"name": name})
            lock.path.unlink(missing_ok=True)
        finally:
            new.release()
    except OSError as error:
        raise UserError(f"{run.path} cannot be renamed: {error.strerror or error}") from error
    finally:
        lock.release()
        for folder in (arm, target.parent):
            with contextlib.suppress(OSError):  # other seeds are there
                folder.rmdir()
    return RunFolder.open(target)


def _move(source: Path, target: Path) -> None:
    os.rename(source, target)
    sync_folder(source.parent)
    sync_folder(target.parent)
