"""Attention by chunks of keys with a running maximum and sum: memory grows with N, not with N^2.

Source: Milakov and Gimelshein 2018, Online normalizer calculation for softmax (arXiv 1805.02867), algorithm 3; Rabe
and Staats 2021, Self-attention Does Not Need O(n^2) Memory (arXiv 2112.05682); the backward pass as in Dao et al. 2022,
FlashAttention (arXiv 2205.14135), appendix B.4
Reference: torch's scaled_dot_product_attention; `ops.reference.chunked` for the arithmetic alone
Equation: over chunks j of keys, with scores S_j: m = max(m, max S_j), l = l e^(m_old - m) + sum e^(S_j - m),
    O = O e^(m_old - m) + e^(S_j - m) V_j; then O / l, and L = m + log l is kept for the backward pass. A sink is one
    more key with a value of zero
Cost: O(N M K) time, O(N (K + chunk)) memory in each head; the backward pass computes the scores again

Masks and position biases are made for a chunk at a time, by the functions that make whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blockyard.contracts import Position, Seq
from blockyard.ops.autocast import full_precision
from blockyard.ops.mask import Visibility, bias_table, chunk_numbers, ordered_by_row, scheme, table
from blockyard.ops.shaping import FORGETS, PLAIN, Shaping, capped

CHUNK = 128  # keys
NEVER = float("-inf")


@dataclass(frozen=True)
class Call:
    """The arguments of a call that are no tensors with gradients of their own.

    cap: on the scores
    first: for each chunk of keys the first query that may see one of them, if that is known; see `ops.ring`
    """

    seq: Seq
    k_seq: Seq
    visibility: Visibility
    scale: float
    chunk: int
    cap: float | None = None
    first: tuple[int, ...] | None = None

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """Yield the queries and the keys of each chunk; in a plain causal sequence only the queries that see them."""
        triangle = self.visibility.causal and self.k_seq is self.seq and ordered_by_row(self.seq, self.k_seq)
        for number, start in enumerate(range(0, len(self.k_seq), self.chunk)):
            if self.first is not None:
                first = self.first[number]
            elif triangle:
                first = start
            else:
                first = 0
            if first < len(self.seq):
                yield slice(first, len(self.seq)), slice(start, start + self.chunk)

    def facts(self, queries: slice, keys: slice) -> tuple[Seq, Seq]:
        """Return the facts of the queries and keys of a chunk."""
        pairs = self.k_seq.pairs
        part = None if pairs is None else tuple(pair[:, queries, keys] for pair in pairs)
        return _part(self.seq, queries, None), _part(self.k_seq, keys, part)

    def products(self, q: Tensor, k: Tensor, queries: slice, keys: slice) -> Tensor:
        """Return the products of queries and keys of a chunk, scaled and capped: (B, H, n, chunk)."""
        raw = at_least_float32(q[:, :, queries] @ grouped(k[:, :, keys], q).transpose(-1, -2)) * self.scale
        return capped(raw, self.cap)

    def scores(self, raw: Tensor, q: Tensor, queries: slice, keys: slice) -> Tensor:
        """Return the scores of a chunk: `products` with the bias, -inf at keys that a query does not see."""
        seq, k_seq = self.facts(queries, keys)
        bias = bias_table(seq, k_seq, q.shape[1])
        if bias is not None:
            raw = raw + bias
        chunks = chunk_numbers(self.seq, self.k_seq, self.visibility)
        parts = None if chunks is None else (chunks[0][:, queries], chunks[1][:, keys])
        sees = table(seq, k_seq, self.visibility, parts)
        if sees is None:
            return raw
        return raw.masked_fill(~sees, NEVER)


def _part(seq: Seq, tokens: slice, pairs: tuple[Tensor, ...] | None) -> Seq:
    """Return the facts of some tokens of a sequence."""
    start, end, _ = tokens.indices(len(seq))
    # Slots and prefix tokens stand at the start of the sequence, and a part has only some of them.
    slots = min(max(seq.memo.get("slots", 0) - start, 0), end - start)
    return replace(
        seq,
        index=seq.index[tokens],
        coords=seq.coords[:, tokens],
        valid=None if seq.valid is None else seq.valid[:, tokens],
        segment=None if seq.segment is None else seq.segment[:, tokens],
        num_prefix=min(max(seq.num_prefix - start, 0), end - start),
        grid=None,
        features=None,
        pairs=pairs,
        shown=None if seq.shown is None else seq.shown[:, tokens],
        memo={"slots": slots} if slots else {},
    )


def at_least_float32(x: Tensor) -> Tensor:
    """Return a tensor in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def grouped(x: Tensor, q: Tensor) -> Tensor:
    """Return keys or values (B, H', m, K) repeated for the heads that read them: (B, H, m, K)."""
    if x.shape[1] == q.shape[1]:
        return x
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def refusal(dropout: float, compiling: bool, shaping: Shaping = PLAIN) -> str | None:
    """Return the reason why this kernel cannot take a call, or None if it can."""
    if shaping.forget is not None:
        return f"{FORGETS}, which the online softmax does not do"
    if dropout:
        return "the online softmax has no dropout on the weights"
    if compiling:
        return "the online softmax is not compiled; use trainer.compile=false"
    return None


