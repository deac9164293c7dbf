"""Masks that the layers of one forward pass share, kept in the memo of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops import mask
from blockyard.ops.flex import block_mask
from blockyard.ops.mask import Visibility

Mask = TypeVar("Mask")


def shared_block_mask(seq: Seq, k_seq: Seq, visibility: Visibility, batch: int) -> Any:
    """FlexAttention's mask, from the memo where it is there."""
    return _memoised("blocks", 0, seq, k_seq, visibility, lambda: block_mask(seq, k_seq, visibility, batch))


def shared_dense_mask(seq: Seq, k_seq: Seq, visibility: Visibility, heads: int) -> tuple[Tensor | None, Tensor | None]:
    """The mask of scaled_dot_product_attention and the blind queries, from the memo where they are there."""
    return _memoised("dense", heads, seq, k_seq, visibility, lambda: mask.dense(seq, k_seq, visibility, heads))


def _memoised(kind: str, heads: int, seq: Seq, k_seq: Seq, visibility: Visibility, make: Callable[[], Mask]) -> Mask:
    """The result of `make`, kept in the memo of the queries where the keys are the same in all layers."""
    name = "self" if k_seq is seq else k_seq.memo.get("name")
    if name is None or (k_seq is not seq and seq.memo.get(name) is not k_seq):
        return make()
    key = (kind, heads, visibility, name)
    if key in seq.memo:
        kept: Mask = seq.memo[key]
        return kept
    result = make()
    if not torch.compiler.is_compiling():
        seq.memo[key] = result
    return result
