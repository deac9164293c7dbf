"""Training with a loss by chunks: the run of one with all logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.objective import _classes
from blockyard.ops import projection
from tests.support.engine_runs import rows, text_run
from tests.support.tolerances import float32


@pytest.mark.full
def test_a_run_is_the_same_by_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("tokenizer=byte", "head.tied=true", "objective.label_smoothing=0.1", "objective.z_loss=1e-3")
    plain = text_run(tmp_path / "plain", *overrides, "trainer.log_every=1", "trainer.accumulate=2")
    calls = []
    real = _classes.chunked_cross_entropy
    monkeypatch.setattr(_classes, "chunked_cross_entropy", lambda *a, **k: calls.append(1) or real(*a, **k))
    monkeypatch.setattr(projection, "LOGITS", 2_000)
    chunked = text_run(tmp_path / "chunked", *overrides, "trainer.log_every=1", "trainer.accumulate=2")
    assert len(calls) == 10  # five steps of two micro-batches, and no evaluation
    for left, right in zip(rows(chunked), rows(plain), strict=True):
        assert left == pytest.approx(right, rel=float32(terms=256, layers=4)["rtol"])
