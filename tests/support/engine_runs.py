"""Tiny runs for the engine's tests: composed like a user's, trained in this process or in a fork of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.run import train
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import read_metrics
from blockyard.runs.predictions_file import TEST
from blockyard.runs.start import create_run
from tests.support.fork import forked
from tests.support.tiny import TEXT, TINY, Configured, configured


def config(outputs: Path, *overrides: str, base: tuple[str, ...] = TINY) -> Configured:
    """A complete, checked config and its choices; `overrides` win over `base`."""
    set_here = {override.partition("=")[0] for override in overrides}
    base = tuple(override for override in base if override != "data.shift=1" or "data" not in set_here)
    return configured(*base, f"outputs={outputs}", *overrides)


def folder(outputs: Path, *overrides: str, base: tuple[str, ...] = TINY) -> RunFolder:
    """The run's folder, new or opened again."""
    plain, choices = config(outputs, *overrides, base=base)
    return create_run(plain, command=["test"], choices=choices)


def run(outputs: Path, *overrides: str, base: tuple[str, ...] = TINY, code: int = 0) -> RunFolder:
    """Train in this process and expect the exit code."""
    with folder(outputs, *overrides, base=base) as run_folder:
        outcome = train(run_folder, resume=run_folder.resumes)
        assert outcome == code, run_folder.status
    return run_folder


def text_run(outputs: Path, *overrides: str) -> RunFolder:
    """A finished run of a tiny decoder of text."""
    return run(outputs, *overrides, base=TEXT)


def killed_at(step: int, outputs: Path, *overrides: str, signum: int = signal.SIGKILL) -> int:
    """Train in a fork that gets a signal right after update number `step`, before anything is saved."""

    def work() -> int:
        signal_after(step, signum)
        run_folder = folder(outputs, *overrides)
        return train(run_folder, resume=run_folder.resumes)

    return forked(work)


def signal_after(step: int, signum: int) -> None:
    """Let the run of this process get a signal right after this step."""
    original = LoopCallback.on_train_batch_start

    def strike(self: LoopCallback, *arguments: Any) -> None:
        original(self, *arguments)
        if self.state.step == step and self._batches % self.intervals.micro_batches == 0:
            os.kill(os.getpid(), signum)

    LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]


def state(run_folder: RunFolder, name: str = "last.ckpt") -> dict[str, Any]:
    """A checkpoint's weights and optimizer state, flat."""
    content = read(run_folder.checkpoints / name)
    flat = dict(content["state_dict"])
    for index, entry in content["optimizer_states"][0]["state"].items():
        flat |= {f"optimizer.{index}.{key}": value for key, value in entry.items()}
    return flat


def assert_same_bits(left: RunFolder, right: RunFolder) -> None:
    """Equal weights, optimizer state, metrics and predictions, to the last bit; only the clock may differ."""
    for name in ("last.ckpt", "best.ckpt"):
        ours, theirs = state(left, name), state(right, name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, msg=f"{name} {key}")
    assert rows(left) == rows(right)
    kept = [each.path / TEST for each in (left, right)]
    assert kept[0].exists() == kept[1].exists()
    if kept[0].exists():
        assert kept[0].read_bytes() == kept[1].read_bytes()


def rows(run_folder: RunFolder) -> list[dict[str, float]]:
    """metrics.csv without the clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(run_folder.path / "metrics.csv")]
