"""`blockyard embed`: vectors are what a layer gives, pooled over real tokens, for inputs of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from numpy.testing import assert_allclose

import blockyard
from blockyard.cli import main
from blockyard.commands import embed as command
from blockyard.commands._signature import functions_of
from blockyard.contracts import Inputs
from blockyard.evaluate import api
from blockyard.evaluate.embed import POOLS, PROJECTIONS, SUFFIXES, Embeddings, embed
from blockyard.report.page.vectors import content_of, render
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from tests.support.engine_runs import run
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, TEXT, TRANSLATE, steps

pytestmark = pytest.mark.xdist_group("embed")  # its runs are made once
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums over 64 tokens in float32, in batches of other sizes


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("texts")
    lines = [f"{text} {n}\t{label}" for n in range(20) for text, label in (("buy gold", "spam"), ("see you", "ham"))]
    (folder / "mails.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    table = ("data=table", f"data.path={folder / 'mails.tsv'}", "data.context=32", "tokenizer=char")
    prefix = ("model=encoder", "model.prefix.class_token=true", "model.prefix.registers=2", "head=class_token")
    return run(folder, *ON_CPU, *ONE_LAYER, *table, *prefix, "model.depth=2", *steps(5, 5), base=())


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("layer", ["embedded", 0, 1, "last"])
@pytest.mark.sampled(2)
def test_vectors_are_pooled_from_what_the_layer_gives(texts: RunFolder, layer: int | str) -> None:
    """By the formulas: of the prefix of a class token and two registers, the mean takes none."""
    inputs = ["buy gold 7", "see you 12"]
    loaded = load(texts)
    name = {"embedded": "placed", "last": "normed"}.get(str(layer), f"block.{layer}")
    front = 0 if layer == "embedded" else 3
    for number, text in enumerate(inputs):
        ids = torch.tensor([loaded.tokenizer.encode(text)])
        with torch.no_grad():
            stream = loaded.model.steps(Inputs(ids, lengths=torch.tensor([ids.shape[1]])))[name][0]  # alone, unpadded
        expected = {"mean": stream[front:].mean(0), "last": stream[-1], "class": stream[0]}
        for pool, vector in expected.items():
            if (layer, pool) != ("embedded", "class"):
                embeddings, _ = embed(texts, inputs, layer=layer, pool=pool)
                assert_allclose(embeddings.vectors[number], vector, **CLOSE, err_msg=f"{layer} {pool}")
        every, _ = embed(texts, inputs, layer=layer, pool="none")
        assert_allclose(every.vectors[every.index == number], stream[front:], **CLOSE)
    assert every.tokens == list("".join(inputs))
    assert every.names == [text for text in inputs for _ in text]


def test_a_split_gives_what_its_samples_give(texts: RunFolder, digits: RunFolder) -> None:
    """With the classes of the samples; and pool is what suits the model."""
    split, _ = embed(texts, split="validation")
    assert split.meta["pool"] == "class"
    alone, _ = embed(texts, [name.partition(": ")[2] for name in split.names])
    assert_allclose(split.vectors, alone.vectors, **CLOSE)
    wanted = ["spam" if "buy" in name else "ham" for name in split.names]
    assert [split.class_names[i] for i in split.classes] == wanted
    images, _ = embed(digits, limit=7)
    assert images.vectors.shape == (7, 16)
    assert images.meta["pool"] == "mean"
    assert images.pictures is not None
    assert images.pictures.shape == (7, 1, 8, 8)


def test_nothing_is_hidden(tmp_path: Path) -> None:
    """A run that hides tokens in training embeds all of them; one that predicts the next token its inputs."""
    masked = run(tmp_path, *("model=encoder", "objective=masked_token", "tokenizer=char"), base=TEXT)
    embeddings, loaded = embed(masked, limit=3)
    batch = loaded.components.load().test.batch(torch.arange(3), None)
    ids = batch.inputs[:, : loaded.model.ctx.tokens.max_len]
    assert loaded.model.ctx.tokens.mask not in ids
    with torch.no_grad():
        expected = loaded.model.steps(Inputs(ids))["normed"].mean(1)
    assert_allclose(embeddings.vectors, expected, **CLOSE)
    restore = run(tmp_path, "objective=restore", "head=token", *steps(3, 3))
    embeddings, loaded = embed(restore, limit=3)
    images = loaded.components.load().test.batch(torch.arange(3), None).inputs
    with torch.no_grad():
        expected = loaded.model.steps(Inputs(images))["normed"].mean(1)
    assert_allclose(embeddings.vectors, expected, **CLOSE)
    decoder = run(tmp_path, "tokenizer=char", base=TEXT)
    embeddings, loaded = embed(decoder, limit=3)
    assert embeddings.meta["pool"] == "last"
    with torch.no_grad():
        expected = loaded.model.steps(Inputs(ids))["normed"][:, -1]
    assert_allclose(embeddings.vectors, expected, **CLOSE)


def test_an_encoder_gives_the_vectors_of_its_source(tmp_path: Path) -> None:
    few = ("data.samples=200", "data.validation_size=40", "data.test_size=40")
    folder = run(tmp_path, *ON_CPU, *ONE_LAYER, *TRANSLATE, *few, *steps(2, 2), *ONE_BATCH, base=())
    split, loaded = embed(folder, limit=2)
    assert split.meta["pool"] == "mean"
    text = split.names[0].partition(": ")[2]
    alone, _ = embed(folder, [text])
    assert_allclose(alone.vectors, split.vectors[:1], **CLOSE)
    with torch.no_grad():
        memory = loaded.model.encode(torch.tensor([loaded.tokenizer.encode(text)]))
    assert_allclose(alone.vectors, memory.x.mean(1), **CLOSE)


def _some(vectors: np.ndarray, classes: np.ndarray | None = None) -> Embeddings:
    names = [f"input {i}" for i in range(len(vectors))]
    meta = {"run": "r", "weights": "best.ckpt", "layer": "last", "pool": "mean", "part": None}
    return Embeddings(vectors.astype(np.float32), names, np.arange(len(vectors)), meta, target=classes)


def test_neighbours_are_those_of_the_largest_cosine() -> None:
    """By all pairs; of vectors at one place each is a neighbour of the others, never of itself."""
    vectors = np.random.default_rng(0).normal(size=(40, 6))
    index, cosine = _some(vectors).neighbours(4)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = unit @ unit.T
    np.fill_diagonal(products, -np.inf)
    order = np.argsort(-products, axis=1)[:, :4]
    assert (index == order).all()
    assert_allclose(cosine, np.take_along_axis(products, order, 1), atol=1e-5)
    repeated = np.repeat(vectors[:2], 5, axis=0)
    index, _ = _some(repeated).neighbours(3)
    assert not (index == np.arange(10)[:, None]).any()
    assert (index // 5 == np.arange(10)[:, None] // 5).all()


def test_agreement_is_one_for_separate_classes_and_chance_is_that_of_pairs() -> None:
    draws = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2], [4, 6, 10])
    apart = 20 * np.eye(3)[classes] + draws.normal(size=(20, 3))
    share, by_chance = _some(apart, classes).agreement(3)
    assert share == 1
    pairs = [classes[i] == classes[j] for i in range(20) for j in range(20) if i != j]
    assert by_chance == pytest.approx(np.mean(pairs))
    assert _some(apart).agreement(3) is None


def test_projections_are_of_two_dimensions() -> None:
    """Principal components by the singular vectors."""
    vectors = np.random.default_rng(0).normal(size=(30, 5)) * [9, 5, 1, 1, 1]
    centred = vectors - vectors.mean(0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    assert_allclose(np.abs(_some(vectors).project("pca")), np.abs(expected), atol=1e-4)
    assert _some(vectors).project("tsne").shape == (30, 2)


def test_files_hold_the_vectors_and_what_is_known(digits: RunFolder, tmp_path: Path) -> None:
    embeddings, _ = blockyard.embed(digits.path, limit=12)
    assert main(["embed", f"run={digits.path}", "limit=12", f"out={tmp_path / 'v.npz'}"]) == 0
    assert main(["embed", f"run={digits.path}", "limit=12", f"out={tmp_path / 'v.parquet'}"]) == 0
    with np.load(tmp_path / "v.npz") as arrays:
        assert_allclose(arrays["vectors"], embeddings.vectors, **CLOSE)
        assert arrays["names"].tolist() == [f"test {i}" for i in range(12)]
        assert arrays["target"].tolist() == embeddings.classes.tolist()
        assert json.loads(str(arrays["meta"]))["run"] == digits.name
    table = pandas.read_parquet(tmp_path / "v.parquet")
    assert_allclose(np.stack(table["vectors"]), embeddings.vectors, **CLOSE)
    assert list(table.columns) == ["vectors", "names", "index", "target"]


def test_the_page_shows_pictures_and_neighbours(
    digits: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", f"run={digits.path}", f"page={tmp_path / 'p.html'}", "neighbours=3"]) == 0
    assert "of the 3 nearest neighbours" in capsys.readouterr().out
    embeddings, _ = embed(digits)
    content = content_of(embeddings, neighbours=3, projection="pca")
    index, _ = embeddings.neighbours(3)
    assert content["neighbours"] == index.tolist()
    assert every_png(content["pictures"])
    assert len((tmp_path / "p.html").read_bytes()) < 1_000_000


def every_png(addresses: list[str]) -> bool:
    return len(addresses) > 100 and {text[:22] for text in addresses} == {"data:image/png;base64,"}


def test_names_on_the_page_are_text() -> None:
    hostile = _some(np.random.default_rng(0).normal(size=(5, 3)))
    hostile.names[0] = "</script><img src=x onerror=alert(1)>"
    page = render(hostile, neighbours=2, projection="pca")
    assert "<img src=x" not in page
    assert "\\u003cimg src=x" in page


def test_of_many_vectors_some_are_drawn_and_all_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.report.page.vectors.MOST_SHOWN", 10)
    many = _some(np.random.default_rng(0).normal(size=(60, 4)))
    content = content_of(many, neighbours=2, projection="pca")
    index, _ = many.neighbours(2)
    names = content["names"]
    assert [names[i] for i in content["shown"]] == [f"input {i}" for i in np.linspace(0, 59, 10).round().astype(int)]
    first = [names[i] for i in content["neighbours"][0]]
    assert first == [f"input {i}" for i in index[0]]


def test_patches_of_values_are_those_that_the_model_reads(tmp_path: Path) -> None:
    """Their objective leaves the last one out, which is predicted and not read."""
    drawn = run(tmp_path, "experiment=gpt_patches", *ON_CPU, *ONE_LAYER, *steps(2, None), *ONE_BATCH, base=())
    each, _ = embed(drawn, split="test", limit=2, pool="none")
    assert each.vectors.shape == (2 * 16, 16)


def test_the_command_offers_what_the_function_takes() -> None:
    """Written out in the command, because reading the function imports torch."""
    (function,) = functions_of("embed")
    choices = {parameter.key: parameter.choices for parameter in function.keywords}
    assert (choices["pool"], choices["projection"], command.OUT) == (POOLS, PROJECTIONS, SUFFIXES)
    assert set(choices["split"]) == set(api.SPLITS)


def test_what_cannot_be_is_refused(digits: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"out={tmp_path / 'v.npz'}"
    cases = {
        ("layer=7", out): "layer=7: " + digits.name + " has 0 to 0, embedded and last",
        ("pool=class", out): "has no class token (model.prefix.class_token)",
        ("x.png", "split=test", out): "inputs and a split exclude each other",
        ("none.png", out): "no file or folder none.png",
        ("column=body", out): "column=body is for tables",
        ("limit=2", f"page={tmp_path / 'p.html'}"): "2 vectors of 16 numbers have no projection",
    }
    for arguments, message in cases.items():
        assert main(["embed", f"run={digits.path}", *arguments]) == 2, arguments
        assert message in capsys.readouterr().err
    assert not (tmp_path / "v.npz").exists()
