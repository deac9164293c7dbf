"""Start a run: create its folder, take over an interrupted one, or refuse with the reason."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from blockyard.atomic_files import is_regular, move_aside, remove_temporary, write_yaml
from blockyard.config.tree import Node
from blockyard.config.untrusted.local_path import outputs_folder
from blockyard.config.untrusted.targets import allow_of
from blockyard.errors import UserError
from blockyard.runs.changed_data import refuse_changed_data
from blockyard.runs.folder import CHECKPOINTS, CONFIG, RUN, SOURCE_TOKENIZER, SUMMARY, TOKENIZER, RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.runs.lock import RunLock, held, lock_path
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.not_started import AlreadyDoneError, FailedBeforeError
from blockyard.runs.provenance import own_code, provenance
from blockyard.runs.rank import check_environment, rank_in, restarted
from blockyard.runs.redact import redact, remember
from blockyard.runs.status import FILE as STATUS
from blockyard.runs.status import Status, now, read_status, write_status

_RANK_TIMEOUT = 60.0  # seconds, or trainer.timeout where that is longer
_IDLE = 60.0  # seconds after which nobody writes to a temporary file any more
log = logging.getLogger("blockyard")


def create_run(
    config: Node,
    *,
    command: Sequence[str] | None = None,
    choices: Mapping[str, str | None] | None = None,
    retry_failed: bool = False,
) -> RunFolder:
    """Return the folder of this config and seed, locked by this process, new or to be resumed.

    config: complete and plain
    command: as recorded; default this process's
    choices: the YAML of each family
    retry_failed: also resume a run that failed

    Raises AlreadyDoneError, InUseError, FailedBeforeError, or UserError where the folder cannot be written or
    torchrun's restarts cannot work.
    """
    check_environment()
    remember(config)
    seed = config.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed={seed!r} is not an integer")
    path = outputs_folder(str(config.get("outputs") or "outputs")) / run_name(config) / f"s{seed}"
    if rank_in(config):
        return join_run(path, config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {path.parent}: {error.strerror}; choose outputs=FOLDER") from error
    lock = RunLock(path).acquire()
    try:
        if (path / CONFIG).exists() and not config.get("force"):
            run = RunFolder.open(path, lock)
            take_over(run, config, command=command, choices=choices, retry_failed=retry_failed)
        else:
            run = _begin(path, config, command, choices, lock)
    except OSError as error:
        lock.release()
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose outputs=FOLDER") from error
    except BaseException:
        lock.release()
        raise
    return run


def join_run(path: Path, config: Node) -> RunFolder:
    """Wait for the run that rank 0 creates or resumes; writes nothing.

    Under torchrun or srun every rank runs the whole command. Raises AlreadyDoneError as rank 0 does, UserError if
    rank 0 does not start in time.
    """
    seconds = _RANK_TIMEOUT
    trainer = config.get("trainer")
    if isinstance(trainer, dict):
        seconds = max(seconds, float(trainer.get("timeout") or 0))
    deadline = time.monotonic() + seconds
    # All three: the config is the last file that rank 0 writes, and a status of an earlier attempt may say running.
    while not ((path / CONFIG).is_file() and held(path) and read_status(path).state == "running"):
        if not config.get("force") and (path / CONFIG).is_file() and read_status(path).finished:
            raise AlreadyDoneError(RunFolder(path, config))
        if time.monotonic() > deadline:
            raise UserError(f"rank 0 did not start {path} within {seconds:.0f} s")
        time.sleep(0.1)
    return RunFolder(path, config)


def discard(run: RunFolder) -> None:
    """Remove a locked folder that this process created, if no step was taken in it; put back the replaced one.

    A folder that was there before stays as it is.
    """
    if not run.created:
        return
    shutil.rmtree(run.path, ignore_errors=True)
    if run.replaced is not None:
        os.rename(run.replaced, run.path)
        return
    with contextlib.suppress(OSError):  # who waits for the lock opens a new file; other seeds keep the parent
        lock_path(run.path).unlink()
        run.path.parent.rmdir()


def take_over(
    run: RunFolder,
    config: Node,
    *,
    command: Sequence[str] | None = None,
    choices: Mapping[str, str | None] | None = None,
    retry_failed: bool = False,
) -> None:
    """Resume an existing, locked run under `config`; its semantic part must equal the frozen one.

    Options that may change (loggers, devices, workers) are frozen again; their old values go to run.json.
    Raises AlreadyDoneError, or FailedBeforeError unless `retry_failed`; a run that was refused before its first step
    may start.
    """
    if run.checkpoints.is_symlink():  # files there would be replaced and removed, wherever it leads
        raise UserError(
            f"{run.checkpoints} is a link to {os.readlink(run.checkpoints)}; a run writes inside its own folder "
            "only: put the folder itself there"
        )
    status = read_status(run.path, alive=False)  # the lock is ours: whoever ran it is gone
    if status.finished and not (run.path / SUMMARY).exists():  # which is written first
        status = Status("interrupted", f"{STATUS} says that it is done, and there is no {SUMMARY}", status.step)
    if status.finished:
        for folder in (run.path, run.checkpoints):  # `blockyard eval` may be writing
            remove_temporary(folder, untouched=_IDLE)
        refuse_changed_data(run, config)
        raise AlreadyDoneError(run, changed_code(run, config))
    refused = status.state == "failed" and status.exit_code == 2  # bad input, found before the first step
    if status.state == "failed" and not (refused or retry_failed or restarted()):
        raise FailedBeforeError(run.path, status.reason)
    remember(config)
    removed = remove_temporary(run.path) + remove_temporary(run.checkpoints)
    _clear_damaged(run, config, command, choices)
    old, frozen = run.config, redact(config)
    frozen.pop("force", None)
    changed = {key: old.get(key) for key in {*old, *frozen} if old.get(key) != frozen.get(key)}
    run.config, run.foreign = config, False
    run.resumes = not (refused or status.state == "queued") or any(run.checkpoints.glob("*.ckpt"))
    if run.resumes:
        run.message = f"resuming {run.path}, which was {status}"
    entry = provenance(command) | {"was": str(status), "before": changed, "swept": removed, **_own_code(config)}
    run.add_facts({"resumes": [*run.facts().get("resumes", []), entry]})
    if changed:
        if old.keys() != frozen.keys() or old.get("model") != frozen.get("model"):  # no override of a resumed run
            log.warning("%s was damaged, edited or of another run, and is written again", run.path / CONFIG)
        write_yaml(run.path / CONFIG, frozen)


def _clear_damaged(
    run: RunFolder,
    config: Node,
    command: Sequence[str] | None,
    choices: Mapping[str, str | None] | None,
) -> None:
    """Rename links, anything but a regular file under the name of a run's file, and an unreadable run.json."""
    for name in (RUN, STATUS, METRICS, SUMMARY, TOKENIZER, SOURCE_TOKENIZER):
        path = run.path / name
        if os.path.lexists(path) and (not is_regular(path) or path.is_symlink()):
            log.warning("%s is not a regular file; it is kept as %s", path, move_aside(path, "damaged").name)
    for path in _links(run.path):  # a log is appended to, and a logger fills a folder, wherever a link leads
        log.warning("%s is a link; it is kept as %s", path, move_aside(path, "damaged").name)
    if not os.path.lexists(run.path / STATUS):
        log.warning("%s is missing; the run goes on from its last checkpoint", run.path / STATUS)
    if not run.checkpoints.is_dir():
        if os.path.lexists(run.checkpoints):
            log.warning("%s is not a folder; it is kept as %s", run.checkpoints, move_aside(run.checkpoints, "damaged"))
        run.checkpoints.mkdir()
    if run.facts().get("identity") != identity(config):
        path = run.path / RUN
        hint = ""
        if path.exists():
            hint = f"; it is kept as {move_aside(path, 'damaged').name}"
        log.warning("%s is damaged or of another run: what it recorded of the start is lost%s", path, hint)
        facts = {"identity": identity(config), "choices": dict(choices or {}), "resumes": []}
        run.write_json(RUN, provenance(command) | facts | _own_code(config))


