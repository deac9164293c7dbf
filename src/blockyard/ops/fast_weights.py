"""A state of keys and values that decays and takes in one token after the other: in chunks, or token by token.

Source: Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464), section 3.3, and Kimi Linear (arXiv 2510.26692),
    section 3, for the delta rule; Yang et al. 2023, Gated Linear Attention (arXiv 2312.06635), section 4, and Dao and
    Gu 2024, Transformers are SSMs (arXiv 2405.21060), section 6, for the plain sum
Reference: transformers torch_chunk_gated_delta_rule (qwen3_next) and chunk_kimi_delta_attention (kimi_linear)
Equation: S_t = D_t S_(t-1) + k_t u_t^T and y_t = S_t^T q_t, with a decay of each channel of the keys, or one for all
    u_t = v_t                                      a sum
    u_t = beta_t (v_t - (D_t S_(t-1))^T k_t)       the delta rule: v_t less the output of the state for k_t
Cost: O(N (C K + C V + K V)) time in chunks of C tokens, and N K^2 more for the delta rule; O(N K V) token by token

In a chunk let G_t be the product of its decays up to token t, and S the state before it. Then all u of a chunk follow
from one triangular system, and the state after it from the one before it:

    (1 + A) U = beta V - beta (K G) S       A_ts = beta_t sum_c k_tc k_sc G_tc / G_sc  for s < t, else 0
    Y = (Q G) S + B U                       B_ts = sum_c q_tc k_sc G_tc / G_sc         for s <= t, else 0
    S' = G_C S + (K G_C / G)^T U

Ratios of decays come from sums of logarithms and never exceed 1, however strong the decays are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.ops.documents import document_starts


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log: Tensor,
    beta: Tensor | None = None,
    *,
    segment: Tensor | None = None,
    num_prefix: int = 0,
    state: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, H, N, V) and the state after the last token (B, H, K, V), about `chunk` tokens at a time.

    q, k: (B, H, N, K); v: (B, H, N, V); log: (B, H, N, K), or (B, H, N, 1), the logarithm of the decays, at most 0
    beta: (B, H, N, 1), of the delta rule; None is a sum
    segment: (B, N); every document, a run of tokens, starts from the state after the first `num_prefix` tokens
    state: (B, H, K, V), the state before the first token; None is zero
    """
    parts = [q, k, v, log] if beta is None else [q, k, v, log, beta]
    if segment is None or num_prefix == 0:
        return _chunked(parts, segment, state, chunk)
    prefix, state = _chunked([part[:, :, :num_prefix] for part in parts], None, state, chunk)
    out, state = _chunked([part[:, :, num_prefix:] for part in parts], segment[:, num_prefix:], state, chunk)
    return torch.cat([prefix, out], dim=2), state


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor, beta: Tensor | None = None, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the same as `chunked`, token by token, for one document: the least work for a single token."""
    state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    outputs = []
    for t in range(q.shape[2]):
        state = state * log[:, :, t, :, None].exp()  # (B, H, K, V)
        u = v[:, :, t, None]  # (B, H, 1, V)
        if beta is not None:
            u = beta[:, :, t, None] * (u - k[:, :, t, None] @ state)
        state = state + k[:, :, t, :, None] * u
        outputs.append(q[:, :, t, None] @ state)
    return torch.cat(outputs, dim=2), state


class _Documents(NamedTuple):
    """Packed documents in n chunks of C tokens.

    first: (B, 1, n, C, 1) the index in its chunk of the first token of a document that starts in it, else 0
    fresh: (B, 1, n, C, 1) True if the token's document starts in its chunk
    same: (B, 1, n, C, C) True if two tokens are of one document
    """

    first: Tensor
    fresh: Tensor
    same: Tensor


def _documents(segment: Tensor, missing: int, chunk: int) -> _Documents:
    start = document_starts(segment)  # (B, N)
    start = torch.cat([start, start[:, -1:].expand(-1, missing)], 1).unflatten(1, (-1, chunk))[:, None, ..., None]
    first = start - chunk * torch.arange(start.shape[2], device=start.device)[:, None, None]  # (B, 1, n, C, 1)
    return _Documents(first.clamp_min(0), first >= 0, start == start.transpose(-1, -2))


def _chunked(parts: list[Tensor], segment: Tensor | None, start: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the results of `chunked` without a prefix; every document starts from `start`."""
    size = parts[0].shape[2]
    chunk = 1 << (min(chunk, size) - 1).bit_length()  # a power of two, which `_products` and `_inverse` halve
    missing = -size % chunk
    # What is added at the end neither decays the state nor adds to it.
    q, k, v, log, *betas = (F.pad(part, (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for part in parts)
    documents = None if segment is None else _documents(segment, missing, chunk)
    total = log.cumsum(3)  # (B, H, n, C, K or 1), the logarithm of G
    # Logarithms of the decay from the state to a token, and from a token to the end of its chunk.
    since = total
    until = total[:, :, :, -1:] - total
    products = _products([q, k] if betas else [q], k, total)  # 1 or 2 x (B, H, n, C, C)
    if documents is not None:
        products = [product * documents.same for product in products]
    inner = products[0]
    writes = k * until.exp()  # (B, H, n, C, K)
    if documents is not None:
        since = total - (total - log).gather(3, documents.first.expand_as(total)) * documents.fresh
        writes = writes * documents.same[..., -1:]
    reads = q * since.exp()  # (B, H, n, C, K)
    carry = since[:, :, :, -1, :, None].exp()  # (B, H, n, K or 1, 1)
    removed = None
    if betas:
        right = torch.cat([v, k * since.exp()], dim=-1) * betas[0]
        v, removed = (_inverse(products[1] * betas[0]) @ right).split([v.shape[-1], k.shape[-1]], dim=-1)
        reads = reads - inner @ removed
        removed = writes.transpose(-1, -2) @ removed  # (B, H, n, K, K)
    out = inner @ v  # (B, H, n, C, V)
    added = writes.transpose(-1, -2) @ v  # (B, H, n, K, V)
    if documents is not None:
        if start is not None:
            out = out + (reads * documents.fresh) @ start[:, :, None]
            added = added + documents.fresh[:, :, :, -1:] * _after(start[:, :, None], carry, removed)
        reads = reads * ~documents.fresh
        carry = carry * ~documents.fresh[:, :, :, -1:]
        if removed is not None:
            removed = removed * ~documents.fresh[:, :, :, -1:]
    state = torch.zeros_like(added[:, :, 0]) if start is None else start
    states = []
    for index in range(added.shape[2]):
        states.append(state)
        less = None if removed is None else removed[:, :, index]
        state = _after(state, carry[:, :, index], less) + added[:, :, index]
    out = out + reads @ torch.stack(states, dim=2)
    return out.flatten(2, 3)[:, :, :size], state


def _after(state: Tensor, carry: Tensor, removed: Tensor | None) -> Tensor:
    """Return the rest of a state (..., K, V) after a chunk: decayed, less the subtraction of the delta rule."""
    if removed is None:
        return carry * state
    return carry * state - removed @ state


def _products(readers: list[Tensor], k: Tensor, total: Tensor) -> list[Tensor]:
    """Return products of readers (..., C, K) and k (..., C, K), decayed from s to t, for s <= t, else 0: (..., C, C).

    With a decay for each channel the chunk is halved again and again, and the second half reads the first one, with
    decays before and after the cut that are at most 1.
    """
    size = k.shape[-2]
    if total.shape[-1] == 1:
        later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
        decay = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()  # (..., C, C)
        return [reader @ k.transpose(-1, -2) * decay for reader in readers]
    outs = [(reader * k).sum(-1)[..., None, None] for reader in readers]  # (..., C, 1, 1): the diagonal, as blocks
    half = 1
    while half < size:
        k1 = k.unflatten(-2, (-1, 2, half))[..., 0, :, :]  # (..., m, half, K), the first half of each block
        before, after = total.unflatten(-2, (-1, 2, half)).unbind(-3)
        cut = before[..., -1:, :]
        k1 = (k1 * (cut - before).exp()).transpose(-1, -2)  # (..., m, K, half)
        decay = (after - cut).exp()  # (..., m, half, K)
        lower = [(reader.unflatten(-2, (-1, 2, half))[..., 1, :, :] * decay) @ k1 for reader in readers]
        outs = [_join(out, part) for out, part in zip(outs, lower, strict=True)]
        half *= 2
    return [out[..., 0, :, :] for out in outs]


def _inverse(a: Tensor) -> Tensor:
    """Return the inverse of 1 + the part of a (..., C, C) below the diagonal.

    Of halves: the inverse of [[P, 0], [L, Q]] is [[P', 0], [-Q' L P', Q']]. Matrix products take less time than a
    triangular solver for many small systems, and can be exported.
    """
    size = a.shape[-1]
    out, half = torch.ones_like(a[..., :, :1, None]), 1  # (..., C, 1, 1): the diagonal, as blocks
    while half < size:
        blocks = a.unflatten(-1, (-1, 2, half)).unflatten(-4, (-1, 2, half))  # (..., m, 2, half, m, 2, half)
        lower = blocks[..., :, 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (..., m, half, half)
        first, second = out.unflatten(-3, (-1, 2)).unbind(-3)
        out, half = _join(out, -(second @ lower @ first)), 2 * half
    return out[..., 0, :, :]


def _join(blocks: Tensor, lower: Tensor) -> Tensor:
    """Join blocks on a diagonal (..., 2 m, s, s) and blocks under them (..., m, s, s) to (..., m, 2 s, 2 s)."""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    top = torch.cat([first, torch.zeros_like(lower)], dim=-1)
    return torch.cat([top, torch.cat([lower, second], dim=-1)], dim=-2)
