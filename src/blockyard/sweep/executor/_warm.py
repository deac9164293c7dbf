"""A process that has imported everything and forks once for every cell: a start in a quarter of a second.

    planner ---- socket ---- this server ---- fork ---- a cell
                                         `--- fork ---- a cell

The server runs nothing itself, so that no thread and no GPU context is there to be forked. It leads
a session of its own: Ctrl-C reaches the planner only, which decides. Whoever dies takes nobody's work
along: without the planner, the server tells the cells to save and stop; without the server, the
kernel does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from blockyard.sweep.execution.cell import execute

HEAVY = (
    "torch",
    "pytorch_lightning",
    "torchmetrics",
    "omegaconf",  # Lightning, when it saves
    "sklearn.datasets",
    "blockyard.engine.setup",
    "blockyard.engine.run",
    "blockyard.engine.system.processes",
    "blockyard.engine.loggers",
    "blockyard.runs.provenance",
    "blockyard.sweep.execution.cell",
)
GRACE = 120.0  # seconds a cell may take to save when nobody is left to wait for it
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Order:
    """What the planner asks: start a cell in this environment, or send a signal to one.

    number: of the cell, the planner's; answers name it
    """

    number: int
    task: Any = None
    environment: dict[str, str] | None = None
    threads: int | None = None
    signum: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a cell's process ended: its outcome, or the exit code (minus the signal) of one that left none."""

    number: int
    code: int
    outcome: Any = None


class Server:
    """Serves one planner until it is gone."""

    def __init__(self, planner: Connection) -> None:
        self.planner = planner
        self.cells: dict[int, tuple[int, int]] = {}  # pid -> number, pipe that the outcome comes through
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._write, False)

    def serve(self) -> None:
        """Start cells and say how they end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _noted)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            while True:
                if self.planner in wait([self.planner, self.wake]):
                    self._obey(self.planner.recv())
                self._reap()
        except (EOFError, ConnectionError):
            self._stop()

    def _obey(self, order: Order) -> None:
        if order.signum is not None:
            for pid, (number, _) in self.cells.items():
                if number == order.number:
                    os.kill(pid, order.signum)
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._leave(read)
                code = _cell(order, write, server)
            finally:
                os._exit(code)
        os.close(write)
        self.cells[pid] = (order.number, read)

    def _leave(self, read: int) -> None:
        """In the child: let go of what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.planner.close()
        for handle in (self.wake, self._write, read, *(pipe for _, pipe in self.cells.values())):
            os.close(handle)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass
        for pid, (number, pipe) in list(self.cells.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.cells[pid]
                self.planner.send(Ended(number, os.waitstatus_to_exitcode(status), _read(pipe)))

    def _stop(self) -> None:
        """Nobody asks for the outcomes any more; the runs themselves are saved."""
        until = time.monotonic() + GRACE
        for pid in self.cells:
            os.kill(pid, signal.SIGTERM)
        while self.cells and time.monotonic() < until:
            self.cells = {pid: cell for pid, cell in self.cells.items() if not os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.05)
        for pid in self.cells:
            os.kill(pid, signal.SIGKILL)


def use_threads(count: int) -> None:
    """So many CPU threads for this process and those it starts."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)  # the variable was read when torch was imported


def _noted(_signum: int, _frame: Any) -> None:
    """A cell has ended: Python writes to `wake` only for a signal that is handled."""


def _cell(order: Order, write: int, server: int) -> int:
    """In the child: run the cell and send its outcome."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != server:
            return 143
    os.environ.update(order.environment or {})
    if order.threads is not None:
        use_threads(order.threads)
    outcome = execute(order.task)
    with contextlib.suppress(OSError):
        os.write(write, pickle.dumps(outcome))
    with contextlib.suppress(Exception):  # what a run registered must not change how it ended
        atexit._run_exitfuncs()
    return outcome.code


def _read(pipe: int) -> Any:
    # Not to its end: a process that the cell left behind may still hold it open.
    try:
        data = os.read(pipe, 1 << 16)
        return pickle.loads(data) if data else None
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    finally:
        os.close(pipe)


def main() -> None:
    """Import what every cell imports, then serve the socket whose number is the argument."""
    for name in HEAVY:
        # One that is not there is the cell's to complain of.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    Server(Connection(int(sys.argv[1]))).serve()
