"""The processes of one run: each trains from the run's frozen config, never from a command line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

ALLOW = "BLOCKYARD_ALLOW"  # JSON: the packages besides our own that the command line allowed
_SET_BY_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", ALLOW)


class RunLauncher(_SubprocessScriptLauncher):
    """Starts the other processes of this machine as `python -m blockyard _cell RUN_DIR`.

    Lightning's own launcher repeats the command line of this process. Under a sweep or in a notebook that would
    start something else, and an override typed there could differ from the frozen config.
    """

    def __init__(self, environment: Any, processes: int, nodes: int, folder: Path) -> None:
        super().__init__(environment, processes, nodes)
        self.folder = folder

    def _call_children_scripts(self) -> None:
        environment = self.cluster_environment
        self._check_can_spawn_children()
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["LOCAL_RANK"] = str(environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        command = [sys.executable, "-m", "blockyard", "_cell", str(self.folder)]
        for local_rank in range(1, self.num_processes):
            self.procs.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(local_rank)}))


class RunDDP(DDPStrategy):
    """DDP: every process holds all weights."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gradient_as_bucket_view=True)
        self._folder = folder

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = RunLauncher(self.cluster_environment, self.num_processes, self.num_nodes, self._folder)


class RunFSDP2(ModelParallelStrategy):
    """FSDP2: every process holds a part of each weight; checkpoints are whole."""

    def __init__(self, folder: Path, world: int) -> None:
        super().__init__(data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False)
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


def join_processes(trainer: pl.Trainer, *, failed: bool) -> str | None:
    """Wait for the other processes after training; return how the first that failed ended, or None.

    After a failure of this process the others are killed instead of waited for.
    """
    launcher = trainer.strategy.launcher
    children: list[subprocess.Popen[bytes]] = list(getattr(launcher, "procs", []))
    if launcher is not None and children:
        # Lightning's observer thread kills this process when a child fails; from here on we wait for them ourselves.
        launcher.procs.clear()  # type: ignore[attr-defined]
    _disconnect()
    failure = None
    for rank, child in enumerate(children, start=1):
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(3.0 if failed else 30.0)
        if code:
            ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            failure = failure or f"process {rank} {ending}"
        elif code is None:
            child.send_signal(signal.SIGKILL)
            child.wait()
    return failure


def _disconnect() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.distributed.destroy_process_group()


def abort_rank(seconds: float = 10.0) -> None:
    """In a failed process that is not the main one: close the connections, so that the main one notices.

    Then give the main process time to write the reason down: Lightning kills it soon after this process has ended.
    """
    _disconnect()
    parent, until = os.getppid(), time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.1)
