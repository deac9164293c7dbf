"""Worker processes on this machine, forked from a server that has imported everything.

Source: the fork server of CPython's multiprocessing (docs.python.org/3/library/multiprocessing.html)
Cost: one import for all cells, about 0.25 s for each cell; a crash or a lack of memory loses only its own cell
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from blockyard.contracts import Count
from blockyard.sweep.executor._fork_server import CellEnded, Request
from blockyard.sweep.executor._outcomes import outcome_of_exit
from blockyard.sweep.executor._slots import DeviceSlots, cpu_cores, visible_gpus
from blockyard.sweep.executor.base import Executor, Outcome, Task

_PATIENCE = 60.0  # seconds that a cell has to save after a stop signal
_MAIN = "import sys; sys.path[:] = {path!r}; from blockyard.sweep.executor._fork_server import main; main()"


@dataclass(frozen=True)
class _Running:
    task: Task
    slots: tuple[int, list[str]]


class LocalExecutor(Executor):
    """Runs cells in a pool of warm processes.

    Options:
        workers: cells in parallel; null is the number of GPUs (times cells_per_gpu), or of cores without GPUs
        gpus: their numbers; auto uses all of them, null hides them from the cells
        cells_per_gpu: small cells that share a GPU
        threads: CPU threads of each cell; null divides the cores among the workers
    """

    def __init__(
        self,
        *,
        workers: Count | None = None,
        gpus: Literal["auto"] | list[int] | None = "auto",
        cells_per_gpu: Count = 1,
        threads: Count | None = None,
    ) -> None:
        names = [] if gpus is None else visible_gpus() if gpus == "auto" else _gpu_names(gpus)
        self._slots = DeviceSlots(workers or len(names) * cells_per_gpu or cpu_cores(), names, cells_per_gpu)
        self._threads = threads or max(1, cpu_cores() // self._slots.workers)
        self._queue: deque[Task] = deque()
        self._running: dict[int, _Running] = {}
        self._ended: list[Outcome] = []
        self._number = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: Connection | None = None

    @property
    def capacity(self) -> int:
        """Cells in parallel."""
        return self._slots.workers

    def __enter__(self) -> LocalExecutor:
        if self._socket is None:
            self._connect()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell running cells to save and stop; Ctrl-C meanwhile interrupts their step, a second one kills them."""
        self._queue.clear()
        patience = _PATIENCE
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            try:
                self._signal_all(signum)
                deadline = time.monotonic() + patience
                while self._running and time.monotonic() < deadline:
                    self._receive(0.2)
            except KeyboardInterrupt:
                continue
            patience = 10.0
        self._disconnect()

    def submit(self, task: Task) -> None:
        """Take a task and start it when a slot is free."""
        problem = self._slots.problem(task.config)
        if problem:
            self._ended.append(Outcome(task.key, 2, problem))
        else:
            self._queue.append(task)
            self._start()

    def poll(self, seconds: float) -> list[Outcome]:
        """Return the tasks that ended since the last call."""
        deadline = time.monotonic() + seconds
        while True:
            self._start()
            if self._running:
                self._receive(0.0 if self._ended else max(0.0, deadline - time.monotonic()))
            elif not self._ended:
                time.sleep(max(0.0, min(0.05, deadline - time.monotonic())))
            if self._ended or time.monotonic() >= deadline:
                break
        self._start()
        ended, self._ended = self._ended, []
        return ended

    # -- the server -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        parent_end, child_end = socket.socketpair()
        with child_end:
            os.set_inheritable(child_end.fileno(), True)
            environment = os.environ | {"OMP_NUM_THREADS": str(self._threads)}
            environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would start at import
            environment.setdefault("GOMP_SPINCOUNT", "1000")
            # The driver must not be initialised before a fork; counting GPUs through NVML does not touch it.
            environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN.format(path=sys.path), str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                start_new_session=True,
                env=environment,
            )
        self._socket = Connection(parent_end.detach())

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            if not self._running:  # the server may still be importing
                self._server.terminate()
            self._server.wait()
            self._server = None

    def _start(self) -> None:
        # In the order of submission, so that small cells do not keep overtaking one of many devices.
        while self._queue and (slots := self._slots.acquire(self._queue[0].config)) is not None:
            task = self._queue.popleft()
            self._number += 1
            self._running[self._number] = _Running(task, slots)
            self._send(
                Request(self._number, task, {"CUDA_VISIBLE_DEVICES": ",".join(slots[1])}, threads=self._threads),
            )

    def _signal_all(self, signum: int) -> None:
        for number in list(self._running):
            self._send(Request(number, signum=signum))

    def _send(self, order: Request) -> None:
        try:
            if self._socket is None:
                self._connect()
            assert self._socket is not None
            self._socket.send(order)
        except (BrokenPipeError, ConnectionError):
            self._lost()

    def _receive(self, seconds: float) -> None:
        if self._socket is None:
            return
        try:
            while self._socket.poll(seconds):
                self._end(self._socket.recv())
                seconds = 0.0
        except (EOFError, ConnectionError):
            self._lost()

    def _end(self, ended: CellEnded) -> None:
        running = self._running.pop(ended.number)
        self._slots.release(running.slots)
        self._ended.append(ended.outcome or outcome_of_exit(running.task, ended.code))

    def _lost(self) -> None:
        """Report the cells of a dead server, which the kernel has signalled to stop. The next cell starts a server."""
        self._disconnect()
        for running in self._running.values():
            self._slots.release(running.slots)
            self._ended.append(Outcome(running.task.key, 143, "the fork server was killed"))
        self._running.clear()


def _gpu_names(gpus: list[int]) -> list[str]:
    """The names of GPUs by their numbers among the visible ones. Raises ValueError for a number that does not exist."""
    visible = visible_gpus()
    for number in gpus:
        if not 0 <= number < len(visible):
            there = f"there are {len(visible)}, numbered from 0" if visible else "this machine has none"
            raise ValueError(f"executor.gpus={gpus}: no GPU {number}; {there}")
    return [visible[number] for number in dict.fromkeys(gpus)]
