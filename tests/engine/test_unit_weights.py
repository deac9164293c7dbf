"""Runs with model.unit_weights: lengths in checkpoints, and a killed run that ends with the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.check import check
from blockyard.config.compose import compose
from tests.support.engine_runs import assert_same_bits, killed_at, run, state

OPTIONS = (
    *("model.unit_weights=true", "block=sphere", "norm=none", "token_mixer.qk_norm=sphere", "callbacks=ema"),
    *("trainer.max_steps=12", "trainer.eval_every=4", "callbacks.checkpoint.every=3", "optimizer.lr=0.05"),
)


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *OPTIONS)
    assert killed_at(7, tmp_path / "killed", *OPTIONS) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *OPTIONS), whole)


@pytest.mark.parametrize("option", ["model.ngrams=[2]", "head.zero=true"])
def test_weights_that_start_at_zero_are_refused(option: str) -> None:
    """Their first update, however small, would bring them to length one."""
    issues = check(
        compose(["preset=ngpt", "data=code", "tokenizer=char", "objective=next_token", "head=token", option])
    )
    assert [issue for issue in issues if "starts at zero" in str(issue)]


def test_checkpoints_have_vectors_of_length_one(tmp_path: Path) -> None:
    saved = state(run(tmp_path, *OPTIONS, "trainer.accumulate=2"))
    matrices = {path: weight for path, weight in saved.items() if weight.ndim == 2 and "blocks" in path}
    assert matrices
    for path, weight in matrices.items():
        length = weight.norm(dim=0 if "proj_out" in path else 1)
        assert_close(length, torch.ones_like(length))
