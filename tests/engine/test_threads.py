"""How many threads a run takes, and that it gives them back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockyard.engine import setup_model
from tests.support.engine_runs import run

STILL = ("token_mixer.dropout=0.0", "data.shift=0", "trainer.max_steps=12")


@pytest.mark.parametrize(
    ("flops", "available", "processes", "expected"),
    [
        (0, 8, 1, 1),
        (0.29e9, 8, 1, 1),
        (0.31e9, 8, 1, 2),
        (1e9, 8, 1, 4),
        (1e12, 8, 1, 8),
        (1e12, 8, 2, 4),
        (1e12, 1, 2, 1),
    ],
)
def test_threads_follow_from_the_flops_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, flops: float, available: int, processes: int, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: available)
    assert setup_model.thread_count(int(flops), processes=processes)["threads"] == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert setup_model.thread_count(int(flops))["threads"] == available


def test_threads_are_recorded_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_folder = run(tmp_path, *STILL, "trainer.max_steps=2")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    recorded = run_folder.facts()["threads"]
    assert recorded["threads"] == 1
    assert "GFLOPs a batch" in recorded["why"]
    assert json.loads((run_folder.path / "summary.json").read_text())["threads"] == 1
