"""Attention to learned slots against its formula, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Memory, Seq, TokenSpec
from blockyard.ops.mask import Visibility, bias_table
from blockyard.ops.reference import eager
from blockyard.position.graph import GraphDistance
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.hard_attention import HardAttention
from blockyard.token_mixer.memory_attention import MemoryAttention, with_slots
from blockyard.token_mixer.windowed_attention import WindowedAttention
from tests.components.reference.attention_inputs import CAUSAL, D, N, scores_and_values, tokens
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context


@CAUSAL
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_memory_attention(kv_heads: int, causal: bool) -> None:
    """Sukhbaatar et al., eq. 6: one softmax over the keys of the sequence and the learned ones."""
    ours = stirred(MemoryAttention(context(causal=causal), slots=5, num_kv_heads=kv_heads))
    x, out = tokens(), []
    for i in range(N):
        heads_out = []
        for head in range(4):
            group = head // (4 // kv_heads)
            scores, values = scores_and_values(x, ours, i, list(range(i + 1 if causal else N)), head)
            query = x[:, i] @ ours.proj_in.weight[head * 4 : (head + 1) * 4].T
            scores = torch.cat([scores, query @ ours.keys[group].T / 2], -1)
            values = torch.cat([values, ours.values[group].expand(2, -1, -1)], 1)
            heads_out.append((F.softmax(scores, -1)[..., None] * values).sum(1))
        out.append(torch.cat(heads_out, -1) @ ours.proj_out.weight.T)
    assert_close(ours(x, sequence(N)), torch.stack(out, 1))


def test_the_number_of_keys_is_that_of_slots_and_tokens() -> None:
    """score_scale=log_n: token i of a causal sequence sees the slots and i + 1 tokens."""
    ours = stirred(MemoryAttention(context(causal=True), slots=5, score_scale="log_n"))
    seen: list[Tensor] = []
    plain = ours.scores.scaled

    def scaled(q: Tensor, *facts: Any) -> Tensor:
        seen.append(plain(torch.ones_like(q), *facts))
        return plain(q, *facts)

    ours.scores.scaled = scaled  # type: ignore[method-assign]
    ours(tokens(), sequence(N))
    counts = torch.arange(6, 6 + N).double().log()
    assert_close(seen[0][0, :, :, 0], ours.scores.factor[:, None] * counts)


def test_no_scheme_acts_on_slots() -> None:
    """position=graph has a trained number for pairs with a class token, and slots are none."""
    ctx = replace(context(causal=False), tokens=TokenSpec((), count=3, pairs=(3,)), num_prefix=1)
    position = stirred(GraphDistance(ctx, steps=0))
    with torch.no_grad():
        position.prefix.fill_(7.0)
    pairs = (torch.ones(1, 4, 4, dtype=torch.long),)
    seq = Seq(torch.arange(4), torch.zeros(1, 4, 0), num_prefix=1, position=position, pairs=pairs)
    table = bias_table(seq, with_slots(seq, 2), 4)
    assert table is not None
    assert (table[..., :2] == 0).all()
    assert (table[..., 2] == 7).all()
    assert_close(table[..., 2:], bias_table(seq, seq, 4))


@pytest.mark.parametrize("mixer", [Attention, WindowedAttention, HardAttention])
def test_a_memory_is_projected_once(mixer: type[Attention], monkeypatch: pytest.MonkeyPatch) -> None:
    """During decoding; another memory, or a training step, is projected again."""
    ours, whole, widths = stirred(mixer(context(causal=True))).eval(), F.linear, []
    monkeypatch.setattr(F, "linear", lambda x, w, b=None: widths.append(len(w)) or whole(x, w, b))
    x, memory = tokens(), Memory(tokens(9).flip(0), sequence(9))
    expected = ours(x, sequence(N), memory=memory)
    assert not memory.seq.memo
    widths.clear()
    with torch.no_grad():
        for i in range(N):
            assert_close(ours(x[:, i : i + 1], sequence(1), memory=memory), expected[:, i : i + 1])
        assert widths.count(2 * D) == 1
        other = Memory(memory.x + 1, memory.seq)
        assert_close(ours(x, sequence(N), memory=other), ours(x, sequence(N), memory=Memory(other.x, sequence(9))))
        twin = stirred(mixer(context(causal=True))).eval()
        with torch.no_grad():
            twin.proj_in.weight.add_(1)
        assert not torch.equal(twin(x, sequence(N), memory=memory), expected)
    ours.train()
    with torch.no_grad():
        ours.proj_in.weight.mul_(1.1)
        assert not torch.equal(ours(x, sequence(N), memory=memory), expected)


def test_planted_masked_slots_are_caught() -> None:
    """Planted: slots masked like tokens of the sequence."""
    ours = stirred(MemoryAttention(context(causal=True), slots=5))
    x = tokens()
    q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in (x @ ours.proj_in.weight.T).chunk(3, -1))
    k, v = (torch.cat([t, own.expand(2, -1, -1, -1)], 2) for t, own in ((k, ours.keys), (v, ours.values)))
    behind = (
        eager(q, k, v, sequence(N), sequence(N + 5), Visibility(True)).transpose(1, 2).flatten(2)
        @ ours.proj_out.weight.T
    )
    with pytest.raises(AssertionError):
        assert_close(ours(x, sequence(N)), behind)
