"""Pairs of texts in one sequence: what is read, what is predicted, and what batches are sorted by."""

from __future__ import annotations

from pathlib import Path

import torch

from blockyard.contracts import Batch, HasLengths
from blockyard.data.splits.order import grouped_order
from blockyard.data.translation import Translation
from blockyard.tokenizer.char import Char


def test_lengths_are_those_of_both_texts_with_the_start_and_the_end(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    pairs = [("a" * (1 + 7 * n % 9), "b" * (1 + 5 * n % 7)) for n in range(60)]
    splits = ["train"] * 40 + ["val"] * 10 + ["test"] * 10
    lines = [f"{a}{n}\t{b}{n}\t{split}" for n, ((a, b), split) in enumerate(zip(pairs, splits, strict=True))]
    path.write_text("\n".join(["one\tother\tsplit", *lines]) + "\n")
    train = Translation(path=str(path), source="one", target="other", joined=True).load(Char()).train
    assert isinstance(train, HasLengths)
    assert train.lengths.tolist() == [len(source) + len(target) + 2 for source, target in train.pairs]
    batch = train.batch(torch.arange(len(train)), None)
    assert batch.lengths is not None
    torch.testing.assert_close(batch.lengths, train.lengths)
    # Sorted by them, batches have fewer positions that are padding.
    padding = [
        sum(train.batch(order, None).inputs.numel() for order in orders.split(5))
        for orders in (torch.arange(len(train)), grouped_order(0, 0, train.lengths, 5, 8))
    ]
    assert padding[1] < padding[0]
    assert isinstance(batch.target, torch.Tensor)
    real = torch.arange(batch.inputs.shape[1]) < batch.lengths[:, None]
    targets = ((batch.target != Batch.ignore) & real).sum(1)
    assert targets.tolist() == [len(target) + 1 for _, target in train.pairs]