def _own_code(config: Node) -> dict[str, dict[str, str]]:
    """Return the entry of run.json about the packages that a config allows; empty if there are none."""
    hashes = own_code(allow_of(config))
    if not hashes:
        return {}
    return {"own_code": hashes}


def changed_code(run: RunFolder, config: Node) -> list[str]:
    """Return the allowed packages with other code than the run's; packages that it did not record are left out."""
    recorded = run.facts().get("own_code", {})
    return [name for name, code in own_code(allow_of(config)).items() if recorded.get(name, code) != code]


def _begin(
    path: Path,
    config: Node,
    command: Sequence[str] | None,
    choices: Mapping[str, str | None] | None,
    lock: RunLock,
) -> RunFolder:
    message = None
    replaced = None
    # A folder that lost its config is not a run, but its metrics and checkpoints must not join a new one, and the files
    # of a new one must not go where its links lead.
    remains = (path / CONFIG).exists() or (path / METRICS).exists() or any((path / CHECKPOINTS).glob("*.ckpt"))
    if remains or _links(path):
        lost = "" if (path / CONFIG).exists() else f"{path} has no {CONFIG}; "
        replaced = keep_replaced(path)
        message = f"{lost}the old run is kept as {replaced}"
    (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    remove_temporary(path)
    remove_temporary(path / CHECKPOINTS)
    secret_keys: list[str] = []
    frozen = redact(config, secret_keys=secret_keys)
    frozen.pop("force", None)
    run = RunFolder(path, config, lock)
    run.created, run.replaced, run.message = True, replaced, message
    # The config comes last: a folder without one is not a run, so a kill before this line leaves nothing behind.
    facts = {"identity": identity(config), "choices": dict(choices or {}), "resumes": []}
    run.write_json(RUN, provenance(command) | facts | _own_code(config))
    write_status(path, Status("queued", updated=now()))
    write_yaml(path / CONFIG, frozen)
    for key in secret_keys:
        log.warning("%s looks like a secret: it is used but not written; prefer an environment variable", key)
    return run


def _links(folder: Path) -> list[Path]:
    """Return the symbolic links in a folder, sorted; an empty list if the folder does not exist."""
    return sorted(path for path in folder.glob("*") if path.is_symlink())


def keep_replaced(path: Path, folder: Path | None = None) -> Path:
    """Rename a folder that another one replaces to `.replaced-NAME-TIME`, and return that path.

    folder: where it is kept; beside it by default
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for count in range(1000):
        number = f"-{count}" if count else ""
        aside = (folder or path.parent) / f".replaced-{path.name}-{stamp}{number}"
        if not aside.exists():
            os.rename(path, aside)
            return aside
    raise UserError(f"found no free name to keep {path} under")
