"""Attention weights that are not a softmax, from the scores: the most similar key alone, an average, a sigmoid.

No fused kernel computes them: O(N M) memory in each head. Masks and position biases are as in `ops.attend`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops import kernel, maps, mask, reference
from blockyard.ops.autocast import full_precision
from blockyard.ops.mask import Visibility

Rule = Callable[..., Tensor]  # (q, k, seq, k_seq, visibility, scale) -> weights (B, H, N, M)


def weigh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    *,
    rule: Rule,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return values weighted by `rule`: (B, H, N, values' width). Shapes and `dropout` as in `ops.attend`.

    Scores are computed in float32 or more: in half precision, keys that differ would tie.
    """
    exact = torch.promote_types(v.dtype, torch.float32)
    if maps.listening():
        maps.note(q, k, v, seq, k_seq, visibility, scale, rule=rule)
    if kernel.selected() not in ("auto", "eager"):
        kernel.refuse(kernel.selected(), kernel.layer(), kernel.EAGER)
    kernel.note("eager", [kernel.EAGER])
    with full_precision(v):
        weights = rule(q.to(exact), k.to(exact), seq, k_seq, visibility, scale)  # (B, H, N, M)
    weights = weights.to(v.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def hard(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return all weight on the key of the highest score, shared equally by several such keys.

    The gradient is that of softmax(scores / temperature), passed straight through the choice.
    Source of the gradient: Bengio et al. 2013 (arXiv 1308.3432), the straight-through estimator.
    """
    raw = reference.scores(q, k, seq, k_seq, visibility, scale)  # (B, H, N, M)
    soft = reference.normalised(raw / temperature)
    best = (raw == raw.amax(-1, keepdim=True)) & (raw > float("-inf"))
    chosen = best / best.sum(-1, keepdim=True).clamp(min=1)
    return soft + (chosen - soft).detach()


def average(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the scores, after `activation` if there is one, over the number of keys that the query sees."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, M, K)
    raw = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)  # (B, H, N, M)
    raw = raw if activation is None else activation(raw)
    sees = mask.table(seq, k_seq, visibility)
    if sees is None:
        return raw / len(k_seq)
    return raw.masked_fill(~sees, 0.0) / sees.sum(-1, keepdim=True).clamp(min=1)


def logistic(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    shift: float | None = None,
) -> Tensor:
    """Return the sigmoid of each score plus `shift`; None is minus the logarithm of the number of keys in sight.

    The weights of a query that sees nothing are zero.
    """
    raw = reference.scores(q, k, seq, k_seq, visibility, scale)  # (B, H, N, M)
    if shift is not None:
        return torch.sigmoid(raw + shift)
    return torch.sigmoid(raw - mask.count(seq, k_seq, visibility).clamp(min=1).to(raw.dtype).log())
