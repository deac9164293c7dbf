"""Windows of a text: each token predicted once, and moved by one offset for each key."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from blockyard.data.splits.order import epoch_key
from blockyard.data.splits.texts import Windows


def windows(total: int, context: int) -> Windows:
    return Windows(torch.arange(total, dtype=torch.int32), None, context, 1.0)


@given(st.integers(2, 300), st.integers(1, 40))
def test_windows_predict_every_token_once(total: int, context: int) -> None:
    if total <= context:
        return
    split = windows(total, context)
    batch = split.batch(torch.arange(len(split)), None)
    assert batch.inputs.shape == (len(split), context + 1)
    targets = batch.inputs[:, 1:].flatten()
    torch.testing.assert_close(targets, torch.arange(1, len(targets) + 1))
    assert total - 1 - len(targets) < context  # an incomplete sequence is dropped


@given(st.integers(20, 300), st.integers(1, 19), st.integers(0, 2**40))
def test_a_key_moves_all_windows_by_one_offset(total: int, context: int, key: int) -> None:
    split = windows(total, context)
    moved = split.batch(torch.arange(len(split)), key).inputs
    assert int(moved.max()) < total
    torch.testing.assert_close(moved - moved[:, :1], torch.arange(context + 1).expand_as(moved))
    start = moved[:, 0]
    assert (start[1:-1].diff() == context).all()
    assert start[0] == min(key % context, total - 1 - context)
    # Wherever the cuts are, a token is a target at most twice an epoch, and twice only at the end.
    counts = torch.bincount(moved[:, 1:].flatten(), minlength=total)
    assert (counts[: total - 1 - context] <= 1).all()
    assert (counts <= 2).all()


def test_offsets_differ_from_epoch_to_epoch() -> None:
    split = windows(10_000, 64)
    starts = {int(split.batch(torch.tensor([0]), epoch_key(0, epoch)).inputs[0, 0]) for epoch in range(64)}
    assert len(starts) > 30
