"""Ray tasks, one for each cell, on this machine or on a cluster whose nodes share the output folder.

Source: Moritz et al. 2018, Ray: A Distributed Framework for Emerging AI Applications (arXiv 1712.05889)
Reference: ray.remote
Cost: about 5 s to start Ray here; its workers stay warm between cells without a GPU
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

from blockyard.contracts import Count, NonNegative
from blockyard.errors import UserError
from blockyard.sweep.execution.cell import execute
from blockyard.sweep.executor._deaths import lost
from blockyard.sweep.executor._slots import cores, wanted
from blockyard.sweep.executor._warm import use_threads
from blockyard.sweep.executor.base import Executor, Outcome, Task

_PATIENCE = 60.0  # seconds a cell may take to save when it is told to stop


class RayExecutor(Executor):
    """Cells as Ray tasks.

    Options:
        address: of a running cluster, such as auto or ray://head:10001; null starts Ray on this machine
        workers: cells at once; null is as many as there are CPUs for
        threads: CPUs of each device of a cell
        gpus: for each device of a cell, 0.5 for two cells on one; auto is 1 where Ray has any
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: Count | None = None,
        threads: Count = 1,
        gpus: Literal["auto"] | NonNegative = "auto",
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("executor=ray needs ray: pip install 'blockyard[ray]'; or take executor=local") from error
        self._ray: Any = ray
        self._address = address
        self._workers = workers
        self._threads = threads
        self._gpus = gpus
        self._running: dict[Any, Task] = {}
        self._ended: list[Outcome] = []
        self._there: dict[str, float] = {}
        self._started = False

    @property
    def places(self) -> int:
        """Cells at once."""
        return self._workers or max(1, int(self._there.get("CPU", cores())) // self._threads)

    def __enter__(self) -> RayExecutor:
        if not self._started:
            local = {"num_cpus": self.places * self._threads} if self._address is None else {}
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # as it will be; silences a warning
            logging.getLogger("ray").setLevel(logging.ERROR)
            with _own_signals():
                try:
                    self._ray.init(
                        address=self._address or "local",
                        include_dashboard=False if self._address is None else None,
                        log_to_driver=False,
                        logging_level="ERROR",
                        configure_logging=False,
                        **local,
                    )
                except (ConnectionError, RuntimeError, ValueError) as error:
                    raise UserError(f"executor.address={self._address}: {error}") from error
            self._started, self._there = True, self._ray.cluster_resources()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell what runs to save and stop; Ctrl-C no longer waits for it."""
        for force, patience in ((False, _PATIENCE), (True, 10.0)):
            if not self._running:
                break
            try:
                for reference in self._running:
                    self._ray.cancel(reference, force=force)
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=patience)
                self._take()
            except KeyboardInterrupt:
                continue
        self._running.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False

    def submit(self, task: Task) -> None:
        """Take a task; Ray starts it when its CPUs and GPUs are free."""
        devices, gpu = wanted(task.config)
        each = self._gpus if self._gpus != "auto" else float(self._there.get("GPU", 0) > 0)
        cpus, gpus = devices * self._threads, devices * each if gpu else 0
        for name, amount in (("CPU", cpus), ("GPU", gpus)):
            if amount > self._there.get(name, 0):
                has = f"Ray has {self._there.get(name, 0):g} {name}s"
                self._ended.append(Outcome(task.key, 2, f"this cell takes {amount:g} {name}s, {has}"))
                return
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_cell)
        self._running[remote.remote(task, self._threads, os.getcwd(), sys.path)] = task

    def poll(self, seconds: float) -> list[Outcome]:
        """The tasks that ended since the last call."""
        if self._running and not self._ended:
            self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        elif not self._ended:
            time.sleep(min(seconds, 0.05))
        self._take()
        ended, self._ended = self._ended, []
        return ended

    def _take(self) -> None:
        if not self._running:
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        for reference in ready:
            task = self._running.pop(reference)
            try:
                self._ended.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                said = str(error).strip().splitlines() or [""]
                reason = f"Ray lost it: {type(error).__name__}: {said[0][:200]}"
                self._ended.append(lost(task, 1, reason, failed=False))


def _cell(task: Task, threads: int, folder: str, path: list[str]) -> Outcome:
    """On a worker, wherever it is."""
    with contextlib.suppress(OSError):
        os.chdir(folder)  # the data's paths may start there
    sys.path.extend(entry for entry in path if entry not in sys.path)
    use_threads(threads)
    return execute(task)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray's start takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
