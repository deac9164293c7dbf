"""A source of another kind than the sequence: what reads it, what the rules refuse, and models that read it alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.config.build import Components
from blockyard.config.check import check, reasons
from blockyard.config.compose import compose
from blockyard.config.size_matching import flops_by_module
from blockyard.contracts import Batch, DataSpec, Inputs, Objective, Splits, Tokenizer, TokenSpec
from blockyard.contracts.objective import source_as_input
from blockyard.data.splits.loaded import LoadedData
from blockyard.evaluate.by_position import ByPosition
from blockyard.model._example_batch import example
from blockyard.runs.identity import identity
from blockyard.runs.load import load
from tests.support import engine_runs
from tests.support.every import every

IMAGE, TEXT = (1, 8, 8), 6
TWO_KINDS = (
    *("tokenizer=char", "model=encoder_decoder", "head=token", "objective=translate", "position=learned"),
    *("model.dim=16", "model.depth=1", "model.heads=2", "trainer=cpu", "logger=none"),
)
PATCHES = ("source_tokenizer=patch", "source_tokenizer.size=2", "model.shared=false")


@dataclass(kw_only=True, eq=False)
class Described(LoadedData):
    """Images, each with a text that belongs to it. Nothing is read.

    Options:
        batch_size: samples of a step
        eval_batch_size: samples of an evaluation step
    """

    batch_size: int = 2
    eval_batch_size: int = 2

    @property
    def spec(self) -> DataSpec:
        return DataSpec("text", (TEXT,), variable=True, source=DataSpec("image", IMAGE))

    def load(self, tokenizer: Tokenizer) -> Splits:
        raise NotImplementedError


class Reader(Objective):
    """Predicts one text for each image, which is all that the model reads."""

    takes: ClassVar[str] = "sequence"
    reads = "source"

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        assert data.modality == "text"
        assert tokens.vocabulary is not None
        return tokens.vocabulary

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Of the second token, which every text has."""
        return F.cross_entropy(prediction, target[:, 1], ignore_index=Batch.ignore)

    def metrics(self, split: Any = None) -> dict[str, Any]:
        return {}

    def best(self) -> tuple[str, str]:
        return "loss", "min"


def described(*arguments: str) -> Any:
    """A composed config over `Described`."""
    composed = compose([*TWO_KINDS, "data=translation", *arguments, "allow=[tests]"])
    assert composed.issues == []
    composed.config["data"] = {"_target_": f"{__name__}.Described", "batch_size": 2, "eval_batch_size": 2}
    composed.choices["data"] = "described"
    return composed


def reading(*arguments: str) -> Any:
    """The same for a model that reads the image alone."""
    composed = described("model=encoder", "head=mean_pool", "objective=translate", *arguments)
    composed.config["objective"] = {"_target_": f"{__name__}.Reader"}
    composed.choices["objective"] = "reader"
    return composed


