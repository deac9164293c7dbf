"""`blockyard inspect attention` over a source picture: each word's map, and the share on what a question asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockyard.cli import main
from blockyard.evaluate.inside import region_patches, region_share
from blockyard.inspect.attention_weights import attention_layers
from blockyard.inspect.figures.query_figure import attends_source
from blockyard.inspect.options import Options
from blockyard.inspect.samples import load_samples
from blockyard.ops import maps
from blockyard.runs.load import Loaded, load
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_BATCH, steps

TINY = (
    *ON_CPU,
    *ONE_BATCH,
    "model.dim=16",
    "model.depth=2",
    "model.heads=2",
    "source_tokenizer.size=4",
    *steps(2, None),
)
KINDS = {
    "joint": ("experiment=canvas_captions",),
    "cross": ("experiment=canvas_captions", "model=encoder_decoder", "model.shared=false"),
    "questions": ("experiment=canvas_questions",),
}


@pytest.fixture(
    scope="module", params=["cross", *(pytest.param(each, marks=pytest.mark.full) for each in ("joint", "questions"))]
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run of two steps of each kind."""
    outputs = tmp_path_factory.mktemp(request.param)
    small = ("data.samples=64", "data.eval_samples=32", "trainer.max_epochs=null")
    assert main(["train", *KINDS[request.param], *TINY, *small, f"outputs={outputs}"]) == 0
    (folder,) = outputs.glob("*/s0")
    return request.param, folder


@pytest.mark.full
def test_words_are_drawn_over_the_source(run: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = run
    assert main(["inspect", f"run={folder}", "attention", f"out={tmp_path}", "samples=32"]) == 0
    assert (tmp_path / "attention_words.png").is_file()
    layers = json.loads((tmp_path / "attention.json").read_text())["layers"]
    question_layers = [layer for layer in layers if "asked" in layer]
    assert len(question_layers) == (2 if kind == "questions" else 0)
    for layer in question_layers:
        assert layer["asked_patches"] == pytest.approx(4 / 36)
        assert every(0 <= share <= 1 for share in layer["asked"])


def test_keys_of_the_source_are_its_patches(run: tuple[str, Path]) -> None:
    """Weights on the source, against the mask of a call: prefix first, then 36 patches, then words."""
    kind, folder = run
    loaded = load(folder)
    (sample,) = load_samples(loaded, Options(samples=1))
    layers = attention_layers(loaded.model, [sample])
    shown = [layer for layer in layers if attends_source(layer, sample)]
    assert len(shown) == 2
    length = int(sample.batch.lengths[0])
    for layer in shown:
        start, count = layer.source
        assert (start, count, layer.source_grid) == (int(kind == "questions"), 36, (6, 6))
        assert layer.weights.shape[-1] == (36 if kind == "cross" else start + 36 + length)
        assert len(layer.queries) - layer.query_prefix == length
        assert len(sample.text) == length
        assert layer.queries[-length:] == sample.text


def by_loops(loaded: Loaded, layer: int, count: int) -> float:
    """The share of the class token's attention on the asked digit's patches, head 0, sample by sample."""
    shares = []
    for sample in load_samples(loaded, Options(samples=count)):
        if sample.region is None:
            continue
        call = maps.attention(loaded.model, sample.batch)[layer]
        weights = call.weights()[0, 0, 0, 1:37].tolist()
        total = on_region = 0.0
        for patch, weight in enumerate(weights):
            row, column = divmod(patch, 6)
            total += weight
            on_region += weight * bool(sample.region[4 * row, 4 * column])
        shares.append(on_region / total)
    return sum(shares) / len(shares)


def test_the_share_on_what_is_asked_for(run: tuple[str, Path]) -> None:
    kind, folder = run
    if kind != "questions":
        return
    loaded = load(folder)
    layers = attention_layers(loaded.model, load_samples(loaded, Options(samples=32)))
    for number, layer in enumerate(layers):
        assert float(layer.region[0]) == pytest.approx(by_loops(loaded, number, 32), rel=1e-4)


def test_shares_by_hand() -> None:
    region = torch.zeros(8, 8, dtype=torch.bool)
    region[0:4, 4:8] = True
    patches = region_patches(torch.stack([region, ~region]), (2, 2))
    assert patches.tolist() == [[False, True, False, False], [True, False, True, True]]
    weights: Tensor = torch.tensor([[0.1, 0.3, 0.0, 0.2], [0.25, 0.25, 0.25, 0.25]]).repeat(2, 1, 1)
    torch.testing.assert_close(region_share(weights, patches), torch.tensor([[0.5, 0.25], [0.5, 0.75]]))
