"""Commands as they are typed, each in a process of its own that need not import everything first.

Importing takes a new process ten times longer than most commands take. So one server for each worker of
tests imports what all need, trains once (`tests/support/warm.py`), and forks; `tests/test_wheel.py` and the first
command of `tests/commands/test_train.py` start Python as a user's shell does.
What such a command forks in turn, such as the server of a sweep, comes from the same server.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import cloudpickle

from blockyard.sweep.executor._fork_server import HEAVY

IMPORTED = [
    *(*HEAVY, "wandb", "hydra", "optuna", "submitit", "tests.support.engine_runs"),
    *("blockyard.commands.sweep", "blockyard.sweep.plan.planner", "blockyard.sweep.search.search_runner"),
    *("blockyard.report.comparison", "blockyard.report.page"),
    "tests.support.warm",  # the last, for it runs what the others import
]
# Where a server listens; a newer Python's has a key too.
ADDRESS = ("_forkserver_address", "_forkserver_authkey")


def server() -> ForkServerContext:
    """What forks from a process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def forked(work: Callable[[], int], limit: float = 120) -> int:
    """The exit code of `work` in a process of its own with this one's environment; -9 after a SIGKILL.

    Forked from a server that has run nothing of an earlier test: this process may have started threads in one, and
    those do not survive a fork.
    """
    context = server()
    forkserver.ensure_running()
    address = {key: value for key, value in vars(forkserver._forkserver).items() if key in ADDRESS}
    process = context.Process(target=_exit_with, args=(cloudpickle.dumps(work), dict(os.environ), address))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {limit} s")
    return process.exitcode


def blockyard(folder: Path, *arguments: str, limit: float = 240) -> subprocess.CompletedProcess[str]:
    """What `python -m blockyard ARGUMENTS` prints in a folder, and its exit code."""

    def command() -> int:
        from tests.support.warm_servers import fork_servers

        fork_servers()
        return _entry()

    return _completed(folder, ("blockyard", *arguments), command, limit)


def pytest_in(folder: Path, *arguments: str, limit: float = 240) -> subprocess.CompletedProcess[str]:
    """What `python -m pytest ARGUMENTS` prints in a folder, and its exit code."""

    def command() -> int:
        import pytest

        sys.path.insert(0, str(folder))
        return int(pytest.main([*arguments]))

    return _completed(folder, ("pytest", *arguments), command, limit)


def script(folder: Path, path: Path, limit: float = 240) -> subprocess.CompletedProcess[str]:
    """What `python PATH` prints in a folder, and its exit code."""

    def command() -> int:
        sys.path[0] = str(path.parent)
        runpy.run_path(str(path), run_name="__main__")
        return 0

    return _completed(folder, (str(path),), command, limit)


def _completed(
    folder: Path, arguments: tuple[str, ...], command: Callable[[], int], limit: float
) -> subprocess.CompletedProcess[str]:
    """What a command prints that runs in a folder, in a process of its own, and its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        streams = [f"{scratch}/stdout", f"{scratch}/stderr"]

        def work() -> int:
            return _run(folder, arguments, streams, command)

        try:
            code = forked(work, limit)
        except AssertionError as error:
            raise AssertionError(f"{' '.join(arguments)}: {error}\n{''.join(_printed(streams))}") from error
        printed = _printed(streams)
    return subprocess.CompletedProcess([*arguments], code, *printed)


def _printed(streams: list[str]) -> list[str]:
    return [Path(stream).read_text(encoding="utf-8") for stream in streams if Path(stream).exists()]


def typed(folder: Path | None, arguments: tuple[str, ...], streams: list[str]) -> int:
    """Run `blockyard ARGUMENTS` in this process as a shell would start it, and return its exit code.

    folder: None is the current one; streams: paths of standard output and error, where they are to be redirected
    """
    return _run(folder, ("blockyard", *arguments), streams, _entry)


def _entry() -> int:
    from blockyard.cli import entry

    entry()
    return 0


def _run(folder: Path | None, arguments: tuple[str, ...], streams: list[str], command: Callable[[], int]) -> int:
    """The exit code of a command that runs in this process with `sys.argv` and streams of its own."""
    if folder is not None:
        os.chdir(folder)
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = [*arguments]
    code = 1
    try:
        code = command()
    except SystemExit as error:
        code = int(error.code or 0)
    except Exception:  # as Python ends a process
        traceback.print_exc()
    # A process of multiprocessing's leaves out what ends any other: waiting for its threads, and these functions.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _exit_with(work: bytes, environment: dict[str, str], address: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    _share_server(address)
    _own_media_folder()
    os._exit(cloudpickle.loads(work)())


def _share_server(address: dict[str, Any]) -> None:
    """A process that a server has forked would start another one, 10 s of imports, to fork from."""
    vars(forkserver._forkserver).update(address, ensure_running=lambda: None)


def _own_media_folder() -> None:
    """W&B makes a folder for media as it is imported, which is before the fork, and removes it at exit."""
    if "wandb" in sys.modules:
        from wandb.sdk.data_types._private import MEDIA_TMP

        MEDIA_TMP._finalizer.detach()
        MEDIA_TMP.name = tempfile.mkdtemp(suffix="wandb-media", dir=Path.home())  # removed with it
