"""The local executor's server forked from the tests' own, which has imported everything, instead of started anew.

A new Python takes 3.5 s of CPU until the server's imports are done, longer than most sweeps of the tests.
`tests/test_wheel.py` and the tests of `tests/sweep/test_executors.py` about the server itself start it as users do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from blockyard.sweep.executor import _server_process
from blockyard.sweep.executor._server_process import ServerProcess
from tests.support.fork import server

_as_shipped = ServerProcess._started


class Forked:
    """A process of multiprocessing's with the methods of `subprocess.Popen` that an executor calls."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.process = process
        self.pid = process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("the server", timeout or 0.0)
        return self.process.exitcode

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def fork_servers() -> None:
    """Let executors of this process fork their servers."""
    _server_process.ServerProcess._started = _started  # type: ignore[method-assign, assignment]


def start_servers() -> None:
    """Let executors of this process start their servers as users do."""
    _server_process.ServerProcess._started = _as_shipped  # type: ignore[method-assign]


def _started(self: ServerProcess, handle: int) -> Any:
    if self.threads is None:  # a multirun's server shares the terminal of the command
        return _as_shipped(self, handle)
    files = [Connection(os.dup(each)) for each in (handle, 1, 2)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
    process = server().Process(target=_serve, args=(files, os.getcwd(), environment, list(sys.path), self.threads))
    process.start()
    for file in files:
        file.close()
    return Forked(process)


def _serve(files: list[Connection], folder: str, environment: dict[str, str], path: list[str], threads: int) -> None:
    from blockyard.sweep.executor._fork_server import ForkServer, set_threads

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    planner, *streams = files
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    set_threads(threads)
    code = 1
    try:
        ForkServer(planner).serve()
        code = 0
    finally:
        os._exit(code)