def online(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    chunk: int = CHUNK,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Return attention as `ops.attend` does, (B, H, N, values' width), `chunk` keys at a time.

    Sums are in float32 at least. The output of a query that sees nothing is zero. There is no second derivative.
    """
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    call = Call(seq, k_seq, visibility, scale, chunk, shaping.cap)
    # Autograd asks for the gradients of its arguments alone, so the weights of the bias are arguments too.
    weights = trained_weights(scheme(seq, k_seq, "bias") or scheme(seq, k_seq, "relate"))
    out: Tensor = _Online.apply(call, q, k, v, shaping.logits(at_least_float32(q[:, :, :1])), *weights)
    return out


def trained_weights(position: Position | None) -> list[Tensor]:
    """Return the trained weights of a position scheme, none without one."""
    if position is None:
        return []
    return [weight for weight in position.parameters() if weight.requires_grad]


class _Online(torch.autograd.Function):
    """The forward pass, and its gradient from the output and the logarithm of the sums."""

    @staticmethod
    def forward(ctx: Any, call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *weights: Tensor) -> Tensor:
        """Return the outputs of queries (B, H, N, K) over keys and values (B, H', M, ...): (B, H, N, values)."""
        with full_precision(q):
            out, log_sum = with_sink(*forward(call, q, k, v), sink)
        out = out.to(v.dtype)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, log_sum, sink, *weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum, sink, *weights = ctx.saved_tensors
        with full_precision(q):
            to_sink = sink_gradient(out, log_sum, grad, sink)
            to_q, to_k, to_v, *to_weights = backward(ctx.call, q, k, v, out, log_sum, grad, weights)
        return None, to_q, to_k, to_v, to_sink, *to_weights


def with_sink(out: Tensor, log_sum: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm of its sums, from `forward`, with a sink (H, 1, 1) among the keys."""
    if sink is None:
        return out, log_sum
    total = torch.logaddexp(log_sum, sink)  # (B, H, N, 1)
    return out * (log_sum - total).exp(), total


def sink_gradient(out: Tensor, log_sum: Tensor, grad: Tensor, sink: Tensor | None) -> Tensor | None:
    """Return the gradient of the sinks (H, 1, 1): their share of a query takes as much from its output."""
    if sink is None:
        return None
    inner = (at_least_float32(grad) * at_least_float32(out)).sum(-1, keepdim=True)  # (B, H, N, 1)
    return -(inner * (sink - log_sum).exp()).sum((0, 2), keepdim=True)[0]


def forward(call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, N, values' width) and the logarithm of each query's sum (B, H, N, 1), -inf if blind.

    Both are in float32 at least.
    """
    size = (*q.shape[:3], 1)
    exact = torch.promote_types(v.dtype, torch.float32)
    top = torch.full(size, NEVER, dtype=exact, device=q.device)
    total = torch.zeros(size, dtype=exact, device=q.device)
    out = torch.zeros((*q.shape[:3], v.shape[-1]), dtype=exact, device=q.device)
    for queries, keys in call.parts():
        scores = call.scores(call.products(q, k, queries, keys), q, queries, keys)  # (B, H, n, chunk)
        before = top[:, :, queries]
        new = torch.maximum(before, scores.amax(-1, keepdim=True))  # (B, H, n, 1)
        shift = new.masked_fill(new == NEVER, 0.0)
        rescale = torch.exp(before - shift)
        scores = scores.sub_(shift).exp_()
        total[:, :, queries] = total[:, :, queries] * rescale + scores.sum(-1, keepdim=True)
        out[:, :, queries] = out[:, :, queries] * rescale + scores.to(v.dtype) @ grouped(v[:, :, keys], q)
        top[:, :, queries] = new
        del scores  # before those of the next chunk are computed
    return out / total.masked_fill(total == 0, 1.0), top + total.log()


def backward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, grad: Tensor, weights: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v and of the position bias' weights. log_sum: over all keys that a query sees"""
    exact = log_sum.dtype
    groups = q.shape[1] // k.shape[1]  # heads that read the same keys
    to_q = torch.zeros_like(q, dtype=exact)
    to_k = torch.zeros_like(k, dtype=exact)
    to_v = torch.zeros_like(v, dtype=exact)
    to_weights: list[Tensor | None] = [None] * len(weights)
    inner = (at_least_float32(grad) * at_least_float32(out)).sum(-1, keepdim=True)  # (B, H, N, 1)
    shift = log_sum.masked_fill(log_sum == NEVER, 0.0)
    for queries, keys in call.parts():
        raw = call.products(q, k, queries, keys)  # (B, H, n, chunk)
        bend = None if call.cap is None else 1 - (raw / call.cap).square()  # the derivative of the tanh
        share = call.scores(raw, q, queries, keys).sub_(shift[:, :, queries]).exp_()
        part = grad[:, :, queries]
        to_v[:, :, keys] += _summed(share.to(v.dtype).transpose(-1, -2) @ part, groups)
        slope = at_least_float32(part @ grouped(v[:, :, keys], q).transpose(-1, -2))
        slope = slope.sub_(inner[:, :, queries]).mul_(share)  # the gradient of the softmax
        if weights:
            _add_bias_gradients(call, queries, keys, slope, weights, to_weights)
        if bend is not None:
            slope = slope.mul_(bend)
        slope = slope.mul_(call.scale).to(q.dtype)
        to_q[:, :, queries] += slope @ grouped(k[:, :, keys], q)
        to_k[:, :, keys] += _summed(slope.transpose(-1, -2) @ q[:, :, queries], groups)
        del raw, bend, share, slope  # before those of the next chunk are computed
    return to_q.to(q.dtype), to_k.to(k.dtype), to_v.to(v.dtype), *to_weights


def _add_bias_gradients(
    call: Call, queries: slice, keys: slice, slope: Tensor, weights: list[Tensor], gradients: list[Tensor | None]
) -> None:
    """Add the gradients of a chunk's bias. slope: the gradient of the scores and the bias, (B, H, n, chunk)"""
    with torch.enable_grad():
        bias = bias_table(*call.facts(queries, keys), slope.shape[1])
    if bias is None or not bias.requires_grad:
        return
    of_bias = slope.sum_to_size(bias.shape).to(bias.dtype)
    for number, gradient in enumerate(torch.autograd.grad(bias, weights, of_bias, allow_unused=True)):
        if gradient is not None:
            before = gradients[number]
            gradients[number] = gradient if before is None else before + gradient


def _summed(x: Tensor, groups: int) -> Tensor:
    """Return the sum over the heads that read the same keys: (B, H, m, K) -> (B, H', m, K)."""
    if groups == 1:
        return x
    return x.unflatten(1, (-1, groups)).sum(2)
