"""Attention against torch.nn.MultiheadAttention; qk_norm and grouped heads against formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Memory
from blockyard.token_mixer.attention import Attention
from tests.components.reference.inputs import sequence
from tests.support.helpers import context, stir

N, D = 6, 16


def pair(causal: bool = False) -> tuple[Attention, nn.MultiheadAttention]:
    """Ours and torch's with the same weights."""
    ours = stir(Attention(context(causal=causal), bias=True)).double().eval()
    theirs = nn.MultiheadAttention(D, 4, batch_first=True).double().eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.proj_in.weight)
        theirs.in_proj_bias.copy_(ours.proj_in.bias)
        theirs.out_proj.weight.copy_(ours.proj_out.weight)
        theirs.out_proj.bias.copy_(ours.proj_out.bias)
    return ours, theirs


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head(causal: bool) -> None:
    ours, theirs = pair(causal)
    x = torch.randn(2, N, D, dtype=torch.float64)
    hidden = torch.ones(N, N).triu(1).bool() if causal else None
    assert_close(ours(x, sequence(N)), theirs(x, x, x, attn_mask=hidden)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_padding(causal: bool) -> None:
    """With padding the mask of a causal sequence is a table, and not the kernel's own."""
    ours, theirs = pair(causal)
    x = torch.randn(2, N, D, dtype=torch.float64)
    valid = torch.arange(N) < torch.tensor([[4], [6]])
    hidden = torch.ones(N, N).triu(1).bool() if causal else None
    assert_close(ours(x, sequence(N, valid)), theirs(x, x, x, attn_mask=hidden, key_padding_mask=~valid)[0])


def test_memory() -> None:
    ours, theirs = pair(causal=True)
    x, y = torch.randn(2, N, D, dtype=torch.float64), torch.randn(2, 9, D, dtype=torch.float64)
    valid = torch.arange(9) < torch.tensor([[4], [9]])
    out = ours(x, sequence(N), memory=Memory(y, sequence(9, valid)))
    assert_close(out, theirs(x, y, y, key_padding_mask=~valid)[0])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_sequence_as_its_own_memory(qk_norm: bool, kv_heads: int) -> None:
    """Cross-attention to the sequence itself equals bidirectional self-attention."""
    ours = stir(Attention(context(), num_kv_heads=kv_heads, qk_norm=qk_norm, bias=True)).double()
    x = torch.randn(2, N, D, dtype=torch.float64)
    assert_close(ours(x, sequence(N), memory=Memory(x, sequence(N))), ours(x, sequence(N)))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_with_normalised_queries_and_keys(kv_heads: int) -> None:
    """Ainslie et al.: query head h reads key head h // (H / H'). Each head is computed separately."""
    ours = stir(Attention(context(), num_kv_heads=kv_heads, qk_norm=True)).double()
    x, width = torch.randn(2, N, D, dtype=torch.float64), D // 4
    weight = ours.proj_in.weight
    heads = []
    for head in range(4):
        group = head // (4 // kv_heads)
        q = x @ weight[head * width : (head + 1) * width].T
        k = x @ weight[D + group * width : D + (group + 1) * width].T
        start = D + kv_heads * width
        v = x @ weight[start + group * width : start + (group + 1) * width].T
        q = q / torch.sqrt(q.square().mean(-1, keepdim=True) + 1e-6) * ours.q_norm.weight
        k = k / torch.sqrt(k.square().mean(-1, keepdim=True) + 1e-6) * ours.k_norm.weight
        heads.append(F.softmax(q @ k.transpose(1, 2) / math.sqrt(width), dim=-1) @ v)
    assert_close(ours(x, sequence(N)), torch.cat(heads, -1) @ ours.proj_out.weight.T)


def test_planted_wrong_scale_is_caught() -> None:
    ours, theirs = pair()
    x = torch.randn(2, N, D, dtype=torch.float64)
    with torch.no_grad():
        ours.proj_in.weight[:D] *= 2
    with pytest.raises(AssertionError):
        assert_close(ours(x, sequence(N)), theirs(x, x, x)[0])
