"""Norms of queries and keys that bound the scores: over a head, over all heads, by a layer norm, or a cosine.

Source: Dehghani et al. 2023, ViT-22B (arXiv 2302.05442), section 2, for `layer`; Gemma Team 2025, Gemma 3
    (arXiv 2503.19786), for `head`; OLMo Team 2024, 2 OLMo 2 Furious (arXiv 2501.00656), section 3.3.2, for `full`;
    Liu et al. 2021, Swin Transformer V2 (arXiv 2111.09883), eq. 2, for `cosine`; Loshchilov et al. 2024, nGPT
    (arXiv 2410.01131), eq. 15 and 16, for `sphere`
Reference: transformers Gemma3Attention, Olmo2Attention; timm Attention(qk_norm=True), WindowAttention of swin_v2
Equation: with a gain g of one number for each channel, and m, s over the K channels of a head or the H K of a token
    head, full    g q / sqrt(mean(q^2) + 1e-6)      over K, over H K
    layer         g (q - m) / sqrt(s^2 + 1e-6)      over K
    cosine        q / |q|, and scores times min(e^t, 100) with a trained t for each head, at first ln 10
    sphere        q / |q|, and scores times sqrt(K); _scores.py has the gain s of queries and keys after their rotation
Cost: O(N D) time
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Role
from blockyard.weight_init import Init

NormOfHeads = bool | Literal["none", "head", "full", "layer", "cosine"]
QueryKeyNorm = bool | Literal["none", "head", "full", "layer", "cosine", "sphere"]
# Configs from when there was a single norm have `true` and `false` in place of names.
SAME_NORMS = {"none": False, "head": True}
EPS = 1e-6
LARGEST = 100.0  # factor on cosines, as in Swin V2


class HeadNorm(nn.RMSNorm):
    """RMS normalisation over the channels of a head, in the dtype of its input."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, eps=EPS)

    def init_weights(self, init: Init) -> None:
        """Set the gain to one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K)."""
        # A gain of another dtype than x would rule out the fused kernel.
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)

    def linear_part(self, weights: Tensor) -> Tensor:
        """Return projection weights (H, K, D) as the norm leaves them, but for its factor of each token and head."""
        return self.weight.detach().to(weights)[:, None] * weights


class FullNorm(nn.Module):
    """RMS normalisation over the channels of all heads together, in the dtype of its input."""

    roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(heads * head_dim))

    def init_weights(self, init: Init) -> None:
        """Set the gain to one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K)."""
        joined = x.transpose(1, 2).flatten(2)  # (B, N, H K)
        normed = F.rms_norm(joined, self.weight.shape, self.weight.to(x.dtype), EPS)
        return normed.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, K)

    def linear_part(self, weights: Tensor) -> Tensor:
        """Return the weights after the norm, as `HeadNorm.linear_part` does."""
        return self.weight.detach().to(weights).unflatten(0, (self.heads, -1))[..., None] * weights


class HeadLayerNorm(nn.Module):
    """Layer normalisation over the channels of a head, without a bias, in the dtype of its input."""

    roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim))

    def init_weights(self, init: Init) -> None:
        """Set the gain to one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K)."""
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), eps=EPS)

    def linear_part(self, weights: Tensor) -> Tensor:
        """Return the weights after the norm, as `HeadNorm.linear_part` does."""
        return self.weight.detach().to(weights)[:, None] * (weights - weights.mean(1, keepdim=True))


class CosineNorm(nn.Module):
    """Vectors of length one in each head; queries are also multiplied by a trained factor for each head.

    heads: number of query heads; None for keys, which have no factor
    """

    roles: ClassVar[dict[str, Role]] = {"log_scale": "fixed"}

    def __init__(self, heads: int | None = None) -> None:
        super().__init__()
        self.log_scale = None if heads is None else nn.Parameter(torch.empty(heads))

    def init_weights(self, init: Init) -> None:
        """Set the factor to ten."""
        init.constant("log_scale", math.log(10.0))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K)."""
        x = F.normalize(x, dim=-1)
        if self.log_scale is None:
            return x
        return x * self._factor().to(x.dtype)

    def linear_part(self, weights: Tensor) -> Tensor:
        """Return the weights after the norm, as `HeadNorm.linear_part` does."""
        if self.log_scale is None:
            return weights
        return weights * self._factor().detach().to(weights)

    def _factor(self) -> Tensor:
        assert self.log_scale is not None
        # Trained as a logarithm, so that the factor stays positive.
        return self.log_scale.clamp(max=math.log(LARGEST)).exp()[:, None, None]  # (H, 1, 1)


class UnitNorm(nn.Module):
    """Vectors of length one in each head."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K)."""
        return F.normalize(x, dim=-1)

    def linear_part(self, weights: Tensor) -> Tensor:
        """Return the weights after the norm, as `HeadNorm.linear_part` does."""
        return weights


def query_norm(kind: QueryKeyNorm, heads: int, head_dim: int) -> nn.Module:
    """Return the norm of queries (B, H, N, K)."""
    if kind == "cosine":
        return CosineNorm(heads)
    return key_norm(kind, heads, head_dim)


def key_norm(kind: QueryKeyNorm, kv_heads: int, head_dim: int) -> nn.Module:
    """Return the norm of keys (B, H', N, K)."""
    if kind == "cosine":
        return CosineNorm()
    if kind == "sphere":
        return UnitNorm()
    if kind == "full":
        return FullNorm(kv_heads, head_dim)
    if kind == "layer":
        return HeadLayerNorm(head_dim)
    if kind in (True, "head"):
        return HeadNorm(head_dim)
    return nn.Identity()


def linear_part(norm: nn.Module, weights: Tensor) -> Tensor:
    """Return weights (H, K, D) of queries or keys as a norm leaves them, but for its factor of each token and head."""
    norms = HeadNorm | FullNorm | HeadLayerNorm | CosineNorm | UnitNorm
    if isinstance(norm, norms):
        return norm.linear_part(weights)
    return weights