def batch(size: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(5, 250, (size, TEXT), generator=generator)
    images = torch.rand(size, *IMAGE, generator=generator)
    return Batch(texts, lengths=torch.linspace(TEXT, 2, size).long(), source=images)


def assert_encoder_is_a_vision_transformer() -> None:
    """The tower over the source equals an encoder of images with the same weights, in two dimensions."""
    composed = described(*PATCHES, "source_position=sinusoidal")
    assert reasons(composed) == []
    model = Components(composed.config).model(0).eval()
    overrides = ("data=digits", "tokenizer=patch", "tokenizer.size=2", "position=sinusoidal", "head=mean_pool")
    sizes = ("model.dim=16", "model.depth=1", "model.heads=2")
    alone = Components(compose([*overrides, *sizes]).config).model(1).eval()
    missing = alone.load_state_dict(model.encoder.state_dict(), strict=False).missing_keys
    assert every(name.startswith("head.") for name in missing)
    expected, seq = alone.forward_features(Inputs(batch().source))
    memory = model.encode(batch().source)
    torch.testing.assert_close(memory.seq.coords, seq.coords)
    torch.testing.assert_close(memory.x, expected)
    prediction = model(batch())
    assert prediction.shape == (2, TEXT, 258)
    assert not torch.allclose(model(replace(batch(), source=batch().source.flip(0))), prediction)


def test_the_encoder_is_the_encoder_of_its_own_kind() -> None:
    assert_encoder_is_a_vision_transformer()


def test_the_scheme_of_the_sequence_over_the_source_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the source is placed as the sequence is, by a learned vector."""
    planted: Any = lambda parts: parts._replace(embedder=parts.source_embedder)  # noqa: E731
    monkeypatch.setattr("blockyard.model.encoder_decoder.of_source", planted)
    with pytest.raises((AssertionError, RuntimeError)):
        assert_encoder_is_a_vision_transformer()


def test_a_source_is_counted_in_its_own_items() -> None:
    components = Components(described(*PATCHES).config)
    ctx = components.context()
    assert ctx.tokens.grid == (TEXT,)
    assert ctx.source_tokens.grid == (4, 4)
    inputs = example(ctx, "meta", 3)
    assert inputs.source is not None
    assert inputs.source.shape == (3, *IMAGE)
    assert inputs.source.is_floating_point()
    assert inputs.source_lengths is None
    coarse = Components(described(*PATCHES, "source_tokenizer.size=4").config)
    flops = [flops_by_module(each.meta_model(), each.context())["encoder.blocks.0"] for each in (components, coarse)]
    assert flops[0] > 4 * flops[1]


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (PATCHES, None),
        ((*PATCHES, "source_position=rope"), None),
        ((*PATCHES, "position=rope", "source_position=learned"), None),
        ((*PATCHES, "position=xpos", "source_position=learned"), None),
        ((*PATCHES, "position=xpos"), "position=xpos needs a causal model; the encoder"),
        ((*PATCHES, "source_position=xpos"), "source_position=xpos needs a causal model; the encoder"),
        (("model.shared=false",), "source_tokenizer=same reads texts, but the source of data=described gives images"),
        (("source_tokenizer=bpe", "model.shared=false"), "source_tokenizer=bpe reads texts, but the source"),
        ((*PATCHES[:2], "model.shared=true"), "source_tokenizer=patch reads another kind: model.shared=false"),
        ((*PATCHES, "token_mixer=windowed_attention"), "needs tokens with 1 coordinate axes; they have 2"),
    ],
)
def test_rules_are_asked_of_the_source(overrides: tuple[str, ...], refused: str | None) -> None:
    issues = reasons(described(*overrides))
    assert len(issues) == (refused is not None), issues
    assert refused is None or refused in issues[0]


@pytest.mark.parametrize("override", ["source_tokenizer=patch", "source_position=learned"])
def test_what_reads_a_source_is_refused_where_there_is_none(override: str) -> None:
    (issue,) = check(compose([override]))
    assert "data=digits has none" in str(issue)
    assert f"{override.partition('=')[0]}=same" in str(issue)


def test_same_is_what_no_key_is(tmp_path: Path) -> None:
    overrides = ["experiment=translate_dates"]
    plain, same = compose(overrides), compose([*overrides, "source_tokenizer=same", "source_position=same"])
    assert plain.config == same.config
    assert identity(plain.config) == identity(same.config)
    other = compose([*overrides, "source_tokenizer=word", "model.shared=false"])
    assert identity(other.config) != identity(plain.config)
    again = compose([*overrides, "source_tokenizer=word", "source_tokenizer=same"])
    assert again.config == plain.config
    file = ["# @package _global_", "defaults:", "  - override /tokenizer@source_tokenizer: word"]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("\n".join(file))
    assert "source_tokenizer" in compose(["experiment=mine"], [str(tmp_path)]).config
    assert "source_tokenizer" not in compose(["experiment=mine", "source_tokenizer=same"], [str(tmp_path)]).config
    (issue,) = compose([*overrides, "source_tokenizer=wordd"]).issues
    assert "did you mean word" in str(issue)


def test_a_model_reads_the_source_alone() -> None:
    composed = reading("source_tokenizer=patch", "source_tokenizer.size=2")
    assert reasons(composed) == []
    components = Components(composed.config)
    ctx = components.context()
    assert (ctx.data.modality, ctx.tokens.grid, ctx.outputs, ctx.data.source) == ("image", (4, 4), 258, None)
    model, ready = components.model(0), components.objective.ready(batch())
    assert set(ready.facts()) == {"inputs"}
    torch.testing.assert_close(ready.inputs, batch().source)
    assert ready.target[0].tolist() == batch().inputs[0].tolist()
    assert ready.target[1].tolist() == [*batch().inputs[1, :2].tolist(), *[Batch.ignore] * (TEXT - 2)]
    components.objective.loss(model(ready), ready.target).backward()
    parts = ByPosition(components.objective, "loss", 2, 2)  # a wrapper reads what its objective reads
    torch.testing.assert_close(parts.ready(batch()).inputs, batch().source)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (("model=encoder_decoder", "head=token", "model.shared=false"), "reads the source alone"),
        (("source_position=learned",), "objective=reader reads the source of data=described alone"),
        (("head=flatten",), None),
        (("token_mixer=token_mlp",), None),  # images are of one size, whatever the texts are
        (("position=alibi",), None),
        (("source_tokenizer=char",), "source_tokenizer=char reads texts"),
    ],
)
def test_rules_are_asked_of_the_only_sequence(overrides: tuple[str, ...], refused: str | None) -> None:
    issues = reasons(reading("source_tokenizer=patch", *overrides))
    assert bool(issues) == (refused is not None), issues
    assert refused is None or any(refused in text for text in issues)


def test_a_batch_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="the batch has none"):
        source_as_input(Batch(torch.zeros(2, 3, dtype=torch.int64)))


@pytest.mark.full
def test_each_side_of_a_pair_has_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    """What both learned is saved with the run, and read again."""
    overrides = (
        *("data=translation", "data.context=32", "data.source_context=32", "data.batch_size=8", "data.samples=40"),
        *("model=encoder_decoder", "objective=translate", "tokenizer=char", "source_tokenizer=word"),
        *("model.shared=false", "position=learned", "source_position=sinusoidal", "trainer.max_steps=2"),
    )
    run = engine_runs.text_run(tmp_path, *overrides, "trainer.eval_every=2")
    loaded = load(run)
    source = loaded.components.source_tokenizer
    assert source.state()
    assert loaded.tokenizer.state()
    batch = loaded.components.load().train.batch(torch.arange(4), None)
    pairs = loaded.components.load().train.pairs[:4]
    for row, length, (text, _) in zip(batch.source, batch.source_lengths, pairs, strict=True):
        assert row[:length].tolist() == source.encode(text)
    assert int(batch.source.max()) < source.spec(loaded.data.spec.source).vocabulary
    assert loaded.model.encoder.embedder.table.shape != loaded.model.embedder.table.shape
    from blockyard.generate.api import generate

    assert isinstance("".join(generate(loaded, source=pairs[0][0], temperature=0, max_tokens=3)), str)
