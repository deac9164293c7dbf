"""A fork server: imports everything once, then forks a process for each cell in a quarter of a second.

    planner ---- socket ---- this server ---- fork ---- a cell
                                         `--- fork ---- a cell

The server computes nothing itself, so a fork copies no thread and no GPU context. It leads its own
session: Ctrl-C reaches only the planner, which decides what to do. No death loses a cell's work: if the
planner dies, the server tells the cells to save and stop; if the server dies, the kernel does.

It is not multiprocessing's forkserver. That one ends at once when its planner dies, without a signal to its children,
and they go on when it dies itself. It closes their standard input, which `blockyard train` needs for a command at the
planner's terminal. And a process has only one, with one list of imports, one environment and the planner's session.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import io
import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait

from blockyard.config.untrusted import package_finder
from blockyard.sweep.cell.execute import execute, execute_together
from blockyard.sweep.cells import Outcome
from blockyard.sweep.executor._fork_messages import CellEnded, CellStarted, Request

HEAVY = (
    "torch",
    "pytorch_lightning",
    "torchmetrics",
    "omegaconf",  # Lightning imports it when it saves
    "sklearn.datasets",
    "blockyard.engine.setup",
    "blockyard.engine.run",
    "blockyard.engine.lightning.processes",
    "blockyard.engine.loggers",
    "blockyard.runs.provenance",
    "blockyard.sweep.cell.execute",
)
GRACE = 120.0  # seconds that a cell has to save after the planner's death
_PR_SET_PDEATHSIG = 1  # option of Linux's prctl


def main() -> None:
    """Import the modules of every cell, then serve a socket.

    The first argument is the file descriptor of the socket. The other arguments name more modules to import.
    """
    for name in (*HEAVY, *sys.argv[2:]):
        with contextlib.suppress(ImportError):  # the cell itself reports a missing package
            importlib.import_module(name)
    ForkServer(Connection(int(sys.argv[1]))).serve()


class ForkServer:
    """Serves one planner until the planner exits."""

    def __init__(self, planner: Connection) -> None:
        self.planner = planner
        self.cells: dict[int, _Cell] = {}  # by pid
        self.wake, self._write = os.pipe()  # gets a byte for each signal, so that `wait` returns when a child ends
        os.set_blocking(self.wake, False)
        os.set_blocking(self._write, False)

    def serve(self) -> None:
        """Start cells and report how they end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Python writes to `wake` only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            while True:
                pipes = [cell.pipe for cell in self.cells.values() if cell.pipe is not None]
                if self.planner in wait([self.planner, self.wake, *pipes]):
                    self._handle(self.planner.recv())
                for cell in self.cells.values():  # a pipe that is full would hold its process up
                    cell.read()
                self._reap()
        except (EOFError, ConnectionError):
            self._stop()

    def _handle(self, request: Request) -> None:
        if request.signum is not None:
            for pid, cell in self.cells.items():
                if request.number in cell.keys:
                    _signal(pid, request.signum)
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        # A fork copies unwritten text, which both processes would write.
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._close_server_files(read)
                code = run_cell(request, write, server)
            finally:
                os._exit(code)  # not `sys.exit`, which would run the exit handlers of the server
        os.close(write)
        tasks = {request.number: request.task, **request.others}
        self.cells[pid] = _Cell({number: getattr(task, "key", "") for number, task in tasks.items()}, read)
        for number in tasks:
            self.planner.send(CellStarted(number))

    def _close_server_files(self, read: int) -> None:
        """In the child: close the server's files and restore the default signal handlers."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits that the server ignores it
        # A copy of the socket would keep the connection open after the death of the server.
        self.planner.close()
        for handle in (self.wake, self._write, read):
            os.close(handle)
        for cell in self.cells.values():
            cell.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass
        for pid, cell in list(self.cells.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.cells[pid]
                cell.read()
                cell.close()
                code = os.waitstatus_to_exitcode(status)
                outcomes = cell.outcomes()
                for number, key in cell.keys.items():
                    self.planner.send(CellEnded(number, code, outcomes.get(key)))

    def _stop(self) -> None:
        """Signal all cells to save and stop; the planner that would read their outcomes has died."""
        deadline = time.monotonic() + GRACE
        for pid in self.cells:
            os.kill(pid, signal.SIGTERM)
        while self.cells and time.monotonic() < deadline:
            self.cells = {pid: cell for pid, cell in self.cells.items() if not os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.05)
        for pid in self.cells:
            _signal(pid, signal.SIGKILL)


@dataclass
class _Cell:
    """A process that runs cells.

    keys: of its tasks, by number
    pipe: of the outcomes, None once it is closed
    reported: the bytes that came through the pipe
    """

    keys: dict[int, str]
    pipe: int | None
    reported: bytes = b""

    def read(self) -> None:
        """Read the bytes that the pipe holds now."""
        # Not to the end of the pipe: a process that the cell left behind may keep it open.
        while self.pipe is not None:
            try:
                part = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            self.reported += part
            if not part:
                self.close()

    def close(self) -> None:
        """Close the pipe."""
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcomes that the process reported, by the keys of their tasks."""
        outcomes: dict[str, Outcome] = {}
        stream = io.BytesIO(self.reported)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                outcome = pickle.load(stream)  # the last one is cut off where the process was killed
                outcomes[outcome.key] = outcome
        return outcomes


def set_threads(count: int) -> None:
    """Set the number of CPU threads of this process and of its future children."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)  # torch read the variable when it was imported


def run_cell(request: Request, write: int, server: int) -> int:
    """In the child: run the cell, send its outcome and return its exit code."""
    if request.command is None:
        os.setpgid(0, 0)  # a group of its own, so that a kill takes the processes that the cell started
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != server:  # it died before the kernel knew that it should signal its death
            return 143
    os.environ.update(request.environment or {})
    package_finder.install(package_finder.described())
    if request.threads is not None:
        set_threads(request.threads)
    if request.command is not None:
        code = request.command()
    elif request.others:
        execute_together([request.task, *request.others.values()], partial(_report, write))
        code = 0
    else:
        outcome = execute(request.task, alone=request.alone)
        code = outcome.code
        _report(write, outcome)
    with contextlib.suppress(Exception):  # an exit handler of the run must not change its exit code
        atexit._run_exitfuncs()
    return code


def _report(pipe: int, outcome: Outcome) -> None:
    with contextlib.suppress(OSError):
        os.write(pipe, pickle.dumps(outcome))


def _signal(pid: int, signum: int) -> None:
    """Send a signal to a cell. SIGKILL also reaches the processes that the cell has started."""
    if signum != signal.SIGKILL:
        os.kill(pid, signum)
        return
    with contextlib.suppress(ProcessLookupError):  # the child has not made its group yet
        os.killpg(pid, signum)
        return
    os.kill(pid, signum)
