"""Worker processes on this machine, forked from a server that has imported everything.

Source: the fork server of CPython's multiprocessing (docs.python.org/3/library/multiprocessing.html)
Cost: one import for all cells, about 0.25 s for each cell; a crash or a lack of memory loses only its own cell
"""

from __future__ import annotations

import copy
import json
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from blockyard.config.defaults import leave_out_defaults
from blockyard.config.machine import cpu_cores, exported_threads
from blockyard.config.size_matching import ModelSizes
from blockyard.config.tree import Node
from blockyard.contracts import Count, Positive, Processes, Threads
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor._fork_messages import CellEnded, Request
from blockyard.sweep.executor._outcomes import outcome_of_exit, outcome_of_timeout
from blockyard.sweep.executor._server_process import ServerLostError, ServerProcess
from blockyard.sweep.executor._slots import DeviceSlots, requested_devices, visible_gpus
from blockyard.sweep.executor.base import Executor

AUTO = 8  # cells of one process under cells_per_process=auto
_PATIENCE = 60.0  # seconds that a cell has to save after a stop signal
_SECOND_PATIENCE = 10.0  # seconds that a cell has to end after a second signal
_KILL_PATIENCE = 10.0  # seconds that the server has to kill a cell
# Keys in which cells of one process may differ: first weights, order of data, optimizer, logging. The first step
# compares each run with a run that is alone, so that a difference in the forward pass is noticed.
_FREE_KEYS = (
    *("seed", "optimizer", "schedule", "callbacks", "logger", "name", "tags", "force"),
    *("trainer.order_seed", "data.split_seed"),
    *("model.init_std", "model.init_shape", "model.zero_branches", "head.zero"),
)
# Options of the trainer -> values with which a run can share its process.
_SHARED_TRAINER = {
    "devices": (1,),
    "num_nodes": (1,),
    "strategy": ("auto",),
    "compile": (False,),
    "checkpoint_blocks": (False,),
    "num_workers": (0,),
    "attention": ("auto",),
    "precision": ("auto", "32", "bf16-mixed"),
    "profile": (False,),
    "max_seconds": (None,),  # the clock of a run that shares its process is that of all of them
}
_RANDOM_RATES = ("dropout", "drop_path")  # options that are rates of random draws in a forward pass
# FLOPs of a training step from which sharing saves little or nothing: by docs/performance.md on a CPU, where a step of
# 6e9 took as long together, and on a GPU by measurements of plain torch, which gained at all sizes up to this one.
_LARGE_STEP = {"cpu": 1e9, "gpu": 1e10}
_PASSES = 3  # one forward, and two backward: for activations and for weights


