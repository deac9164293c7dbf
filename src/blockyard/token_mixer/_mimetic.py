"""Initial weights of attention with products near the identity, as trained vision transformers have them.

Source: Trockman and Kolter 2023, Mimetic Initialization of Self-Attention Layers (arXiv 2305.09828), section 4
Reference: the products of the weights, in the tests
Equation: W_Q W_K^T ~ a (Z_h + I) in each head and W_V W_O = b (Z - I), with Z of normal numbers of variance 1 / D; each
    is split by its singular value decomposition U S V^T, into U sqrt(S) and sqrt(S) V^T, of a head the largest K values
Cost: a decomposition of D x D for each head and layer, once
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import Context
from blockyard.weight_init import Init

# The shares a of queries and keys, and b of values and output.
Shares = tuple[Annotated[float, Gt(0), Le(1)], Annotated[float, Gt(0), Le(1)]]


def check_mimetic(ctx: Context, options: dict[str, bool]) -> None:
    """Raise ValueError for an option that changes the shape or the size of the projections.

    options: by the text of an option, True if it is set
    """
    options = options | {
        "model.zero_branches=true": ctx.zero_branches,
        "parametrization=mup": ctx.parametrization.scales,
        "a block with initial weights of its own (deepnorm)": ctx.gain is not None,
    }
    for text, is_set in options.items():
        if is_set:
            raise ValueError(f"token_mixer.mimetic sets the products of whole projections; it does not go with {text}")


def fill(init: Init, ctx: Context, shares: tuple[float, float]) -> None:
    """Fill proj_in.weight (3D, D) of queries, keys and values, and proj_out.weight (D, D), of an attention."""
    dim = ctx.dim
    width = ctx.head_dim

    def noise(name: str) -> Tensor:
        return torch.randn(dim, dim, generator=init.generator(name), dtype=torch.float64) / dim**0.5

    def factors(name: str, share: float, sign: float) -> tuple[Tensor, Tensor]:
        # Both factors get sqrt(S), so that neither map is larger than the other.
        u, s, vt = torch.linalg.svd(share * (noise(name) + sign * torch.eye(dim, dtype=torch.float64)))
        return u * s.sqrt(), s.sqrt()[:, None] * vt

    def projected() -> Tensor:
        # The product of a head has rank K: the largest K singular values are its best approximation.
        pairs = [factors(f"head{head}", shares[0], 1.0) for head in range(ctx.heads)]
        queries = [left[:, :width].T for left, _ in pairs]
        keys = [right[:width] for _, right in pairs]
        return torch.cat([*queries, *keys, factors("values", shares[1], -1.0)[0].T])

    init.copy("proj_in.weight", projected)
    init.copy("proj_out.weight", lambda: factors("values", shares[1], -1.0)[1].T)
