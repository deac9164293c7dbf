"""The processes of one run: each trains from the run's frozen config, never from a command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy

from blockyard.engine.faults.peers import ChildWatch
from blockyard.engine.faults.worker_rank import disconnect
from blockyard.engine.lightning.patches import ScriptLauncher, set_threads

ALLOW = "BLOCKYARD_ALLOW"  # JSON: the packages besides our own that the command line allowed
_SET_BY_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", ALLOW)


class RunLauncher(ScriptLauncher):
    """Starts the other processes of this machine as `python -m blockyard _cell RUN_DIR`.

    Lightning's own launcher repeats the command line of this process. Under a sweep or in a notebook that would
    start something else, and an override typed there could differ from the frozen config. Lightning's observer kills
    this process when another one fails, before a reason is recorded; `ChildWatch` takes its place.

    abandon: ends this process where another one failed and this one does not notice; see `ChildWatch`
    """

    def __init__(self, environment: Any, processes: int, nodes: int, folder: Path) -> None:
        super().__init__(environment, processes, nodes)
        self.folder = folder
        self.abandon: Callable[[dict[int, int]], None] | None = None
        self.watch: ChildWatch | None = None

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start the other processes and call `function`."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        self._call_children_scripts()
        self.watch = ChildWatch(self.procs, self.folder, self.abandon)
        self.watch.start()
        set_threads(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def _call_children_scripts(self) -> None:
        environment = self.cluster_environment
        self._check_can_spawn_children()
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["LOCAL_RANK"] = str(environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        command = [sys.executable, "-P", "-m", "blockyard", "_cell", str(self.folder)]
        for local_rank in range(1, self.num_processes):
            self.procs.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(local_rank)}))


class RunDDP(DDPStrategy):
    """DDP: every process holds all weights."""

    def __init__(self, folder: Path, timeout: float) -> None:
        super().__init__(gradient_as_bucket_view=True, timeout=timedelta(seconds=timeout))
        self._folder = folder

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = RunLauncher(self.cluster_environment, self.num_processes, self.num_nodes, self._folder)


class RunFSDP2(ModelParallelStrategy):
    """FSDP2: every process holds a part of each weight; checkpoints are whole."""

    def __init__(self, folder: Path, world: int, timeout: float) -> None:
        super().__init__(
            data_parallel_size=world,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timedelta(seconds=timeout),
        )
        self._folder = folder

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = RunLauncher(self.cluster_environment, self.num_processes, self.num_nodes, self._folder)


@contextlib.contextmanager
def clean_environment() -> Iterator[None]:
    """Restore the variables that a launch sets, so that another run can follow in this process."""
    before = {name: os.environ.get(name) for name in _SET_BY_LAUNCH}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def join_processes(trainer: pl.Trainer, *, failed: bool) -> dict[int, int]:
    """Wait for the other processes after training; return the exit codes of those that ended wrongly, by rank.

    After a failure of this process the others are killed instead of waited for.
    """
    launcher = trainer.strategy.launcher
    children: list[subprocess.Popen[bytes]] = list(getattr(launcher, "procs", []))
    if isinstance(launcher, RunLauncher) and launcher.watch is not None:
        launcher.watch.close()
        launcher.procs.clear()
    disconnect()
    endings = {}
    until = time.monotonic() + (3.0 if failed else 30.0)
    for rank, child in enumerate(children, start=1):
        try:
            code = child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:  # it hangs, or was stopped
            child.kill()
            child.wait()
            continue
        if code or failed:  # an exit code 0 is wrong too where the run was not over
            endings[rank] = code
    return endings
