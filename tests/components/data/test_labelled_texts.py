"""Texts with a class each: windows of code, their splits and slices, and the baselines beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from blockyard.contracts import HasBaselines
from blockyard.data.code_topics import PACKAGES, SLICES, CodeTopics
from blockyard.data.splits.labelled_texts import decoded
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.objective.classify import Classify
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.word import Word

CONTEXT = 400


@pytest.fixture(scope="module")
def topics() -> CodeTopics:
    return CodeTopics(context=CONTEXT)


def test_no_file_is_in_two_splits(topics: CodeTopics) -> None:
    splits = topics.files()
    names = [{text for text, _ in files if text} for files in splits]
    assert len(set.union(*names)) == sum(map(len, names))
    for files in splits:
        assert {label for _, label in files} == set(range(len(PACKAGES)))


def test_windows_are_the_files_cut_in_order(topics: CodeTopics) -> None:
    test = topics.load(Byte()).test
    batch = test.batch(torch.arange(len(test)), None)
    assert batch.slice is not None
    assert isinstance(batch.target, torch.Tensor)
    texts = [Byte().decode(row) for row in batch.inputs.tolist()]
    expected, classes, slices = [], [], []
    for text, label in topics.files()[2]:
        content = text.encode()
        for number in range(len(content) // CONTEXT):
            expected.append(content[number * CONTEXT : (number + 1) * CONTEXT].decode(errors="replace"))
            classes.append(label)
            slices.append(SLICES[min(number, 1)])
    assert texts == expected
    assert batch.target.tolist() == classes
    assert [SLICES[number] for number in batch.slice.tolist()] == slices
    assert batch.lengths is None


def test_a_key_moves_windows_within_their_file(topics: CodeTopics) -> None:
    train = topics.load(Byte()).train
    files = [text.encode() for text, _ in topics.files()[0]]
    still, moved = (train.batch(torch.arange(len(train)), key).inputs for key in (None, 5 * CONTEXT + 37))
    counts = torch.tensor([len(content) // CONTEXT for content in files])
    owner = torch.arange(len(files)).repeat_interleave(counts).tolist()
    shifts = 0
    for row, (before, after) in enumerate(zip(still.tolist(), moved.tolist(), strict=True)):
        assert bytes(after) in files[owner[row]]
        shifts += bytes(before)[37:] == bytes(after)[:-37]
    assert shifts > 0.9 * len(still)  # the others stand at the end of a file


def test_a_package_without_a_window_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.context=60000: no file of .* has so many tokens"):
        CodeTopics(context=60_000).load(Byte())


@pytest.mark.full
def test_baselines_are_those_of_scikit_learn(topics: CodeTopics) -> None:
    splits = topics.load(Word())
    train, test = splits.train, splits.test
    assert isinstance(test, HasBaselines)
    baselines = Classify().baselines(test)
    fit, own = (decoded(split.texts, split.tokenizer) for split in (train, test))  # type: ignore[attr-defined]
    target = [split.texts.target.numpy() for split in (train, test)]  # type: ignore[attr-defined]
    vectors = TfidfVectorizer(sublinear_tf=True)
    model = LogisticRegression(C=10.0, max_iter=100).fit(vectors.fit_transform(fit), target[0])
    assert baselines["tf_idf"]["accuracy"] == pytest.approx(model.score(vectors.transform(own), target[1]))
    most = np.bincount(target[0]).argmax()
    assert baselines["majority"]["accuracy"] == pytest.approx((target[1] == most).mean())
    assert baselines["tf_idf"]["accuracy"] > 0.6 > 0.3 > baselines["majority"]["accuracy"]


@pytest.mark.full
def test_baselines_of_the_e_mails_are_the_known_figures(shared_data: Path) -> None:
    data = Table(path=str(shared_data / "spamassassin" / "spamassassin.tsv.gz"), context=256)
    baselines = Classify().baselines(data.load(Word()).test)
    assert baselines["majority"]["accuracy"] == pytest.approx(0.759, abs=1e-3)
    assert baselines["majority"]["auroc"] == pytest.approx(0.5)
    assert baselines["tf_idf"]["accuracy"] == pytest.approx(0.981, abs=5e-3)
    assert baselines["tf_idf"]["auroc"] > 0.99