class LocalExecutor(Executor):
    """Runs cells in a pool of warm processes.

    Options:
        workers: cells in parallel; null is the number of GPUs (times cells_per_gpu), or of cores without GPUs
        gpus: their numbers; auto uses all of them, null hides them from the cells
        cells_per_gpu: small cells that share a GPU
        cells_per_process: small cells that share a process, where their weights are stacked and one training step
            serves all. They may differ in seed, optimizer, schedule and scale of the first weights; run.json says what
            was taken together, and why not. auto is 8 where the FLOPs of a step are few enough to gain by it
        threads: CPU threads of each cell; null takes OMP_NUM_THREADS, or divides the cores among the workers
        timeout_min: minutes after which a cell has failed; it saves first, or is killed; null sets no limit
    """

    def __init__(
        self,
        *,
        workers: Processes | None = None,
        gpus: Literal["auto"] | list[int] | None = "auto",
        cells_per_gpu: Count = 1,
        cells_per_process: Literal["auto"] | Count = 1,
        threads: Threads | None = None,
        timeout_min: Positive | None = None,
    ) -> None:
        if gpus is None:
            names = []
        elif gpus == "auto":
            names = visible_gpus()
        else:
            names = _gpu_names(gpus)
        self._slots = DeviceSlots(workers or len(names) * cells_per_gpu or cpu_cores(), names, cells_per_gpu)
        # All cells together have one thread for each core: more threads wait for each other.
        self._threads = threads or exported_threads() or max(1, cpu_cores() // self._slots.workers)
        self._timeout_min = timeout_min
        self._per_process = AUTO if cells_per_process == "auto" else cells_per_process
        self._sizes = ModelSizes() if cells_per_process == "auto" else None
        self._queue: deque[Task] = deque()
        self._running: dict[int, _Running] = {}
        self._ended: list[Outcome] = []
        self._number = 0
        self._server = ServerProcess(self._threads)

    @property
    def capacity(self) -> int:
        """Cells in parallel."""
        return self._slots.workers * self._per_process

    @property
    def parallel(self) -> int:
        """Processes in parallel. Cells of one process share its seconds."""
        return self._slots.workers

    @property
    def threads(self) -> int:
        """CPU threads of each cell."""
        return self._threads

    def __enter__(self) -> LocalExecutor:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell running cells to save and stop. Ctrl-C meanwhile interrupts their step, a second one kills them."""
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
            patience = _SECOND_PATIENCE
        self._server.close(idle=not self._running)

    def submit(self, task: Task) -> None:
        """Take a task and start it when a slot is free."""
        problem = self._slots.problem(task.config)
        if problem:
            self._ended.append(Outcome(task.key, 2, problem))
        else:
            self._queue.append(task)
            if self._per_process == 1:  # else it waits until `poll` for others that can share its process
                self._start()

    def poll(self, seconds: float) -> list[Outcome]:
        """Return the tasks that ended since the last call."""
        deadline = time.monotonic() + seconds
        while True:
            self._start()
            self._stop_overdue()
            if self._running:
                left = max(0.0, deadline - time.monotonic())
                self._receive(0.0 if self._ended else left)
            elif not self._ended:
                time.sleep(max(0.0, min(0.05, deadline - time.monotonic())))
            if self._ended or time.monotonic() >= deadline:
                break
        self._start()  # in the slots of the cells that have just ended
        ended, self._ended = self._ended, []
        return ended

    def _start(self) -> None:
        # In the order of submission, so that small cells do not keep overtaking a cell of many devices.
        while self._queue:
            slots = self._slots.acquire(self._queue[0].config)
            if slots is None:
                return
            # Not all into one process while another slot would be left idle.
            share = math.ceil(len(self._queue) / self._slots.workers)
            most = max(min(self._per_process, share), min(2, self._per_process))
            chosen, alone = together(self._queue, most, self._too_large)
            tasks = dict(enumerate(chosen, start=self._number + 1))
            self._number += len(chosen)
            in_process = set(tasks)
            for number, task in tasks.items():
                self._running[number] = _Running(task, slots, in_process)
            first = min(tasks)
            others = {number: task for number, task in tasks.items() if number != first}
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(slots[1])}
            self._send(Request(first, tasks[first], environment, threads=self._threads, others=others, alone=alone))

    def _too_large(self, config: Node) -> str | None:
        """Return why cells of this config run alone under cells_per_process=auto, or None."""
        if self._sizes is None:
            return None
        gpu = bool(self._slots.gpus) and requested_devices(config)[1]
        return large_step(config, self._sizes, gpu=gpu)

    def _stop_overdue(self) -> None:
        """Tell cells past their time limit to save and stop. Kill a cell that does not, and a server that hangs."""
        if self._timeout_min is None:
            return
        now = time.monotonic()
        for number, running in list(self._running.items()):
            if running.killed is not None:
                if now - running.killed > _KILL_PATIENCE:  # the server hangs
                    self._lost()
                    return
            elif running.stopped is not None:
                if now - running.stopped > _PATIENCE:
                    running.killed = now
                    self._send(Request(number, signum=signal.SIGKILL))
            elif running.started is not None and now - running.started > self._timeout_min * 60:
                running.stopped = now
                self._send(Request(number, signum=signal.SIGTERM))

    def _signal_all(self, signum: int) -> None:
        for number in list(self._running):
            if number in self._running:  # none is left if the server has died meanwhile
                self._send(Request(number, signum=signum))

    def _send(self, request: Request) -> None:
        try:
            self._server.send(request)
        except ServerLostError:
            self._lost()

    def _receive(self, seconds: float) -> None:
        try:
            for message in self._server.receive(seconds):
                if isinstance(message, CellEnded):
                    self._end(message)
                elif message.number in self._running:
                    self._running[message.number].started = time.monotonic()
        except ServerLostError:
            self._lost()

    def _end(self, ended: CellEnded) -> None:
        running = self._running.pop(ended.number)
        running.in_process.discard(ended.number)
        if not running.in_process:
            self._slots.release(running.slots)
        outcome = ended.outcome or outcome_of_exit(running.task, ended.code)
        if outcome.code:
            outcome = self._overdue(running) or outcome
        self._ended.append(outcome)

    def _overdue(self, running: _Running) -> Outcome | None:
        """Return the outcome of a cell that was stopped at its time limit; None for another cell."""
        if running.stopped is None or self._timeout_min is None:
            return None
        return outcome_of_timeout(running.task, self._timeout_min, killed=running.killed is not None)

    def _lost(self) -> None:
        """Report the cells of a dead server. The kernel has told them to stop. The next cell starts a new server."""
        self._server.close(idle=False)
        for number, running in self._running.items():
            running.in_process.discard(number)
            if not running.in_process:
                self._slots.release(running.slots)
            lost = Outcome(running.task.key, 143, "the fork server was killed")
            self._ended.append(self._overdue(running) or lost)
        self._running.clear()


@dataclass
class _Running:
    """A cell and the times at which its process started, was told to stop at its time limit, and was killed.

    in_process: the numbers of the running cells of its process, its own included
    """

    task: Task
    slots: tuple[int, list[str]]
    in_process: set[int]
    started: float | None = None
    stopped: float | None = None
    killed: float | None = None


def _gpu_names(gpus: list[int]) -> list[str]:
    """Return the names of GPUs by their numbers among the visible ones. Raises ValueError for an unknown number."""
    visible = visible_gpus()
    for number in gpus:
        if not 0 <= number < len(visible):
            available = f"there are {len(visible)}, numbered from 0" if visible else "this machine has none"
            raise ValueError(f"executor.gpus={gpus}: no GPU {number}; {available}")
    return [visible[number] for number in dict.fromkeys(gpus)]


def large_step(config: Node, sizes: ModelSizes, *, gpu: bool) -> str | None:
    """Return why the training steps of a run with this config are not worth taking together, or None."""
    flops = sizes.measure(config, "flops")
    if flops is None:
        return f"the FLOPs of its model are not known: {sizes.failure(config, 'flops')}"
    step = float(_PASSES * flops * (config.get("data") or {}).get("batch_size", 1))
    limit = _LARGE_STEP["gpu" if gpu else "cpu"]
    if step <= limit:
        return None
    return f"a step of {step:.1e} FLOPs is too large to gain: cells_per_process=auto takes those up to {limit:.0e}"


def obstacle(config: Node) -> str | None:
    """Return why a run with this config takes no step together with others, or None."""
    trainer = config.get("trainer") or {}
    for option, values in _SHARED_TRAINER.items():
        if option in trainer and str(trainer[option]) not in map(str, values):
            return f"trainer.{option}={trainer[option]} is for a run in a process of its own"
    for key, rate in _rates(config, ()):
        if rate:
            return f"{key}={rate} draws random numbers in each forward pass"
    if (config.get("objective") or {}).get("teacher") is not None:
        return "objective.teacher is called at each step"
    return None


def _rates(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Yield the rates of random draws in a config, by key."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in _RANDOM_RATES:
                yield ".".join((*path, name)), value
            else:
                yield from _rates(value, (*path, str(name)))


def together(
    queue: deque[Task], most: int, refusal: Callable[[Node], str | None] = lambda _: None
) -> tuple[list[Task], str | None]:
    """Take the first task of a queue and the others that can share its process, `most` tasks in all.

    Return them, and the reason if the first one stays alone although `most` is greater than one.

    refusal: returns another reason why a run with a config shares no process, or None
    """
    first = queue.popleft()
    if most == 1:
        return [first], None
    reason = obstacle(first.config) or refusal(first.config)
    if reason is not None:
        return [first], reason
    form = _form(first)
    others = [task for task in queue if _form(task) == form][: most - 1]
    if not others:
        return [first], "no other cell of its form was waiting"
    for task in others:
        queue.remove(task)
    return [first, *others], None


def _form(task: Task) -> str:
    """Return the part of a config that all cells of one process share, as text."""
    config = copy.deepcopy(task.config)
    for key in _FREE_KEYS:
        *parents, name = key.split(".")
        node = config
        for parent in parents:
            node = node.get(parent) or {}
        node.pop(name, None)
    if "init" in config:
        # A config has the node where one of its options is set, and the seed of the first weights may be the only one.
        config["init"]["seed"] = None
        leave_out_defaults(config, {})
    return json.dumps(config, sort_keys=True, default=str)
