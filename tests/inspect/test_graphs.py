"""`blockyard inspect attention` of a graph: drawn on the graph itself, with weights that its biases are part of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockyard.cli import main
from blockyard.inspect.attention_weights import attention_layers
from blockyard.inspect.figures.query_figure import attends_graph
from blockyard.inspect.options import Options
from blockyard.inspect.samples import load_samples
from blockyard.runs.load import load
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, steps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on the atlas."""
    outputs = tmp_path_factory.mktemp("outputs")
    tiny = [*ON_CPU, *ONE_BATCH, *ONE_LAYER, *steps(2, None), "trainer.max_epochs=null"]
    assert main(["train", "experiment=atlas", *tiny, f"outputs={outputs}"]) == 0
    (path,) = outputs.glob("atlas-*/s0")
    return path


@pytest.mark.full
def test_attention_is_drawn_on_the_graph(run: Path, tmp_path: Path) -> None:
    assert main(["inspect", f"run={run}", "attention", "query=1", f"out={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "attention.json",
        "attention_entropy.png",
        "attention_graph.png",
        "attention_maps.png",
    }
    assert json.loads((tmp_path / "attention.json").read_text())["pictures"][1] == "attention_graph.png"


def test_edges_are_those_of_the_sample(run: Path) -> None:
    loaded = load(run)
    (sample,) = load_samples(loaded, Options(samples=1))
    joined = (sample.batch.pairs[0, ..., 0] == 1).nonzero().tolist()
    assert sample.nodes == int(sample.batch.lengths[0])
    assert sorted(sample.edges) == sorted((i, j) for i, j in joined if i < j)
    (layer,) = attention_layers(loaded.model, [sample])
    assert attends_graph(layer, sample)
    assert not layer.weights.requires_grad
    assert layer.weights.shape[1:] == (sample.nodes + 1, sample.nodes + 1)
    torch.testing.assert_close(layer.weights.sum(-1), torch.ones(layer.weights.shape[:2]))
