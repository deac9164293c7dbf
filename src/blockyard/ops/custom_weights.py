"""Weights that are no plain softmax, made one by one from the scores: the most similar key alone, an average.

No fused kernel knows them: O(N M) memory in each head. Masks and position biases are those of `ops.attend`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops import kernel, maps, mask, reference
from blockyard.ops.full_precision import full_precision

Rule = Callable[..., Tensor]  # (q, k, seq, k_seq, causal, scale, window, strict) -> weights (B, H, N, M)


def weigh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    causal: bool,
    *,
    rule: Rule,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Sums of values by the weights of `rule`: (B, H, N, values' width). Shapes and `dropout` as in `ops.attend`.

    Scores are worked out in float32 at least: half precision would tie keys that differ.
    """
    exact = torch.promote_types(v.dtype, torch.float32)
    if maps.listening():
        maps.note(q, k, v, seq, k_seq, causal, scale, rule=rule)
    kernel.note("eager", [kernel.EAGER])
    with full_precision(v):
        weights = rule(q.to(exact), k.to(exact), seq, k_seq, causal, scale, None, False)  # (B, H, N, M)
    weights = weights.to(v.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def hard(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    causal: bool,
    scale: float | None = None,
    window: int | None = None,
    strict: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """All weight on the key of the highest score, shared where several have it.

    The gradient is that of softmax(scores / temperature), passed straight through the choice.
    Source of the gradient: Bengio et al. 2013 (arXiv 1308.3432), the straight-through estimator.
    """
    raw = reference.scores(q, k, seq, k_seq, causal, scale, window, strict)  # (B, H, N, M)
    soft = reference.normalised(raw / temperature)
    best = (raw == raw.amax(-1, keepdim=True)) & (raw > float("-inf"))
    picked = best / best.sum(-1, keepdim=True).clamp(min=1)
    return soft + (picked - soft).detach()


def average(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    causal: bool,
    scale: float | None = None,
    window: int | None = None,
    strict: bool = False,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Scores, through `activation` where there is one, over the number of keys that the query sees."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, M, K)
    raw = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)  # (B, H, N, M)
    raw = raw if activation is None else activation(raw)
    see = mask.table(seq, k_seq, causal, window, strict)
    if see is None:
        return raw / len(k_seq)
    return raw.masked_fill(~see, 0.0) / see.sum(-1, keepdim=True).clamp(min=1)
