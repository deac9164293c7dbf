"""Two processes follow one on every kind of data that the project brings, at the same global batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import rows
from tests.support.tiny import ON_CPU, ONE_BATCH, steps

EXPERIMENTS = {  # with overrides that leave out dropout, which each process draws for itself
    "atlas": (),
    "canvas_captions": (),
    "canvas_questions": (),
    "co2": (),
    "co2_next": (),
    "code_topics": (),
    "gpt_digits": ("token_mixer.dropout=0",),
    "restore_digits": (),
    "tones_ctc": (),
    "tones_contrast": (),
    "translate_dates": (),
    "views_digits": (),
}
SMALL = ("model.dim=16", "model.heads=2", "data.batch_size=8", "data.eval_batch_size=8", "model.dropout=0")


def trained(outputs: Path, name: str, *overrides: str) -> RunFolder:
    """A finished run of an experiment, started as a user starts it."""
    arguments = (f"experiment={name}", *ON_CPU, *ONE_BATCH, *SMALL, *steps(4, 2), "trainer.log_every=2", *overrides)
    command = [sys.executable, "-m", "blockyard", "train", *arguments, f"outputs={outputs}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return RunFolder.open(next(outputs.glob("*/s0")))


@pytest.mark.full
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_two_processes_follow_one(tmp_path: Path, name: str) -> None:
    one = trained(tmp_path / "one", name, *EXPERIMENTS[name])
    two = trained(tmp_path / "two", name, *EXPERIMENTS[name], "trainer=ddp", "trainer.accelerator=cpu")
    assert two.summary()["processes"] == 2
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-3)
    assert two.summary()["metrics"] == pytest.approx(one.summary()["metrics"], rel=1e-3)
