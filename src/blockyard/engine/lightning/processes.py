"""The processes of one run: each trains from the run's frozen config, never from a command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytorch_lightning.plugins.environments import (
    LightningEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from blockyard.engine.faults.peers import ChildWatch
from blockyard.engine.faults.worker_rank import disconnect

ALLOW = "BLOCKYARD_ALLOW"  # JSON: the packages besides our own that the command line allowed
_SET_BY_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", ALLOW)
# The environments in which Lightning leaves the start of processes to a launcher.
_LAUNCHERS = (TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment)


class ChildProcesses:
    """The other processes of this machine, started as `python -m blockyard _cell RUN_DIR`.

    Lightning's own launcher repeats the command line of this process. Under a sweep or in a notebook that would
    start something else, and an override typed there could differ from the frozen config. Lightning's observer kills
    this process when another one fails, before a reason is recorded; `ChildWatch` takes its place.

    Nothing is started where torchrun, SLURM or a user has started each process.

    devices: processes of each machine; world: processes of all machines
    """

    def __init__(self, folder: Path, devices: int, world: int) -> None:
        self._folder = folder
        self._ranks = range(0)
        self._children: list[subprocess.Popen[bytes]] = []
        self._watch: ChildWatch | None = None
        if "LOCAL_RANK" in os.environ or any(launcher.detect() for launcher in _LAUNCHERS):
            return
        self._ranks = range(1, devices)
        # A trainer that is built with these in the environment starts no processes itself.
        environment = LightningEnvironment()
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["LOCAL_RANK"] = "0"
        os.environ["WORLD_SIZE"] = str(world)

    def start(self, abandon: Callable[[dict[int, int]], None] | None) -> None:
        """Start the processes, and watch them.

        abandon: ends this process where another one failed and this one does not notice; see `ChildWatch`
        """
        # -P: a file in the current folder must not take the place of a package.
        command = [sys.executable, "-P", "-m", "blockyard", "_cell", str(self._folder)]
        for local_rank in self._ranks:
            self._children.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(local_rank)}))
        if self._children:
            self._watch = ChildWatch(self._children, self._folder, abandon)
            self._watch.start()

    def join(self, *, failed: bool) -> dict[int, int]:
        """Wait for the processes after training; return the exit codes of those that ended wrongly, by rank.

        After a failure of this process the others are killed instead of waited for.
        """
        if self._watch is not None:
            self._watch.close()
        disconnect()
        endings = {}
        # After a success the others have only to end by themselves; after a failure they may hang.
        until = time.monotonic() + (3.0 if failed else 30.0)
        for rank, child in enumerate(self._children, start=1):
            try:
                code = child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:  # it hangs, or was stopped
                child.kill()
                child.wait()
                continue
            if code or failed:  # an exit code 0 is wrong too where the run was not over
                endings[rank] = code
        return endings


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
