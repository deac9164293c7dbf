"""Simple models beside the runs on images, graphs, series, real values and translations: formulas, kinds and bounds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.digits import Digits
from blockyard.data.splits import simple_models
from blockyard.data.splits.graphs import GraphSplit
from blockyard.data.splits.simple_models import nearest_centroid, nearest_sources, ridge, tf_idf
from blockyard.data.translation import Translation
from blockyard.objective import _baselines
from blockyard.objective._text_scores import bleu, chrf
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from blockyard.objective.regress import Regress
from blockyard.objective.translate import Translate
from blockyard.tokenizer.patch import Patch
from blockyard.tokenizer.word import Word
from tests.support.tolerances import float32


class Samples:
    """Inputs with a target each."""

    def __init__(self, inputs: Tensor, target: Tensor, lengths: Tensor | None = None) -> None:
        self.inputs, self.target, self.lengths = inputs, target, lengths
        self.mean, self.std = torch.zeros(target.shape[1:]), torch.ones(target.shape[1:])

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return Batch(
            self.inputs[order], self.target[order], lengths=None if self.lengths is None else self.lengths[order]
        )


def classify(classes: int) -> Classify:
    objective = Classify()
    objective._names = tuple(map(str, range(classes)))
    return objective


def test_the_nearest_centroid_is_that_of_scikit_learn() -> None:
    train, _, test = Digits().load(Patch())
    parts = [split.batch(torch.arange(len(split)), None) for split in (train, test)]
    (x, own), (y, target) = ([part.inputs.flatten(1) for part in parts], [part.target for part in parts])
    expected = NearestCentroid().fit(x.numpy(), y.numpy()).predict(own.numpy())
    assert nearest_centroid(x, y, 10)(own).argmax(1).tolist() == expected.tolist()
    baselines = classify(10).baselines(test, train)
    assert list(baselines) == ["majority", "nearest_centroid", "linear"]
    assert baselines["nearest_centroid"]["accuracy"] == pytest.approx((expected == target.numpy()).mean())
    assert "loss" not in baselines["nearest_centroid"]  # of distances it says nothing
    assert baselines["linear"]["accuracy"] > 0.95


def test_the_linear_model_of_real_values_is_ridge_of_scikit_learn() -> None:
    """Of standardized features, with a penalty that grows with the samples; a target may lack values."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=random)
    y = x @ torch.randn(5, 2, generator=random) + 0.1 * torch.randn(200, 2, generator=random)
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    expected = Ridge(alpha=0.2).fit(standard.double().numpy(), y.double().numpy()).predict(standard.double().numpy())
    np.testing.assert_allclose(ridge(x, y)(x).numpy(), expected, **float32(terms=5, size=float(abs(expected).max())))
    y[:100, 1] = torch.nan
    assert not ridge(x, y)(x).isnan().any()
    split = Samples(x, y)
    baselines = Regress().baselines(split, split)
    assert list(baselines) == ["mean", "linear"]
    assert baselines["linear"]["rmse"] < 0.2 < baselines["mean"]["rmse"]


def test_series_have_a_linear_model_whatever_their_lengths() -> None:
    """The class is the slope: series of other lengths are stretched."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 20, (120,), generator=random)
    target = torch.arange(120) % 2
    step = torch.arange(20)[None] / lengths[:, None]
    inputs = torch.where(target[:, None] == 0, step, -step)[..., None] + 0.1 * torch.randn(120, 20, 1, generator=random)
    split = Samples(inputs, target, lengths)
    assert classify(2).baselines(split, split)["linear"]["accuracy"] > 0.95


def test_graphs_are_counts_of_their_nodes() -> None:
    random = torch.Generator().manual_seed(0)
    target = torch.arange(80) % 2
    nodes = torch.randint(1, 4, (80, 6, 2), generator=random).to(torch.uint8)
    nodes[target == 1, 0, 0] = 5
    nodes[target == 1, 1, 0] = 5
    lengths = torch.full((80,), 6)
    split = GraphSplit(nodes, torch.zeros(80, 6, 6, 1, dtype=torch.uint8), lengths, target)
    baselines = classify(2).baselines(split, split)
    assert baselines["linear"]["accuracy"] == 1
    assert baselines["nearest_centroid"]["accuracy"] > 0.8


def test_token_ids_have_the_most_frequent_class_only() -> None:
    split = Samples(torch.randint(0, 5, (20, 4)), torch.arange(20) % 4 // 3)
    baselines = classify(2).baselines(split, split)
    assert list(baselines) == ["majority"]
    assert baselines["majority"]["accuracy"] == 0.75


def test_translations_are_copied_and_looked_up(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay"]
    lines = ["de\ten\tsplit"]
    lines += [f"ein {name} {number}\ta {name} {number}\ttrain" for number, name in enumerate(names)]
    lines += ["der ant\ta ant 0\tval", "die bee\ta bee 1 x\tval"]
    lines += ["das cat\tcat\ttest", "zug\tzug\ttest", "die dog\tdie dog x\ttest", "oh elk so\ta elk 9\ttest"]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    splits = Translation(path=str(path), source="de", target="en").load(Word())
    baselines = Translate().baselines(splits.test, splits.train)
    assert list(baselines) == ["word_before", "copy_source", "nearest_source"]
    assert baselines["copy_source"]["exact"] == 0.25
    assert baselines["nearest_source"]["exact"] == 0
    assert baselines["word_before"]["loss"] > 0
    assert nearest_sources(["a b c", "d e f"])(["e", "b"]) == [1, 0]
    sources, references = zip(*splits.test.pairs, strict=True)
    assert baselines["copy_source"]["written_bleu"] == pytest.approx(bleu(sources, references))
    assert baselines["copy_source"]["written_chrf"] == pytest.approx(chrf(sources, references))
    nearest = [splits.train.pairs[index][1] for index in nearest_sources([a for a, _ in splits.train.pairs])(sources)]
    assert dict(zip(references, nearest, strict=True))["a elk 9"].startswith("a elk")
    assert baselines["nearest_source"]["written_bleu"] == pytest.approx(bleu(nearest, references))
    assert baselines["nearest_source"]["written_chrf"] == pytest.approx(chrf(nearest, references))
    assert chrf(nearest, references) != pytest.approx(chrf(sources, references))


def test_of_many_classes_texts_have_the_nearest_centroid_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logistic regression of 509 languages took the memory of a machine."""
    monkeypatch.setattr(simple_models, "MOST_CLASSES", 3)
    texts = [f"word{number % 5} and more" for number in range(40)]
    target = torch.arange(40) % 5

    def read(order: Tensor) -> list[str]:
        return [texts[index] for index in order.tolist()]

    model = tf_idf(read, target, read, 6, 10)
    assert (model.name, model.note) == ("tf_idf_centroid", "fitted on 10 of 40 samples")
    logits = tf_idf(read, target, read, 6, 40).fit()(torch.arange(40))
    assert torch.equal(logits.argmax(1), target)
    assert bool(logits[:, 5].isinf().all())  # a class without a sample


