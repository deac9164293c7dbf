"""`blockyard sweep` as a process of its own, on a tiny question, and what its runs computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from blockyard.atomic_files import read_json
from blockyard.runs.folder import RunFolder
from tests.schedulers.processes import wait_for
from tests.support.engine_runs import assert_same_bits
from tests.support.paths import ROOT

PATIENCE = 900.0  # seconds for one sweep on a busy machine
_FILE = """\
claim: Positions matter on digits
base: [experiment=vit_digits, logger=none, callbacks=quiet, trainer.precision=32, model.dim=16, model.depth=1,
  model.heads=2, data.batch_size=64, trainer.max_steps={steps}, trainer.max_epochs=null, trainer.eval_every=100,
  trainer.log_every=5, trainer.limit_val=1, trainer.limit_test=1, token_mixer.dropout=0.1, data.shift=1,
  callbacks.checkpoint.every=20]
baseline: none
arms:
{arms}
seeds: {seeds}
metric: test/loss
"""
ARMS = {"none": "[position=none]", "learned": "[position=learned]"}


class Sweep:
    """One sweep file and its output folder; `start` and `run` are the command that a user types."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []  # to be killed where a test fails

    def __init__(
        self,
        folder: Path,
        *executor: str,
        environment: Mapping[str, str] = os.environ,
        steps: int = 250,
        seeds: int = 2,
        arms: Mapping[str, str] = ARMS,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.outputs, self.executor = folder, folder / "outputs", executor
        # No GPU on any machine: the results are compared to the last bit.
        paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
        self.environment = {**environment, **paths, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        lines = "\n".join(f"  {name}: {overrides}" for name, overrides in arms.items())
        (folder / "q.yaml").write_text(_FILE.format(steps=steps, arms=lines, seeds=seeds))
        self.count = len(arms) * seeds
        self.log = folder / "log.txt"

    def start(self, *overrides: str) -> subprocess.Popen[bytes]:
        """Start the command; what it prints is appended to `log`."""
        arguments = ["sweep", "q.yaml", f"outputs={self.outputs}", "--no-compare", *self.executor, *overrides]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "blockyard", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def wait(self, process: subprocess.Popen[bytes], code: int) -> str:
        """Wait until the command ends with this exit code; what all commands so far have printed."""
        try:
            ended = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(120)
            raise AssertionError(f"no end after {PATIENCE:.0f} s:\n{self.log.read_text()}") from None
        printed = self.log.read_text()
        assert ended == code, printed
        assert "Traceback" not in printed, printed
        return printed

    def run(self, *overrides: str, code: int = 0) -> str:
        """Run the command to its end; what all commands so far have printed."""
        return self.wait(self.start(*overrides), code)

    @property
    def runs(self) -> dict[str, Path]:
        """The run folders by name."""
        paths = sorted(self.outputs.glob("*/s*/config.yaml"))
        return {str(path.parent.relative_to(self.outputs)): path.parent for path in paths}

    def until_training(self, *, but: Collection[Path] = ()) -> Path:
        """Wait until a run trains that is none of these; its folder."""
        return Path(self.wait_for(lambda: [path for path in self.training() if path not in but])[0])

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Call until the value is true, and return it; fails at once where every command has ended before."""

        def alive() -> None:
            assert any(process.poll() is None for process in self.started), self.log.read_text()

        return wait_for(condition, PATIENCE, alive)

    def name(self, path: Path) -> str:
        """The name of the run in a folder."""
        return str(path.relative_to(self.outputs))

    def training(self) -> list[Path]:
        """The runs that have logged steps and are not done."""
        paths = [path for path in self.runs.values() if (path / "metrics.csv").exists()]
        return [path for path in paths if read_json(path / "status.json")["state"] == "running"]

    def states(self) -> dict[str, str]:
        """The state of every run."""
        return {name: read_json(path / "status.json")["state"] for name, path in self.runs.items()}

    def resumes(self) -> dict[str, list[dict[str, Any]]]:
        """What every run records of the times that it was resumed."""
        return {name: read_json(path / "run.json")["resumes"] for name, path in self.runs.items()}


def assert_equal_sweeps(sweep: Sweep, reference: Sweep) -> None:
    """Every cell is done once, and equals that of another sweep, which may have more cells, to the last bit."""
    assert set(sweep.states().values()) == {"done"}
    assert len(sweep.runs) == sweep.count
    assert sweep.runs.keys() <= reference.runs.keys()
    assert not list(sweep.outputs.glob("*/.replaced-*"))
    for name, path in sweep.runs.items():
        ours, theirs = RunFolder.open(path), RunFolder.open(reference.runs[name])
        assert_same_bits(ours, theirs)
        assert ours.summary()["metrics"] == theirs.summary()["metrics"]
