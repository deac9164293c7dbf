"""Delete and rename runs, and nothing else: a folder is only touched where everything about it says that it is a run.

outputs/vit-6cd717198b/s0      NAME-HASH/sSEED, neither of them a link
    config.yaml                its seed is SEED and its identity is HASH
    status.json                every run has one

A new name stands in the config, and in the folder NAME-HASH that the run lies in. The identity of the run stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from blockyard.atomic_files import DELETED, is_regular, passing_name, remove_leftovers, sync_folder, write_yaml
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.runs.lock import RunLock, held, lock_path
from blockyard.runs.redact import redact_text
from blockyard.runs.status import FILE as STATUS

_ARM = re.compile(r"(?s).+-(?P<hash>[0-9a-f]{10})")
_SEED = re.compile(r"s(?P<seed>[0-9]+)")


@dataclass(frozen=True)
class FolderSize:
    """The content of a folder. Links count as themselves: their targets stay in place."""

    files: int
    bytes: int

    def __str__(self) -> str:
        files = "file" if self.files == 1 else "files"
        return f"{self.files} {files}, {self.bytes / 1e6:.1f} MB"


def size_of(run: RunFolder) -> FolderSize:
    """Return the number and size of a run's files."""
    sizes = [path.lstat().st_size for path in run.path.rglob("*") if path.is_symlink() or not path.is_dir()]
    return FolderSize(len(sizes), sum(sizes))


def check_is_run(run: RunFolder, action: str) -> None:
    """Raise UserError, with the reason, for a folder that `blockyard train` did not write as a run, or a link to one.

    action: the command that needs a run, for the message
    """
    if (reason := why_no_run(run)) is not None:
        raise UserError(f"{action}: {run.path} {reason}; nothing was changed")


def check_is_unchanged(run: RunFolder, action: str) -> None:
    """Raise UserError for a folder that is no run, or has a config of another identity than its name."""
    check_is_run(run, action)
    if (reason := why_changed(run)) is not None:
        raise UserError(
            f"{action}: {run.path}: {reason}; nothing was changed. Remove the folder by hand if it is yours"
        )


def delete(run: RunFolder) -> None:
    """Remove a run, and the arm's folder NAME-HASH once it is empty. Raises UserError.

    `check_is_unchanged` comes first. The run is renamed before its files are removed, so that it is either whole or
    gone from every listing.
    """
    # The lock lies beside the folder, and stays ours while the folder is renamed.
    lock = RunLock(run.path).acquire()
    arm = run.path.parent
    doomed = run.path.with_name(passing_name(DELETED, run.path.name))
    try:
        os.rename(run.path, doomed)
        lock.path.unlink(missing_ok=True)
        sync_folder(arm)
        shutil.rmtree(doomed)
    except OSError as error:
        message = f"{run.path} cannot be deleted: {error.strerror or error}"
        if doomed.exists():
            message += f"; what is left of it is {doomed}"
        raise UserError(message) from error
    finally:
        lock.release()
    with contextlib.suppress(OSError):  # other seeds, or files of somebody else, are there
        arm.rmdir()


def rests_of_deleted(outputs: Path) -> list[Path]:
    """Return the remains of runs after an interrupted deletion, in the folders of all arms."""
    paths = sorted(outputs.glob(f"*/{DELETED}*"))
    return [path for path in paths if not path.parent.name.startswith(".") and not path.parent.is_symlink()]


def finish_deletions(outputs: Path) -> None:
    """Remove the remains of killed deletions: files, the lock, and the arm's folder once it is empty."""
    for rest in rests_of_deleted(outputs):
        arm = rest.parent
        remove_leftovers(arm)
        run = arm / rest.name.removeprefix(DELETED).partition("-")[0]
        with contextlib.suppress(OSError):  # other seeds, or files of somebody else, are there
            if not os.path.lexists(rest) and not run.exists() and not held(run):
                lock_path(run).unlink(missing_ok=True)
            arm.rmdir()


def why_no_run(run: RunFolder) -> str | None:
    """Return the reason why a folder is no run that `blockyard train` wrote, or a link to one; None for a run."""
    arm, seed = _ARM.fullmatch(run.path.parent.name), _SEED.fullmatch(run.path.name)
    for path in (run.path, run.path.parent):
        if path.is_symlink():
            return f"is reached through a link, {path} to {os.readlink(path)}; give the path of the folder itself"
    if arm is None or seed is None:
        return "is not a run of blockyard: those are folders NAME-HASH/sSEED, such as vit_digits-6cd717198b/s0"
    if not is_regular(run.path / STATUS):
        return f"is not a run of blockyard: it has no {STATUS}"
    if run.config.get("seed", 0) != int(seed["seed"]):
        return f"is not a run of blockyard: the seed in its {CONFIG} is {run.config.get('seed', 0)!r:.40}"
    try:
        recorded = run.facts().get("identity")
    except UserError:
        recorded = None
    if arm["hash"] not in (recorded, _identity(run)):
        return f"is not a run of blockyard: its {CONFIG} does not have the identity {arm['hash']}"
    return None


def why_changed(run: RunFolder) -> str | None:
    """Return the reason why a config is not the one that its folder is named after; None for the config of the run."""
    if run.config.get("allow"):
        return None  # the identity needs the user's own packages, which are imported for the user's runs only
    expected = run.path.parent.name.rpartition("-")[2]
    computed = _identity(run)
    if computed == expected:
        return None
    return (
        f"its {CONFIG} belongs to another folder: its identity is {computed or 'unknown'}, not {expected} (edited, or "
        "of another version)"
    )


def _identity(run: RunFolder) -> str | None:
    """Return the identity of a config, without packages of the user; None for a config that has none."""
    try:
        return identity(run.config | {"allow": []})
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None


def rename(run: RunFolder, name: str) -> RunFolder:
    """Return the run under its new name. Raises UserError for a name that cannot be one, or that is taken.

    `check_is_unchanged` comes first.
    """
    if not re.search(r"[^\W_]", name) or not name.isprintable() or redact_text(name) != name:
        raise UserError(f"{name!a} cannot be the name of a run: write letters, digits, _ . or -")
    arm = run.path.parent
    label = run_name({"name": name}).rpartition("-")[0]
    target = arm.with_name(f"{label}-{arm.name.rpartition('-')[2]}") / run.path.name
    if os.path.lexists(target):
        raise UserError(f"{target} exists already; choose another name")
    lock = RunLock(run.path).acquire()
    try:
        target.parent.mkdir(exist_ok=True)
        new = RunLock(target).acquire()
        try:
            os.rename(run.path, target)
            sync_folder(run.path.parent)
            sync_folder(target.parent)
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