def test_large_samples_are_read_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_baselines, "MAX_READ_VALUES", 640)
    monkeypatch.setattr(_baselines, "MIN_READ_SAMPLES", 3)
    split: Any = Samples(torch.zeros(100, 1, 8, 8), torch.zeros(100, dtype=torch.long))
    assert len(_baselines.chosen(split, 50)) == 10
    assert _baselines.features(split.batch(torch.arange(4), None)).shape == (4, 64)
    wide = Batch(torch.zeros(2, 3, 224, 224))
    assert _baselines.features(wide).shape[1] <= _baselines.MAX_FEATURES
    vocabulary = torch.zeros(0, 0)
    with pytest.raises(ValueError, match="token ids"):
        _baselines._grown(vocabulary, _baselines.MAX_VOCABULARY + 1)


class Texts:
    """Sequences of token ids."""

    bytes_per_token = 2.0

    def __init__(self, inputs: Tensor, lengths: Tensor | None = None) -> None:
        self.inputs, self.lengths = inputs, lengths

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return Batch(self.inputs[order], lengths=None if self.lengths is None else self.lengths[order])


@pytest.mark.parametrize("shift", [1, 0])
def test_the_next_token_by_its_frequency_and_by_the_token_before_it(shift: Literal[0, 1]) -> None:
    """Against counts in plain Python; padding is no token, and with shift=0 the target itself is not read."""
    random = torch.Generator().manual_seed(0)
    # Token 6 is in the test split alone.
    train, test = (torch.randint(0, size, (30, 9), generator=random) for size in (6, 7))
    lengths = torch.randint(2, 10, (30,), generator=random)
    objective = NextToken(shift=shift)
    baselines = objective.baselines(Texts(test, lengths), Texts(train, lengths))
    assert list(baselines) == ["unigram", "word_before"]

    def pairs(texts: Tensor) -> list[tuple[int, int]]:
        of_texts = []
        for text, length in zip(texts.tolist(), lengths.tolist(), strict=True):
            of_texts += list(itertools.pairwise(text[:length]))
        return of_texts

    before = Counter(pairs(train))
    single = Counter(after for _, after in pairs(train))
    unseen = 1e-3
    nats = {"unigram": 0.0, "word_before": 0.0}
    for first, after in pairs(test):
        nats["unigram"] -= math.log((single[after] + unseen) / (single.total() + 7 * unseen))
        follow = sum(before[first, token] + unseen for token in range(7))
        nats["word_before"] -= math.log((before[first, after] + unseen) / follow)
    for name, total in nats.items():
        loss = total / len(pairs(test))
        assert baselines[name]["loss"] == pytest.approx(loss, rel=1e-5)
        assert baselines[name]["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
        assert baselines[name]["bits_per_byte"] == pytest.approx(loss / math.log(2) / 2, rel=1e-5)
    most_frequent = single.most_common(1)[0][0]
    right = sum(after == most_frequent for _, after in pairs(test)) / len(pairs(test))
    assert baselines["unigram"]["accuracy"] == pytest.approx(right)
    assert not objective.baselines(Texts(test), None)


def test_long_texts_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_baselines, "MAX_TESTED_TOKENS", 80)
    texts = Texts(torch.randint(0, 5, (50, 8)))
    baselines = NextToken().baselines(texts, texts)
    assert baselines.note("unigram") == baselines.note("word_before") == "tested on 10 of 50 samples"
