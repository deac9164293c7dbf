"""Tiny runs for the engine's tests: composed like a user's, trained in this process or in a fork of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.run import train
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import read_metrics
from blockyard.runs.start import create_run
from tests.fork import forked

TINY = (
    "logger=none",
    "callbacks=quiet",
    "trainer=cpu",
    "trainer.precision=32",
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "data.batch_size=64",  # 20 updates an epoch
    "trainer.max_steps=30",
    "trainer.eval_every=8",
    "trainer.log_every=4",
    "trainer.limit_val=1",
    "trainer.limit_test=1",
    "token_mixer.dropout=0.1",  # so that a random stream matters
    "data.shift=1",
)


def config(outputs: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A complete, checked config and its choices."""
    given = {word.partition("=")[0] for word in overrides}
    words = [word for word in TINY if word != "data.shift=1" or "data" not in given]
    composed = compose([*words, f"outputs={outputs}", *overrides])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    return composed.config, composed.choices


def folder(outputs: Path, *overrides: str) -> RunFolder:
    """The run's folder, made or taken up again."""
    plain, choices = config(outputs, *overrides)
    return create_run(plain, command=["test"], choices=choices)


def run(outputs: Path, *overrides: str, code: int = 0) -> RunFolder:
    """Train in this process and expect the exit code."""
    with folder(outputs, *overrides) as made:
        found = train(made, resume=made.resumes)
        assert found == code, made.status
    return made


def killed_at(step: int, outputs: Path, *overrides: str, signum: int = signal.SIGKILL) -> int:
    """Train in a fork that gets a signal right after update number `step`, before anything is saved."""

    def work() -> int:
        original = LoopCallback.on_train_batch_start

        def strike(self: LoopCallback, *arguments: Any) -> None:
            original(self, *arguments)
            if self.state.step == step and self._batches % self.intervals.micro_batches == 0:
                os.kill(os.getpid(), signum)

        LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]
        made = folder(outputs, *overrides)
        return train(made, resume=made.resumes)

    return forked(work)


def state(made: RunFolder, name: str = "last.ckpt") -> dict[str, Any]:
    """A checkpoint's weights and optimizer state, flat."""
    content = read(made.checkpoints / name)
    flat = dict(content["state_dict"])
    for index, entry in content["optimizer_states"][0]["state"].items():
        flat |= {f"optimizer.{index}.{key}": value for key, value in entry.items()}
    return flat


def assert_same_bits(left: RunFolder, right: RunFolder) -> None:
    """Equal weights, optimizer state and metrics, to the last bit; only the clock may differ."""
    for name in ("last.ckpt", "best.ckpt"):
        ours, theirs = state(left, name), state(right, name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, msg=f"{name} {key}")
    assert rows(left) == rows(right)


def rows(made: RunFolder) -> list[dict[str, float]]:
    """metrics.csv without the clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(made.path / "metrics.csv")]
