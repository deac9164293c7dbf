"""A published contrast: attention recalls, a short convolution does not (Arora et al. 2023)."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.run import train
from blockyard.runs.start import create_run


def accuracy(outputs: Path, *arguments: str) -> float:
    composed = compose(["experiment=recall", "logger=none", "callbacks=quiet", f"outputs={outputs}", *arguments])
    assert not check(composed)
    with create_run(composed.config, command=["test"], choices=composed.choices) as run_folder:
        assert train(run_folder) == 0, run_folder.status
    return run_folder.summary()["metrics"]["test/accuracy"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_attention_recalls_at_length_and_width_64(tmp_path: Path) -> None:
    assert accuracy(tmp_path) >= 0.99


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_convolutions_of_kernel_3_do_not(tmp_path: Path) -> None:
    overrides = ("token_mixer=conv", "token_mixer.kernel=3", "model.depth=2")
    assert accuracy(tmp_path, *overrides) < 0.5
