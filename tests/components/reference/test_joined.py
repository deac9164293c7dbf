"""Source and target in one sequence: cross-attention as attention with a mask, and what a decoder is asked for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Batch, DataSpec, Memory, Seq, TokenSpec
from blockyard.data.splits.pairs import JoinedSplit
from blockyard.data.translation import Translation
from blockyard.model.decoder import Decoder
from blockyard.objective.next_token import NextToken
from blockyard.token_mixer.attention import Attention
from blockyard.tokenizer._lookup import text_tokens
from blockyard.tokenizer.char import Char
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import tiny_parts
from tests.support.helpers import context, stir, token_ids

N, M, D, H = 5, 7, 16, 4


def seq(count: int) -> Seq:
    return Seq(torch.arange(count), torch.arange(count, dtype=torch.float64)[None, :, None])


def masked_attention(mixer: Attention, both: Tensor, sees: Tensor) -> Tensor:
    """Attention over one sequence of N + M tokens with a mask, written out: (B, M + N, D). sees: (M + N, M + N)."""
    q, k, v = (both @ mixer.proj_in.weight.T).chunk(3, -1)  # (B, M + N, D) each
    heads = []
    for head in range(H):
        part = slice(head * D // H, (head + 1) * D // H)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(D // H)  # (B, M + N, M + N)
        heads.append(scores.masked_fill(~sees, -math.inf).softmax(-1) @ v[..., part])
    return torch.cat(heads, -1) @ mixer.proj_out.weight.T


@torch.no_grad()
def test_cross_attention_is_attention_over_both_with_a_mask() -> None:
    """Of a sequence [memory | tokens], the tokens see the memory and nothing else: cross-attention."""
    mixer = stir(initialise(Attention(context(dim=D, heads=H)), 0)).double().eval()
    generator = torch.Generator().manual_seed(0)
    x, memory = (torch.randn(2, count, D, generator=generator, dtype=torch.float64) for count in (N, M))
    crossed = mixer(x, seq(N), memory=Memory(memory, seq(M)))
    both = torch.cat([memory, x], 1)
    sees = torch.zeros(M + N, M + N, dtype=torch.bool)
    sees[:, :M] = True
    assert_close(masked_attention(mixer, both, sees)[:, M:], crossed)
    sees[M:, M:] = torch.ones(N, N).tril().bool()  # a decoder over both also sees the tokens before
    with pytest.raises(AssertionError):
        assert_close(masked_attention(mixer, both, sees)[:, M:], crossed)


@torch.no_grad()
def test_a_decoder_over_both_sees_the_source_and_its_own_past() -> None:
    """One layer of a decoder over [source | tokens] is attention with the block mask, causal in both."""
    plan = Decoder(dim=D, depth=1, heads=H)
    ctx = plan.context(DataSpec("text", (M + N,)), TokenSpec((M + N,), vocabulary=11), 11)
    model = stir(initialise(plan.build(ctx, tiny_parts(position="none")), 0)).double().eval()
    steps = model.steps(token_ids(2, M + N))
    block = model.blocks[0]
    sees = torch.ones(M + N, M + N).tril().bool()
    mixed = steps["stream"] + masked_attention(block.token_mixer, block.token_norm(steps["stream"]), sees)
    assert_close(mixed + block.channel_mixer(block.channel_norm(mixed)), steps["block.0"])


def test_only_the_target_is_predicted() -> None:
    data, tokenizer = Translation(joined=True, context=32, source_context=32), Char()
    split = data.load(tokenizer).validation
    assert isinstance(split, JoinedSplit)
    tokens = text_tokens(data.spec, tokenizer.spec(data.spec).vocabulary - 2)
    assert tokens.grid == (64,)
    start, end = tokens.start, tokens.end
    ready = NextToken().ready(split.batch(torch.arange(6), None))
    for row in range(6):
        source, target = split.pairs[row]
        read, written = tokenizer.encode(source), [*tokenizer.encode(target), end]
        assert ready.inputs[row, : len(read) + len(written)].tolist() == [*read, start, *written[:-1]]
        expected = [Batch.ignore] * len(read) + written
        assert ready.target[row, : len(expected)].tolist() == expected
        assert set(ready.target[row, len(expected) :].tolist()) <= {Batch.ignore}
        assert int(ready.lengths[row]) == len(expected)
