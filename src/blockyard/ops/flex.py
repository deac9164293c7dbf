"""FlexAttention: position biases and block masks fused into one kernel, without an N x M table.

Source: Dong et al. 2024, Flex Attention (arXiv 2412.05496); torch.nn.attention.flex_attention
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Position, Seq
from blockyard.ops.mask import Visibility, chunk_numbers, everything, scheme, visible
from blockyard.ops.shaping import PLAIN, Shaping, capped

FEWEST = 2048  # queries and keys: below this, `auto` takes a mask or a table
FEW = f"with fewer than {FEWEST} queries or keys a mask is faster"  # 3.9 to 7.5 times on an H200; nothing is compiled
SHAPES = 16  # of queries and keys, for which `auto` has FlexAttention compiled in one process; others take a mask
READS_TWICE = "FlexAttention has no gradient of a learned tensor that a bias reads more than once"


def refusal(device: str, dtype: torch.dtype, head_dim: int, dropout: float) -> str | None:
    """Return the reason why FlexAttention cannot take this, or None if it can."""
    if device != "cuda":
        return f"FlexAttention is used on CUDA only, not on {device}"
    if dropout:
        return "FlexAttention has no dropout"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"FlexAttention does not take {dtype}"
    if head_dim < 16 or head_dim & (head_dim - 1):
        return f"FlexAttention needs a head width that is a power of two of at least 16, not {head_dim}"
    return None


def refusal_of_scheme(position: type[Position] | Position | None) -> str | None:
    """Return the reason why FlexAttention cannot take the bias of this scheme, or None if it can.

    A pair has several facts, and `relate` may read a tensor for each.
    """
    if position is None or (position.reads_once and "relate" not in position.acts_on):
        return None
    return READS_TWICE


def not_worth_it(q: Tensor, k: Tensor) -> str | None:
    """Return the reason why `auto` takes a mask in place of FlexAttention, or None. q (B, H, N, K), k (B, H', M, K)

    FlexAttention is compiled for each shape, which takes seconds: decoding from a cache has a new one at each token.
    """
    if min(q.shape[2], k.shape[2]) < FEWEST:
        return FEW
    if torch.compiler.is_compiling():
        return None
    shape = (q.shape, k.shape, q.dtype, torch.is_grad_enabled())
    if shape not in _shapes and len(_shapes) >= SHAPES:
        return f"FlexAttention has been compiled for {SHAPES} other shapes in this process"
    _shapes.add(shape)
    return None


_shapes: set[tuple[torch.Size, torch.Size, torch.dtype, bool]] = set()


def block_mask(seq: Seq, k_seq: Seq, visibility: Visibility, batch: int) -> Any:
    """Return a BlockMask of the keys that each query sees, or None if every query sees every key."""
    from torch.nn.attention.flex_attention import create_block_mask

    if everything(k_seq, visibility):
        return None
    q_index, k_index, num_prefix = seq.index, k_seq.index, seq.num_prefix
    valid, q_segment, k_segment = k_seq.valid, seq.segment, k_seq.segment
    shown = k_seq.shown
    chunks = chunk_numbers(seq, k_seq, visibility)
    q_chunk, k_chunk = chunks or (None, None)  # of one sequence where all are alike
    per_sample = valid is not None or k_segment is not None or shown is not None

    def sees(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return visible(
            visibility,
            k_seq.num_prefix,
            q_index[q],
            k_index[k],
            k,
            None if valid is None else valid[b, k],
            None if q_segment is None else q_segment[b, q],
            None if k_segment is None else k_segment[b, k],
            q < num_prefix,
            None if shown is None else shown[b, k],
            None if q_chunk is None else q_chunk[b if len(q_chunk) > 1 else 0, q],
            None if k_chunk is None else k_chunk[b if len(k_chunk) > 1 else 0, k],
        )

    batch_size = batch if per_sample else None
    return create_block_mask(sees, batch_size, None, len(seq), len(k_seq), device=q_index.device)


def score_function(seq: Seq, k_seq: Seq, shaping: Shaping = PLAIN) -> Callable[..., Tensor] | None:
    """Return a function that changes a score, or None: by a cap, the position scheme's bias, and forgetting."""
    cap, forget = shaping.cap, shaping.forget
    changes: list[Callable[..., Tensor]] = []
    if cap is not None:
        changes.append(lambda score, *_: capped(score, cap))
    add_bias = _by_coords(seq, k_seq)
    if add_bias is not None:
        changes.append(add_bias)
    if forget is not None:
        q_sums, k_sums = forget
        if k_sums is q_sums:  # the kernel has no gradient of a tensor that is indexed twice
            k_sums = k_sums.clone()
        changes.append(lambda score, b, h, q, k: score - (q_sums[b, h, q] - k_sums[b, h, k]).abs())
    if len(changes) < 2:
        return changes[0] if changes else None

    def change_all(score: Tensor, *at: Tensor) -> Tensor:
        for change in changes:
            score = change(score, *at)
        return score

    return change_all


def _by_coords(seq: Seq, k_seq: Seq) -> Callable[..., Tensor] | None:
    position = scheme(seq, k_seq, "bias")
    if position is None:
        return None
    # One tensor for each axis: the compiler reads scalars, and indexing into vectors gives wrong results.
    q_coords = tuple(axis.contiguous() for axis in seq.coords.unbind(-1))  # A x (B|1, N)
    k_coords = tuple(axis.contiguous() for axis in k_seq.coords.unbind(-1))  # A x (B|1, M)
    q_shared = seq.coords.shape[0] == 1
    k_shared = k_seq.coords.shape[0] == 1
    p = seq.num_prefix
    m = k_seq.num_prefix

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q_row = 0 if q_shared else b
        k_row = 0 if k_shared else b
        q_coord = tuple(axis[q_row, q] for axis in q_coords)
        k_coord = tuple(axis[k_row, k] for axis in k_coords)
        bias = position.bias(h, q_coord, k_coord)
        if p or m:
            bias = torch.where((q < p) | (k < m), 0.0, bias)
        return score + bias

    return add_bias


def _without_staging(seq: Seq, k_seq: Seq) -> dict[str, int] | None:
    """Return options of the kernel for a scheme that looks learned numbers up for each query and key, otherwise None.

    The compiler stages the loads of a loop in shared memory, those of a score too: with torch 2.11 on an H200 T5's
    buckets of a tile of 128 x 128 need 410,624 bytes, and there are 232,448.
    """
    position = scheme(seq, k_seq, "bias")
    learned = isinstance(position, nn.Module) and next(position.parameters(), None) is not None
    if not learned:
        return None
    return {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "fwd_num_stages": 1, "bwd_num_stages": 1}


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # One kernel for each shape: the dynamic form fails to build on some backends. Past torch's limit, of eight by
    # default, it runs unfused; a shape is compiled again where other facts hide keys or another scheme adds to scores.
    torch._dynamo.config.recompile_limit = max(4 * SHAPES, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=False)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    mask: Any = None,
    compiled: bool = True,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Attention by FlexAttention: (B, H, N, K). `mask` is a BlockMask made before, for these facts."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    if mask is None:
        mask = block_mask(seq, k_seq, visibility, q.shape[0])
    # Inside a compiled block the compiler traces the plain function.
    kernel: Any = flex_attention if torch.compiler.is_compiling() or not compiled else _compiled()
    inputs = (q.contiguous(), k.contiguous(), v.contiguous())
    settings = {
        "score_mod": score_function(seq, k_seq, shaping),
        "kernel_options": _without_staging(seq, k_seq),
        "block_mask": mask,
        "scale": scale,
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    if shaping.sink is None:
        return kernel(*inputs, **settings)
    out, aux = kernel(*inputs, **settings, return_aux=AuxRequest(lse=True))
    log_sum = aux.lse[..., None]  # (B, H, N, 1)
    # What the keys keep of their weight: e^L / (e^L + e^z).
    return out * torch.sigmoid(log_sum - shaping.logits(log_sum)).to(out.dtype)
