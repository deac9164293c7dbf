"""Fixed-feature attention: weights are not learned but computed from given features, such as the colour of a patch.

Source: Nadaraya 1964, On Estimating Regression, and Watson 1964; over an image's neighbours the range filter of
    Tomasi and Manduchi 1998, Bilateral Filtering for Gray and Color Images
Reference: torch.nn.functional.scaled_dot_product_attention with features for queries and keys
Equation: sum_j a_ij W x_j, a = softmax over j of -|f_i - f_j|^2 / (2 width^2), or of f_i . f_j / width^2; with
    normalise=true f / |f| in place of f
Cost: O(N^2 D) time, O(N) memory with a fused kernel; 2 D^2 parameters

    For teaching: the attention map can be predicted by hand, patches look at patches of their colour.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Positive, Seq, TokenMixer, Traits
from blockyard.ops.attend import attend
from blockyard.ops.autocast import full_precision
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import Visibility
from blockyard.token_mixer._checks import check_call, check_context


class FixedFeatures(TokenMixer):
    """One head with `Seq.features` as queries and keys, the same in every layer. Only the values are trained.

    Image tokenizers provide the mean colour of a patch; a tokenizer of your own may provide anything. Features of
    class and register tokens are zero.

    Options:
        kernel: gaussian compares by distance, dot by inner product
        width: length scale of the comparison, in the units of the features
        normalise: compare unit vectors, so that a dark patch is like a bright one of its hue; zero features stay zero
    """

    traits = Traits(causal=True, padding=True, packing=True, equivariant=True, reads_features=True)

    def __init__(
        self,
        ctx: Context,
        *,
        kernel: Literal["gaussian", "dot"] = "gaussian",
        width: Positive = 0.2,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.kernel = kernel
        self.scale = width**-2
        self.normalise = normalise
        self.proj_in = linear(ctx, ctx.dim, ctx.dim, content=0)  # the values
        self.proj_out = residual(ctx, ctx.dim, ctx.dim)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: Any = None) -> Tensor:
        """Attention between the projections: values h (B, N, D) -> (B, N, D), in float32 at least."""
        # A distance is a small difference of large products.
        exact = torch.promote_types(h.dtype, torch.float32)
        assert seq.features is not None
        q = k = seq.features.to(exact)  # (B, N, F)
        if self.normalise:
            q = k = F.normalize(k, dim=-1)
        if self.kernel == "gaussian":
            # -|a - b|^2 / 2 is a . b - |b|^2 / 2 up to |a|^2 / 2, which a softmax over b ignores.
            q = torch.cat([q, torch.ones_like(q[..., :1])], dim=-1)  # (B, N, F + 1)
            k = torch.cat([k, -k.square().sum(-1, keepdim=True) / 2], dim=-1)
        if seq.position is not None:  # a scheme of other layers: this one has no port for it
            seq = replace(seq, position=None, memo={})
        with full_precision(h):
            q, k, v = q[:, None], k[:, None], h.to(exact)[:, None]  # one head
            y = attend(q, k, v, seq, seq, Visibility(self.causal), scale=self.scale)
        return y[:, 0].to(h.dtype)  # (B, N, D)
