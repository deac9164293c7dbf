"""Ray tasks, one for each cell, on this machine or on a cluster whose nodes share the output folder.

Source: Moritz et al. 2018, Ray: A Distributed Framework for Emerging AI Applications (arXiv 1712.05889)
Reference: ray.remote
Cost: about 5 s to start Ray on this machine; workers stay warm between cells that use no GPU
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, Literal

from blockyard.config.machine import cpu_cores
from blockyard.config.untrusted import package_finder
from blockyard.contracts import Count, CountOrZero, NonNegative, Text
from blockyard.errors import UserError, first_line
from blockyard.sweep.cell.execute import execute
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor._fork_server import set_threads
from blockyard.sweep.executor._outcomes import LOST, lost_outcome
from blockyard.sweep.executor._slots import requested_devices
from blockyard.sweep.executor.base import Executor

log = logging.getLogger("blockyard")

_CONNECT_TIMEOUT = 10.0  # seconds in which a cluster accepts a connection
_PATIENCE = 60.0  # seconds that a cell has to save after a stop signal
_KILL_PATIENCE = 10.0  # seconds that Ray has to kill a cell
_ATTEMPTS = 3  # to start the server of a client, whose process may die at its start on a busy head node
_PAUSE = 2.0  # seconds between attempts
_NO_SERVER = "Starting Ray client server failed"


class RayExecutor(Executor):
    """Runs cells as Ray tasks.

    Options:
        address: a running cluster, such as auto or ray://head:10001; null starts Ray on this machine. One with token
            authentication takes RAY_AUTH_MODE=token and the token, as Ray documents it
        workers: cells in parallel; null is as many as the CPUs allow
        threads: CPUs of each device of a cell
        gpus: GPUs for each device of a cell, 0.5 for two cells on one GPU; auto is 1 where Ray has GPUs
        retries: how often a cell goes on elsewhere whose node or process died, before it counts as interrupted
    """

    def __init__(
        self,
        *,
        address: Text | None = None,
        workers: Count | None = None,
        threads: Count = 1,
        gpus: Literal["auto"] | NonNegative = "auto",
        retries: CountOrZero = 3,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("executor=ray needs ray: pip install 'blockyard[ray]', or use executor=local") from error
        self._ray: Any = ray
        self._address = address
        self._workers = workers
        self._threads = threads
        self._gpus = gpus
        self._retries = retries
        self._running: dict[Any, Task] = {}
        self._died: Counter[str] = Counter()  # how often the node or process of a run died
        self._ended: list[Outcome] = []
        self._stopping = False
        self._resources: dict[str, float] = {}
        self._started = False

    @property
    def capacity(self) -> int:
        """Cells in parallel."""
        return self._workers or max(1, int(self._resources.get("CPU", cpu_cores())) // self._threads)

    def __enter__(self) -> RayExecutor:
        if not self._started:
            check_answers(self._address)
            resources = {"num_cpus": self.capacity * self._threads} if self._address is None else {}
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # the coming default; silences a warning
            logging.getLogger("ray").setLevel(logging.ERROR)
            # Ray puts the working folder on the path of its workers before code of this package runs there. So it
            # starts in a folder without modules, and `_cell` enters the real one later.
            with _restored_signals(), contextlib.chdir(sys.prefix):
                self._join(resources)
            self._started = True
            self._resources = self._ray.cluster_resources()
        return self

    def _join(self, resources: dict[str, int]) -> None:
        """Start Ray here with these resources, or join the cluster. Raises UserError where that is not possible."""
        # Early versions of Ray lack this exception.
        authentication_error = getattr(self._ray.exceptions, "AuthenticationError", ConnectionError)
        with tempfile.TemporaryFile("w+", errors="replace") as log_file:
            try:
                with _errors_to(None if self._address is None else log_file):
                    self._start(resources)
            except (authentication_error, ConnectionError, RuntimeError, ValueError) as error:
                log_file.seek(0)
                text = f"{error} {log_file.read()}"
                if type(error).__name__ == "AuthenticationError" or "InvalidAuthToken" in text:
                    reason = token_problem()
                else:
                    reason = reason_of(error)
                    if "client connection timeout" in text:  # a client learns no more than this
                        reason += f"; if it asks for a token: {token_problem()}"
                raise UserError(f"executor.address={self._address}: {reason}") from error
            log_file.seek(0)
            sys.stderr.write(log_file.read())

    def _start(self, resources: dict[str, int]) -> None:
        """Call `ray.init`, again where the cluster's head could not start the server of a client."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                self._ray.init(
                    address=self._address or "local",
                    include_dashboard=False if self._address is None else None,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                    **resources,
                )
            except ConnectionError as error:
                if not attempts_left or _NO_SERVER not in str(error):
                    raise
                time.sleep(_PAUSE)
            else:
                return

    def __exit__(self, *error: object) -> None:
        """Tell running cells to save and stop; Ctrl-C kills them."""
        self._stopping = True
        for force, patience in ((False, _PATIENCE), (True, _KILL_PATIENCE)):
            if not self._running:
                break
            try:
                for reference in self._running:
                    self._ray.cancel(reference, force=force)
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=patience)
                self._collect()
            except KeyboardInterrupt:
                continue
        self._running.clear()
        self._stopping = False
        if self._started:
            self._ray.shutdown()
            self._started = False

    def submit(self, task: Task) -> None:
        """Take a task; Ray starts it when its CPUs and GPUs are free."""
        devices, gpu = requested_devices(task.config)
        cpus = devices * self._threads
        gpus: float = 0
        if gpu:
            gpus_per_device = self._gpus
            if gpus_per_device == "auto":
                gpus_per_device = 1 if self._resources.get("GPU", 0) > 0 else 0
            gpus = devices * gpus_per_device
        for name, amount in (("CPU", cpus), ("GPU", gpus)):
            available = self._resources.get(name, 0)
            if amount > available:
                reason = f"this cell needs {amount:g} {name}s; Ray has {available:g}"
                self._ended.append(Outcome(task.key, 2, reason))
                return
        # Ray does not retry: `_lost` does, and knows how often it has, and whether the sweep is stopping.
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_cell)
        self._running[remote.remote(task, self._threads, os.getcwd(), sys.path, package_finder.described())] = task

    def poll(self, seconds: float) -> list[Outcome]:
        """Return the tasks that ended since the last call."""
        if self._running and not self._ended:
            self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        elif not self._ended:
            time.sleep(min(seconds, 0.05))
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def _collect(self) -> None:
        if not self._running:
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        for reference in ready:
            task = self._running.pop(reference)
            try:
                self._ended.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                self._lost(task, error)

    def _lost(self, task: Task, error: Exception) -> None:
        """Start a cell again after the death of its node or process, else or after too many deaths report it."""
        errors = self._ray.exceptions
        died = isinstance(error, errors.NodeDiedError | errors.WorkerCrashedError | errors.OutOfMemoryError)
        text = " ".join(str(error).split())
        if died:
            text = text.partition(". ")[0]  # advice follows
        reason = f"{type(error).__name__}: {text[:200]}"
        if died and not self._stopping and self._died[task.key] < self._retries:
            self._died[task.key] += 1
            log.warning("%s goes on elsewhere: %s", task.key, reason)
            self.submit(task)
        else:
            self._ended.append(lost_outcome(task, LOST, f"Ray lost the cell: {reason}", failed=False))


