"""A run of every preset, exported under our own names: loaded with the same predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.config.choices import catalog
from blockyard.runs.load import load
from blockyard.weights.convert.exporting import export_weights
from tests.config.preset_data import small
from tests.config.product_batches import batch_for
from tests.support.engine_runs import run
from tests.support.tiny import ON_CPU, ONE_BATCH, steps

# With a vocabulary, a series and a source; the full suite exports all presets.
SHORT = ("bert", "dlinear", "wav2vec2")
PRESETS = [
    name if name in SHORT else pytest.param(name, marks=pytest.mark.full) for name in sorted(catalog.choices("preset"))
]


@pytest.mark.sampled(100)
@pytest.mark.parametrize("preset", PRESETS)
def test_an_exported_run_predicts_the_same_bits(preset: str, tmp_path: Path) -> None:
    base = (*ON_CPU, *ONE_BATCH, *steps(1, None), *small(preset), "data.batch_size=2")
    if "data=translation" in base:
        base = (*base, "data.context=40", "data.source_context=40")  # of its words, in bytes
    trained = load(run(tmp_path / "runs", base=base).path)
    batch = trained.objective.ready(batch_for(trained.components))
    written = export_weights(trained, tmp_path / "exported", kind="safetensors").folder
    with torch.no_grad():
        expected = trained.model(batch)
        assert torch.equal(load(written).model(batch), expected)
        for parameter in trained.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        assert not torch.equal(trained.model(batch), expected)  # what is compared depends on the weights
