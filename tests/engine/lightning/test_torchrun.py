"""torchrun on two nodes, which are two agents on this machine: the loss of one process, a lost node, a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import rows, run
from tests.support.every import every
from tests.support.tiny import TINY

pytestmark = pytest.mark.schedulers

LONGEST = 600.0  # seconds, on a busy machine
NO_DROPOUT = "token_mixer.dropout=0.0"
STORES_APART = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LONG = ("trainer.max_steps=1500", "trainer.max_epochs=null", "trainer.eval_every=20", "trainer.log_every=20")


class Nodes:
    """Two agents of torchrun, each of which starts one process of a run."""

    def __init__(self, outputs: Path, kind: str, *overrides: str, restarts: int = 0) -> None:
        self.outputs = outputs
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        keys = {override.partition("=")[0] for override in overrides} | {"trainer", "token_mixer.dropout"}
        defaults = [override for override in TINY if override.partition("=")[0] not in keys]
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"),
            *(f"--max-restarts={restarts}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"),
            *("--rdzv-id=test", "--local-addr=127.0.0.1", "-m", "blockyard", "train", f"trainer={kind}"),
            *("trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=2", NO_DROPOUT, *defaults),
            *(f"outputs={outputs}", *overrides),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **STORES_APART}
        outputs.mkdir(parents=True, exist_ok=True)
        self.agents = []
        for number in range(2):
            with open(outputs / f"agent-{number}", "wb") as log:
                self.agents.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )

    def wait(self) -> list[int]:
        """The exit codes of the agents."""
        until = time.monotonic() + LONGEST
        return [agent.wait(max(0.0, until - time.monotonic())) for agent in self.agents]

    def output(self) -> str:
        """What the agents and their processes printed."""
        return "".join((self.outputs / f"agent-{number}").read_text(errors="replace") for number in range(2))

    def run_folder(self) -> RunFolder:
        """The run, whose folder must be there."""
        (path,) = self.outputs.glob("*/s0")
        return RunFolder.open(path)

    def wait_for_checkpoint(self, step: int) -> None:
        """Until the run has saved a step."""
        until = time.monotonic() + LONGEST
        while time.monotonic() < until:
            folder = next(self.outputs.glob("*/s0/checkpoints"), None)
            if folder is not None and (newest_good(folder).step or 0) >= step:
                return
            assert any(agent.poll() is None for agent in self.agents), self.output()
            time.sleep(0.3)
        raise AssertionError(self.output())

    def worker(self, rank: int) -> tuple[int, int]:
        """The agent of a rank, by number, and the process id of the rank."""
        for number, agent in enumerate(self.agents):
            for pid in _descendants(agent.pid):
                environment = _read(Path(f"/proc/{pid}/environ"))
                if f"\0RANK={rank}\0".encode() in b"\0" + environment:
                    return number, pid
        raise AssertionError(f"no process of rank {rank}")

    def stop(self) -> None:
        """Kill what is left."""
        for agent in self.agents:
            for pid in [*_descendants(agent.pid), agent.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            agent.wait()


def _descendants(pid: int) -> list[int]:
    descendants = []
    for child in _read(Path(f"/proc/{pid}/task/{pid}/children")).split():
        descendants += [int(child), *_descendants(int(child))]
    return descendants


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def started() -> Iterator[list[Nodes]]:
    nodes: list[Nodes] = []
    yield nodes
    for each in nodes:
        each.stop()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_nodes_follow_the_loss_of_one_process(tmp_path: Path, started: list[Nodes], kind: str) -> None:
    one = run(tmp_path / "one", NO_DROPOUT)
    nodes = Nodes(tmp_path / "two", kind)
    started.append(nodes)
    assert nodes.wait() == [0, 0], nodes.output()
    run_folder = nodes.run_folder()
    assert run_folder.status.state == "done"
    assert run_folder.summary()["processes"] == 2
    assert run_folder.identity == one.identity
    for row, expected in zip(rows(run_folder), rows(one), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)


def test_a_lost_node_ends_the_run_with_a_reason(tmp_path: Path, started: list[Nodes]) -> None:
    nodes = Nodes(tmp_path, "ddp", *LONG, "trainer.timeout=30")
    started.append(nodes)
    nodes.wait_for_checkpoint(40)
    number, pid = nodes.worker(1)
    nodes.agents[number].kill()
    os.kill(pid, signal.SIGKILL)
    assert every(nodes.wait()), nodes.output()
    status = nodes.run_folder().status
    if status.state == "interrupted":  # torchrun's store was on the lost node, and the other agent saw it first
        assert "SIGTERM" in str(status.reason), status
    else:
        assert status.state == "failed", status
        assert "process 1" in str(status.reason)
    assert newest_good(nodes.run_folder().checkpoints).step


def test_a_restart_goes_on_from_the_last_checkpoint(tmp_path: Path, started: list[Nodes]) -> None:
    nodes = Nodes(tmp_path, "ddp", *LONG, restarts=2)
    started.append(nodes)
    nodes.wait_for_checkpoint(40)
    _, pid = nodes.worker(1)
    os.kill(pid, signal.SIGKILL)
    assert nodes.wait() == [0, 0], nodes.output()
    run_folder = nodes.run_folder()
    assert run_folder.status.state == "done"
    assert run_folder.summary()["steps"] == 1500
    (resumed,) = run_folder.facts()["resumes"]
    assert "process 1" in resumed["was"] or "interrupted" in resumed["was"], resumed["was"]
    assert [row["step"] for row in rows(run_folder)] == [float(step) for step in range(20, 1501, 20)]
