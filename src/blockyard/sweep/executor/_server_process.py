"""The planner's end of the fork server: starts it, sends it requests, and reads the ends of cells."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from blockyard.sweep.executor._fork_messages import CellEnded, CellStarted, Request

_PATIENCE = 10.0  # seconds that the server has to end
_MAIN = "import sys; sys.path[:] = {path!r}; from blockyard.sweep.executor._fork_server import main; main()"


class ServerLostError(Exception):
    """The server is dead, and the kernel has signalled its cells to stop."""


class ServerProcess:
    """A fork server in a process of its own, started when it is first needed.

    threads: CPU threads of each cell; None leaves them to each cell, and the server in this process's session, with
        its streams: for commands that run as if this process had started them
    modules: more modules for the server to import
    """

    def __init__(self, threads: int | None, modules: Sequence[str] = ()) -> None:
        self.threads = threads
        self.modules = tuple(modules)
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: Connection | None = None

    def start(self) -> None:
        """Start the server, unless it runs already."""
        if self.socket is not None:
            return
        parent_end, child_end = socket.socketpair()
        with child_end:
            os.set_inheritable(child_end.fileno(), True)
            self.process = self._started(child_end.fileno())
        self.socket = Connection(parent_end.detach())

    def _started(self, handle: int) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self.threads)
            environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would start at import
        # OpenMP's threads spin while they wait, which slows the other cells on the same cores, see `cli`.
        environment.setdefault("GOMP_SPINCOUNT", "1000")
        # The driver must not be initialised before a fork; counting GPUs through NVML does not touch it.
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # With -P the working folder, which may hold any module, is not on the path while Python starts.
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN.format(path=sys.path), str(handle), *self.modules],
            stdin=None if self.threads is None else subprocess.DEVNULL,
            pass_fds=[handle],
            start_new_session=self.threads is not None,
            env=environment,
        )

    def send(self, request: Request) -> None:
        """Send a request; start a server if none is running. Raises ServerLostError."""
        self.start()
        assert self.socket is not None
        try:
            self.socket.send(request)
        except (BrokenPipeError, ConnectionError) as error:
            raise ServerLostError from error

    def receive(self, seconds: float) -> list[CellStarted | CellEnded]:
        """Return the cells that started or ended. Wait at most `seconds` for the first. Raises ServerLostError."""
        news: list[CellStarted | CellEnded] = []
        try:
            timeout = seconds
            while self.socket is not None and self.socket.poll(timeout):
                news.append(self.socket.recv())
                timeout = 0.0  # after the first message only the ones that are there already
        except (EOFError, ConnectionError) as error:
            if not news:  # else the next call raises
                raise ServerLostError from error
        return news

    def close(self, *, idle: bool) -> None:
        """End the server and wait for it. idle: no cell runs, so that the server need not wait for any to save"""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        if self.process is not None:
            if idle:  # it may still be importing
                self.process.terminate()
            try:
                self.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:  # it hangs; its cells save when it dies
                self.process.kill()
                self.process.wait()
            self.process = None
