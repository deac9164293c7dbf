"""Block selection: each query attends to its own block of the sequence, and to the blocks with the likest mean key.

Source: Lu et al. 2025, MoBA: Mixture of Block Attention for Long-Context LLMs (arXiv 2502.13189), eq. 2 to 6
Reference: the choice written as a loop over queries and blocks, in tests/components/reference
Equation: softmax(q K_S^T / sqrt(K)) V_S in each head, S the keys of the `top` blocks of largest q^T mean(K_b); the
    block of the query is always among them, and causal attention leaves out later keys
Cost: O(N^2 D) time and O(N^2) memory in each head here: all scores are computed, and the scores of other blocks
    masked; a kernel that skips them takes O(N top block D)

    block 2, top 2        a query reads its own block, up to itself, and one block in front of it
    x . . . . .
    x x . . . .
    x x x . . .
    x x x x . .
    . . x x x .
    x x . . x x
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Length, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops import mask, reference
from blockyard.ops.mask import Visibility
from blockyard.token_mixer._rule_attention import RuleAttention
from blockyard.token_mixer.attention import Attention


class BlockSelection(RuleAttention):
    """For tokens on a line. A document begins a block; class and register tokens see all tokens and are seen by all.

    The choice of blocks has no gradient: keys learn from the scores of the blocks that were chosen.

    Options:
        block: tokens of a block
        top: blocks that a query reads, its own included
    """

    by_pairs: ClassVar[bool] = False  # a block is chosen by the mean of its keys
    traits = replace(Attention.traits, equivariant=False, cross=False, axes=frozenset({1}))

    @with_options_of(Attention, only=("num_kv_heads", "qk_norm", "bias", "dropout"))
    def __init__(self, ctx: Context, *, block: Length = 8, top: Length = 3, **options: Any) -> None:
        super().__init__(ctx, **options)
        self.rule = partial(selected, block=block, top=top)


def selected(
    q: Tensor, k: Tensor, seq: Seq, k_seq: Seq, visibility: Visibility, scale: float | None, *, block: int, top: int
) -> Tensor:
    """Return the softmax over the keys of the selected blocks: weights (B, H, N, M)."""
    raw = reference.scores(q, k, seq, k_seq, visibility, scale)  # (B, H, N, M)
    return reference.normalised(raw.masked_fill(~_chosen(q, k, seq, k_seq, visibility, block, top), float("-inf")))


@torch.no_grad()
def _chosen(q: Tensor, k: Tensor, seq: Seq, k_seq: Seq, visibility: Visibility, block: int, top: int) -> Tensor:
    """Return whether a query has chosen the block of a key: (B, H, N, M) bool. A block is known by its first key."""
    chunks = mask.chunk_numbers(seq, k_seq, replace(visibility, chunk=block))
    assert chunks is not None
    q_block, k_block = chunks  # (B|1, N), (B|1, M)
    row = torch.arange(len(k_seq), device=k.device)
    real = (row >= k_seq.num_prefix)[None] if k_seq.valid is None else (row >= k_seq.num_prefix) & k_seq.valid
    own = q_block[:, :, None] == k_block[:, None]  # (B|1, N, M)
    if seq.segment is not None and k_seq.segment is not None:
        own = own & (seq.segment[:, :, None] == k_seq.segment[:, None])
    first = _first_keys(k_block, real, k_seq.segment)  # (B|1, M)
    is_first = real & (first == row)
    keys = _block_means(k, first, real).repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, M, K)
    # An infinite likeness to the own block puts it in front of all others.
    likeness = (q @ keys.transpose(-1, -2)).masked_fill(own[:, None], float("inf"))  # (B, H, N, M)
    sees = mask.table(seq, k_seq, visibility)
    candidates = is_first[:, None, None] if sees is None else is_first[:, None, None] & sees
    best = likeness.masked_fill(~candidates, float("-inf")).topk(min(top, len(k_seq)), dim=-1)
    firsts = torch.zeros_like(likeness, dtype=torch.bool).scatter(-1, best.indices, best.values > float("-inf"))
    chosen = firsts.gather(-1, first[:, None, None].expand_as(firsts))  # (B, H, N, M), every key as its first one
    everywhere = (torch.arange(len(seq), device=k.device) < seq.num_prefix)[:, None] | (row < k_seq.num_prefix)
    return chosen | everywhere


def _first_keys(block: Tensor, real: Tensor, segment: Tensor | None) -> Tensor:
    """Return the row of the first real key of each real key's block: (B|1, M).

    block: (B|1, M), the number of the block of each key; it does not fall within a segment
    """
    row = torch.arange(block.shape[-1], device=block.device)
    last = torch.where(real, row, -1).cummax(-1).values  # the last real key up to this one
    before = torch.nn.functional.pad(last, (1, -1), value=-1)  # the last real key in front of it
    starts = before < 0
    for number in (block,) if segment is None else (block, segment):
        shape = torch.broadcast_shapes(number.shape, before.shape)
        starts = starts | (number != number.expand(shape).gather(-1, before.clamp(min=0).expand(shape)))
    return torch.where(real & starts, row, 0).cummax(-1).values


def _block_means(k: Tensor, first: Tensor, real: Tensor) -> Tensor:
    """Return the mean key of each block at the row of its first key, (B, H, M, K); elsewhere zero."""
    shape = (k.shape[0], 1, k.shape[2], 1)
    index = first[:, None, :, None].expand(shape)
    counted = real[:, None, :, None].expand(shape).to(k.dtype)
    count = torch.zeros(shape, dtype=k.dtype, device=k.device).scatter_add(2, index, counted)
    total = torch.zeros_like(k).scatter_add(2, index.expand(k.shape), k * counted)
    return total / count.clamp(min=1)
