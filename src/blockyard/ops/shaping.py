"""Changes of scores between the product of queries and keys and the softmax: a cap, forgetting, a sink.

Source: Gemma Team 2024, Gemma 2 (arXiv 2408.00118), section 2, for the cap; OpenAI 2025, gpt-oss (arXiv 2508.10925),
    section 2.2, and Miller 2023, Attention Is Off By One (evanmiller.org), for the sink: a logit without a value
Reference: the eager attention of transformers models/gemma2 and models/gpt_oss
Equation: s_ij = c tanh(q_i k_j^T scale / c) + bias - |a_i - b_j| with sums a of queries and b of keys, and
    w_ij = e^(s_ij) / (e^z + sum_j e^(s_ij)) with a logit z of each head
Cost: a cap and sums rule out scaled_dot_product_attention; a sink is one more key

A sink takes weight from all keys: a query's weights add up to less than one, and a query may read almost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CAPPED = "scores are capped"
FORGETS = "scores fall with what is forgotten"


class Forget(NamedTuple):
    """Sums of logarithms of forget gates up to each query (B, H, N) and each key (B, H, M)."""

    q: Tensor
    k: Tensor


@dataclass(frozen=True)
class Shaping:
    """The changes of one call's scores. The default changes nothing.

    cap: scores are within plus and minus this
    sink: the logits z (H,); 0.0 for zero in every head; None for no sink
    forget: an addition to the scores beside position biases; None for nothing
    """

    cap: float | None = None
    sink: Tensor | float | None = None
    forget: Forget | None = None

    @property
    def reasons(self) -> list[str]:
        """The reasons why a kernel that takes products alone cannot serve; empty if it can."""
        reasons = []
        if self.cap is not None:
            reasons.append(CAPPED)
        if self.forget is not None:
            reasons.append(FORGETS)
        return reasons

    def logits(self, like: Tensor) -> Tensor | None:
        """Return the sinks as scores of one more key, for scores or queries like (B, H, N, any): (H, 1, 1)."""
        if self.sink is None:
            return None
        if isinstance(self.sink, Tensor):
            return self.sink.to(like)[:, None, None]
        return like.new_full((like.shape[1], 1, 1), self.sink)


PLAIN = Shaping()


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """Return scores of any shape within plus and minus `cap`."""
    if cap is None:
        return scores
    return torch.tanh(scores / cap) * cap


def with_sink_key(q: Tensor, k: Tensor, v: Tensor, scale: float, shaping: Shaping) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of one width with the sink as the first key, with a value of zeros.

    q (B, H, N, K), k and v (B, H', M, K) -> (B, H, N, K'), 2 x (B, H', M + 1, K'). The score of a query with the sink
    is its logit: zero with a key of zeros; otherwise queries get a channel z / scale that the sink alone answers to.
    """
    k, v = (F.pad(x, (0, 0, 1, 0)) for x in (k, v))
    logits = shaping.logits(q)
    if not isinstance(shaping.sink, Tensor) or logits is None:
        return q, k, v
    answers = torch.zeros_like(k[..., :1])
    answers[:, :, 0] = 1.0
    asks = (logits / scale).expand(q.shape[0], -1, q.shape[2], -1)  # (B, H, N, 1)
    return torch.cat([q, asks], dim=-1), torch.cat([k, answers], dim=-1), F.pad(v, (0, 1))