def _cell(task: Task, threads: int, folder: str, path: list[str], packages: str) -> Outcome:
    """Run a cell on a Ray worker."""
    with contextlib.suppress(OSError):
        os.chdir(folder)  # paths of data may be relative to it
    sys.path.extend(entry for entry in path if entry not in sys.path)
    package_finder.install(packages)
    set_threads(threads)
    return execute(task)


def check_answers(address: str | None) -> None:
    """Raise UserError where nothing answers at HOST:PORT. Ray itself would try for minutes."""
    named = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
    if named is None:
        return
    try:
        socket.create_connection((named[1].strip("[]"), int(named[2])), timeout=_CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"executor.address={address}: no cluster answers there ({reason})") from error


def reason_of(error: Exception) -> str:
    """Return the message of an error of Ray in one line."""
    # Ray's client gets the traceback of the server, whose last error is the cause.
    errors = re.findall(r"^[\w.]*(?:Error|Exception): (.+)$", str(error), re.MULTILINE)
    text = errors[-1] if errors and "Traceback" in str(error) else first_line(error)
    return text.replace("detailed logs.", "details, among Ray's logs on the head node")


def token_problem() -> str:
    """Return why a cluster that asks for a token refuses this process, and where Ray looks for the token."""
    sources = "RAY_AUTH_TOKEN, from the file that RAY_AUTH_TOKEN_PATH names, or from ~/.ray/auth_token"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return f"the cluster asks for a token; set RAY_AUTH_MODE=token, and Ray takes the token from {sources}"
    if "RAY_AUTH_TOKEN" in os.environ:
        name = "RAY_AUTH_TOKEN"
    elif os.environ.get("RAY_AUTH_TOKEN_PATH"):
        name = f"the file {os.environ['RAY_AUTH_TOKEN_PATH']} (RAY_AUTH_TOKEN_PATH)"
    else:
        name = "the file ~/.ray/auth_token"
    return f"{name} has no token that the cluster takes; Ray takes it from {sources}"


@contextlib.contextmanager
def _errors_to(file: IO[str] | None) -> Iterator[None]:
    """Send the standard error of this process to a file, Ray's own code included. None changes nothing."""
    # Ray repeats a warning every second while it cannot join a cluster.
    if file is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray replaces the handler of SIGTERM at its start."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
