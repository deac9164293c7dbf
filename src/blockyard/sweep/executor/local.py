"""Worker processes on this machine, forked from one that has imported everything.

Source: the fork server of CPython's multiprocessing (docs.python.org/3/library/multiprocessing.html)
Cost: one import for all cells, about 0.25 s for each; a crash or a full memory loses its cell only
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
from blockyard.sweep.executor._deaths import silent
from blockyard.sweep.executor._slots import Places, cores, visible_gpus
from blockyard.sweep.executor._warm import Ended, Order
from blockyard.sweep.executor.base import Executor, Outcome, Task

_PATIENCE = 60.0  # seconds a cell may take to save when it is told to stop
_MAIN = "import sys; sys.path[:] = {path!r}; from blockyard.sweep.executor._warm import main; main()"


@dataclass(frozen=True)
class _Running:
    task: Task
    taken: tuple[int, list[str]]


class LocalExecutor(Executor):
    """A pool of warm processes.

    Options:
        workers: cells at once; null is as many as GPUs (times cells_per_gpu), or without them as cores
        gpus: their numbers; auto is all of them, null hides them from the cells
        cells_per_gpu: small cells that share a GPU
        threads: CPU threads of each cell; null shares the cores out among the workers
    """

    def __init__(
        self,
        *,
        workers: Count | None = None,
        gpus: Literal["auto"] | list[int] | None = "auto",
        cells_per_gpu: Count = 1,
        threads: Count | None = None,
    ) -> None:
        names = [] if gpus is None else visible_gpus() if gpus == "auto" else _named(gpus)
        self._places = Places(workers or len(names) * cells_per_gpu or cores(), names, cells_per_gpu)
        self._threads = threads or max(1, cores() // self._places.workers)
        self._queue: deque[Task] = deque()
        self._running: dict[int, _Running] = {}
        self._ended: list[Outcome] = []
        self._number = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: Connection | None = None

    @property
    def places(self) -> int:
        """Cells at once."""
        return self._places.workers

    def __enter__(self) -> LocalExecutor:
        if self._socket is None:
            self._connect()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell what runs to save and stop; a Ctrl-C meanwhile no longer waits for the step, another for nothing."""
        self._queue.clear()
        patience = _PATIENCE
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            try:
                self._tell(signum)
                until = time.monotonic() + patience
                while self._running and time.monotonic() < until:
                    self._receive(0.2)
            except KeyboardInterrupt:
                continue
            patience = 10.0
        self._disconnect()

    def submit(self, task: Task) -> None:
        """Take a task; it starts when there is a place."""
        problem = self._places.problem(task.config)
        if problem:
            self._ended.append(Outcome(task.key, 2, problem))
        else:
            self._queue.append(task)
            self._start()

    def poll(self, seconds: float) -> list[Outcome]:
        """The tasks that ended since the last call."""
        until = time.monotonic() + seconds
        while True:
            self._start()
            if self._running:
                self._receive(0.0 if self._ended else max(0.0, until - time.monotonic()))
            elif not self._ended:
                time.sleep(max(0.0, min(0.05, until - time.monotonic())))
            if self._ended or time.monotonic() >= until:
                break
        self._start()
        ended, self._ended = self._ended, []
        return ended

    # -- the server -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            environment = os.environ | {"OMP_NUM_THREADS": str(self._threads)}
            environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # whose threads would start at import
            environment.setdefault("GOMP_SPINCOUNT", "1000")
            # Before a fork nobody may speak to the driver; what counts GPUs otherwise would.
            environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN.format(path=sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        self._socket = Connection(ours.detach())

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            if not self._running:  # it may be importing still
                self._server.terminate()
            self._server.wait()
            self._server = None

    def _start(self) -> None:
        # First come, first served: a cell of many devices is not overtaken for ever by small ones.
        while self._queue and (taken := self._places.take(self._queue[0].config)) is not None:
            task = self._queue.popleft()
            self._number += 1
            self._running[self._number] = _Running(task, taken)
            self._send(
                Order(self._number, task, {"CUDA_VISIBLE_DEVICES": ",".join(taken[1])}, threads=self._threads),
            )

    def _tell(self, signum: int) -> None:
        for number in list(self._running):
            self._send(Order(number, signum=signum))

    def _send(self, order: Order) -> None:
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

    def _end(self, ended: Ended) -> None:
        running = self._running.pop(ended.number)
        self._places.give(running.taken)
        self._ended.append(ended.outcome or silent(running.task, ended.code))

    def _lost(self) -> None:
        """The server is gone; the kernel has told the cells to save and stop. The next one gets a new server."""
        self._disconnect()
        for running in self._running.values():
            self._places.give(running.taken)
            self._ended.append(Outcome(running.task.key, 143, "the server of the workers was killed"))
        self._running.clear()


def _named(gpus: list[int]) -> list[str]:
    """The GPUs of these numbers among the visible ones. Raises ValueError for one that is not there."""
    found = visible_gpus()
    for number in gpus:
        if not 0 <= number < len(found):
            there = f"there are {len(found)}, numbered from 0" if found else "there is none"
            raise ValueError(f"executor.gpus={gpus}: no GPU {number}; {there}")
    return [found[number] for number in dict.fromkeys(gpus)]
