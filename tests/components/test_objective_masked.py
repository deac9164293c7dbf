"""Masked symbols: how many, which, what is read in their place, and that a draw is a function of its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.engine.loader import Layout
from blockyard.objective.masked_token import MaskedToken
from blockyard.objective.next_token import NextToken
from tests import engine_runs, text_runs

N, V = 40, 30


def objective(**options: float) -> MaskedToken:
    made = MaskedToken(**options)
    made.tokens(TokenSpec((N,), vocabulary=V))
    return made


def rows(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(V, (size, N + 1), generator=torch.Generator().manual_seed(seed))


def test_the_mask_is_one_symbol_more() -> None:
    tokens = MaskedToken().tokens(TokenSpec((N,), vocabulary=V))
    assert (tokens.vocabulary, tokens.mask, tokens.grid) == (V + 1, V, (N,))
    assert MaskedToken().outputs(DataSpec("text", (N,)), tokens) == V + 1
    plain = TokenSpec((2, 2))
    assert MaskedToken().tokens(plain) == plain
    with pytest.raises(ValueError, match="needs token ids"):
        MaskedToken().outputs(DataSpec("image", (1, 8, 8)), plain)
    assert NextToken().tokens(plain) is plain


def test_shares_are_berts() -> None:
    raw = rows(4000)
    batch = objective().prepare(Batch(raw), 5)
    assert batch.inputs.shape == batch.target.shape == (4000, N)
    symbols, asked = raw[:, :N], batch.target != Batch.ignore
    assert (asked.sum(1) == round(0.15 * N)).all()
    torch.testing.assert_close(batch.target[asked], symbols[asked])
    torch.testing.assert_close(batch.inputs[~asked], symbols[~asked])
    read = batch.inputs[asked]
    hidden, kept = (read == V).float().mean(), (read == symbols[asked]).float().mean()
    torch.testing.assert_close(hidden, torch.tensor(0.8), rtol=0, atol=0.01)
    # A random symbol is the true one in a share 1 / V of the cases.
    torch.testing.assert_close(kept, torch.tensor(0.1 + 0.1 / V), rtol=0, atol=0.01)
    others = read[(read != V) & (read != symbols[asked])].bincount(minlength=V).float()
    assert (others > 0).all()
    # Every place is asked alike.
    torch.testing.assert_close(asked.float().mean(0), torch.full((N,), 0.15), rtol=0, atol=0.025)


def test_extreme_shares() -> None:
    raw = rows(20)
    for options, read in (({"hidden": 1.0, "random": 0.0}, V), ({"hidden": 0.0, "random": 0.0}, None)):
        batch = objective(**options).prepare(Batch(raw))
        asked = batch.target != Batch.ignore
        expected = raw[:, :N][asked] if read is None else torch.full_like(batch.inputs[asked], read)
        torch.testing.assert_close(batch.inputs[asked], expected)
    with pytest.raises(ValueError, match="must not exceed 1"):
        MaskedToken(hidden=0.9, random=0.2)


def assert_only_real_symbols(made: MaskedToken) -> None:
    lengths = torch.tensor([N + 1, N, 7, 1] * 50)
    raw = rows(200).masked_fill(torch.arange(N + 1) >= lengths[:, None], 0)
    batch = made.prepare(Batch(raw, lengths=lengths), 3)
    asked = batch.target != Batch.ignore
    assert not (asked & (torch.arange(N) >= batch.lengths[:, None])).any(), "padding is asked"
    assert batch.lengths.tolist() == lengths.clamp_max(N).tolist()
    assert asked.sum(1).tolist() == [max(1, round(0.15 * n)) for n in batch.lengths.tolist()]


def test_nothing_is_asked_of_padding() -> None:
    assert_only_real_symbols(objective())


def test_a_mask_that_forgets_the_lengths_is_caught() -> None:
    class Forgetful(MaskedToken):
        def _select(self, scores: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
            return super()._select(scores, None)

    broken = Forgetful()
    broken.tokens(TokenSpec((N,), vocabulary=V))
    with pytest.raises(AssertionError, match="padding is asked"):
        assert_only_real_symbols(broken)


def test_a_draw_is_a_function_of_key_and_sample() -> None:
    made, raw = objective(), rows(12)
    numbers = torch.arange(12)
    whole = made.prepare(Batch(raw, sample=numbers), 9)
    # Dealt to three processes, or padded to another width, the same symbols are asked.
    for rank in range(3):
        part = made.prepare(Batch(raw[rank::3], sample=numbers[rank::3]), 9)
        torch.testing.assert_close(part.inputs, whole.inputs[rank::3])
        torch.testing.assert_close(part.target, whole.target[rank::3])
    lengths = torch.full((12,), 20)
    wide = made.prepare(Batch(raw, lengths=lengths, sample=numbers), 9)
    narrow = made.prepare(Batch(raw[:, :20], lengths=lengths, sample=numbers), 9)
    torch.testing.assert_close(wide.target[:, :20], narrow.target)
    for other in (made.prepare(Batch(raw, sample=numbers), 10), made.prepare(Batch(raw, sample=numbers + 1), 9)):
        assert (other.target != whole.target).any(1).float().mean() > 0.9
    fixed = made.prepare(Batch(raw, sample=numbers))
    torch.testing.assert_close(made.prepare(Batch(raw, sample=numbers)).inputs, fixed.inputs)


def test_a_row_that_is_not_there_stays_without_a_question() -> None:
    raw = rows(3)
    target = raw.clone()
    target[1] = Batch.ignore
    batch = objective().prepare(Batch(raw, target=target))
    assert (batch.target != Batch.ignore).any(1).tolist() == [True, False, True]


def test_the_key_of_an_update_is_the_same_however_it_is_cut() -> None:
    one = Layout(seed=3, samples=100, batch_size=16)
    two = replace(one, pieces=2, rank=1, world=2)
    keys = [one.draw(update) for update in range(40)]
    assert keys == [two.draw(update) for update in range(40)]
    assert len(set(keys)) == 40
    assert keys != [replace(one, seed=4).draw(update) for update in range(40)]
    # Under overfit the same batches come again, asked the same things.
    again = replace(one, overfit=2)
    assert again.draw(0) == again.draw(2) != again.draw(1)


MASKED = ("tokenizer=byte", "position=rope", "model=encoder", "objective=masked_token", "data.batch_size=8")


def test_pieces_make_the_update_and_evaluation_is_fixed(tmp_path: Path) -> None:
    words = (*MASKED, "trainer.log_every=1", "schedule=constant", "callbacks=default")
    whole = text_runs.run(tmp_path / "whole", *words)
    pieces = text_runs.run(
        tmp_path / "pieces",
        *words,
        "trainer.accumulate=4",
        "data.eval_batch_size=32",
        "trainer.limit_val=2",
        "trainer.limit_test=2",
    )
    ours, theirs = engine_runs.rows(whole), engine_runs.rows(pieces)
    assert len(ours) == len(theirs) >= 5
    for left, right in zip(ours, theirs, strict=True):
        assert left == pytest.approx(right, rel=1e-3)
