"""Masked tokens: how many, which, what replaces them, and that the selection is a function of its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.engine.loader import Layout
from blockyard.objective.masked_token import MaskedToken
from blockyard.objective.next_token import NextToken
from tests.support import engine_runs

N, V = 40, 30


def objective(**options: float) -> MaskedToken:
    masked = MaskedToken(**options)
    masked.tokens(TokenSpec((N,), vocabulary=V))
    return masked


def token_ids(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(V, (size, N + 1), generator=torch.Generator().manual_seed(seed))


def test_the_mask_is_one_more_token_id() -> None:
    tokens = MaskedToken().tokens(TokenSpec((N,), vocabulary=V))
    assert (tokens.vocabulary, tokens.mask, tokens.grid) == (V + 1, V, (N,))
    assert MaskedToken().outputs(DataSpec("text", (N,)), tokens) == V + 1
    plain = TokenSpec((2, 2))
    assert MaskedToken().tokens(plain) == plain
    with pytest.raises(ValueError, match="needs token ids"):
        MaskedToken().outputs(DataSpec("image", (1, 8, 8)), plain)
    assert NextToken().tokens(plain) is plain


def test_shares_match_bert() -> None:
    raw = token_ids(4000)
    batch = objective().prepare(Batch(raw), 5)
    assert batch.inputs.shape == batch.target.shape == (4000, N)
    original, selected = raw[:, :N], batch.target != Batch.ignore
    assert (selected.sum(1) == round(0.15 * N)).all()
    torch.testing.assert_close(batch.target[selected], original[selected])
    torch.testing.assert_close(batch.inputs[~selected], original[~selected])
    replaced = batch.inputs[selected]
    hidden, kept = (replaced == V).float().mean(), (replaced == original[selected]).float().mean()
    torch.testing.assert_close(hidden, torch.tensor(0.8), rtol=0, atol=0.01)
    # A random token is the true one with probability 1 / V.
    torch.testing.assert_close(kept, torch.tensor(0.1 + 0.1 / V), rtol=0, atol=0.01)
    others = replaced[(replaced != V) & (replaced != original[selected])].bincount(minlength=V).float()
    assert (others > 0).all()
    # Every position is selected equally often.
    torch.testing.assert_close(selected.float().mean(0), torch.full((N,), 0.15), rtol=0, atol=0.025)


def test_extreme_shares() -> None:
    raw = token_ids(20)
    for options, read in (({"hidden": 1.0, "random": 0.0}, V), ({"hidden": 0.0, "random": 0.0}, None)):
        batch = objective(**options).prepare(Batch(raw))
        selected = batch.target != Batch.ignore
        expected = raw[:, :N][selected] if read is None else torch.full_like(batch.inputs[selected], read)
        torch.testing.assert_close(batch.inputs[selected], expected)
    with pytest.raises(ValueError, match="must not exceed 1"):
        MaskedToken(hidden=0.9, random=0.2)


def assert_no_padding_is_selected(masked: MaskedToken) -> None:
    lengths = torch.tensor([N + 1, N, 7, 1] * 50)
    raw = token_ids(200).masked_fill(torch.arange(N + 1) >= lengths[:, None], 0)
    batch = masked.prepare(Batch(raw, lengths=lengths), 3)
    selected = batch.target != Batch.ignore
    assert not (selected & (torch.arange(N) >= batch.lengths[:, None])).any(), "padding is selected"
    assert batch.lengths.tolist() == lengths.clamp_max(N).tolist()
    assert selected.sum(1).tolist() == [max(1, round(0.15 * n)) for n in batch.lengths.tolist()]


def test_padding_is_not_selected() -> None:
    assert_no_padding_is_selected(objective())


def test_a_selection_that_ignores_lengths_is_caught() -> None:
    class IgnoresLengths(MaskedToken):
        def _select(self, scores: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
            return super()._select(scores, None)

    broken = IgnoresLengths()
    broken.tokens(TokenSpec((N,), vocabulary=V))
    with pytest.raises(AssertionError, match="padding is selected"):
        assert_no_padding_is_selected(broken)


def test_the_selection_is_a_function_of_key_and_sample() -> None:
    masked, raw = objective(), token_ids(12)
    numbers = torch.arange(12)
    whole = masked.prepare(Batch(raw, sample=numbers), 9)
    # Split over three processes, or padded to another width, the same tokens are selected.
    for rank in range(3):
        part = masked.prepare(Batch(raw[rank::3], sample=numbers[rank::3]), 9)
        torch.testing.assert_close(part.inputs, whole.inputs[rank::3])
        torch.testing.assert_close(part.target, whole.target[rank::3])
    lengths = torch.full((12,), 20)
    wide = masked.prepare(Batch(raw, lengths=lengths, sample=numbers), 9)
    narrow = masked.prepare(Batch(raw[:, :20], lengths=lengths, sample=numbers), 9)
    torch.testing.assert_close(wide.target[:, :20], narrow.target)
    for other in (masked.prepare(Batch(raw, sample=numbers), 10), masked.prepare(Batch(raw, sample=numbers + 1), 9)):
        assert (other.target != whole.target).any(1).float().mean() > 0.9
    fixed = masked.prepare(Batch(raw, sample=numbers))
    torch.testing.assert_close(masked.prepare(Batch(raw, sample=numbers)).inputs, fixed.inputs)


def test_a_sequence_without_targets_stays_without() -> None:
    raw = token_ids(3)
    target = raw.clone()
    target[1] = Batch.ignore
    batch = objective().prepare(Batch(raw, target=target))
    assert (batch.target != Batch.ignore).any(1).tolist() == [True, False, True]


def test_the_key_of_a_step_does_not_depend_on_micro_batches() -> None:
    one = Layout(seed=3, samples=100, batch_size=16)
    two = replace(one, micro_batches=2, rank=1, world=2)
    keys = [one.draw_key(update) for update in range(40)]
    assert keys == [two.draw_key(update) for update in range(40)]
    assert len(set(keys)) == 40
    assert keys != [replace(one, seed=4).draw_key(update) for update in range(40)]
    # With overfit the same batches repeat, with the same selection.
    again = replace(one, overfit=2)
    assert again.draw_key(0) == again.draw_key(2) != again.draw_key(1)


MASKED = ("tokenizer=byte", "position=rope", "model=encoder", "objective=masked_token", "data.batch_size=8")


def test_micro_batches_equal_the_batch_and_evaluation_is_fixed(tmp_path: Path) -> None:
    overrides = (*MASKED, "trainer.log_every=1", "schedule=constant", "callbacks=default")
    whole = engine_runs.text_run(tmp_path / "whole", *overrides)
    micro_batches = engine_runs.text_run(
        tmp_path / "pieces",
        *overrides,
        "trainer.accumulate=4",
        "data.eval_batch_size=32",
        "trainer.limit_val=2",
        "trainer.limit_test=2",
    )
    ours, theirs = engine_runs.rows(whole), engine_runs.rows(micro_batches)
    assert len(ours) == len(theirs) >= 5
    for left, right in zip(ours, theirs, strict=True):
        assert left == pytest.approx(right, rel=1e-3)
