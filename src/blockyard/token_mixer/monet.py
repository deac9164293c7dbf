"""MONet's unit: the product of two linear maps, one of low rank, without activation; tokens shift on odd layers.

Source: Cheng et al. 2024, Multilinear Operator Networks (arXiv 2401.17992), eq. 2 and section 3.2
Reference: the authors' PolyMlp in Multilinear_Operator_Networks
Equation: C (d + alpha a * b), a = norm(shift(A x)), b = norm(B shift(R x)) with R of low rank; skip=tied d = a, as the
    authors' code has it, skip=own d = norm(shift(D x)). With norms=false C (A x * B R x + D x), the paper's eq. 2 of
    two factors, up to the shift
Cost: O(N D E) time with E hidden channels; decoding keeps one input on a line, one row of inputs on a grid

Use it with block=single: it includes its own channel mixing. Counting layers from 1, the odd ones shift and the even
ones only mix channels, as the two units of the paper's block do.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Expansion, Memory, Role, Seq, TokenMixer, Traits, Width
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._caches import InputCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer.shift import DIRECTIONS, shift_window, shifted
from blockyard.weight_init import Init


class MONet(TokenMixer):
    """A polynomial of degree two in its input, up to the norms.

    Options:
        expansion: hidden width as a multiple of model.dim
        compression: ratio of the hidden width to the rank of the second factor
        bias: use biases in the linear maps
        skip: the term that the product is added to: its own first factor (tied), or a third linear map of the input
            (own)
        norms: layer norms of the factors, and a trained factor on the product
    """

    roles: ClassVar[dict[str, Role]] = {"alpha": "fixed"}

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 3.0,
        compression: Width = 8,
        bias: bool = True,
        skip: Literal["tied", "own"] = "tied",
        norms: bool = True,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.axes = ctx.tokens.axes
        self.shifts = ctx.layer % 2 == 0
        self.window = shift_window(ctx.tokens)
        self.hidden = max(len(DIRECTIONS[self.axes]), round(expansion * ctx.dim))
        self.rank = max(len(DIRECTIONS[self.axes]), self.hidden // compression)
        self.widths = [self.hidden, self.rank]
        if skip == "own":
            self.widths.append(self.hidden)
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths), bias=bias)
        self.expand = linear(ctx, self.rank, self.hidden, bias=bias)
        self.first_norm = self._norm(norms)
        self.second_norm = self._norm(norms)
        self.skip_norm = self._norm(norms) if skip == "own" else None
        self.alpha = nn.Parameter(torch.empty(1)) if norms else None  # without norms the maps can hold the factor
        self.proj_out = residual(ctx, self.hidden, ctx.dim, bias=bias)

    def _norm(self, norms: bool) -> nn.Module:
        if norms:
            return nn.LayerNorm(self.hidden, eps=1e-6)
        return nn.Identity()

    def init_weights(self, init: Init) -> None:
        """Let the product start at the scale of the linear part."""
        init.ones("alpha")

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: InputCache | None = None) -> Tensor:
        """Shift and product between the projections: (B, N, E + rank [+ E]) -> (B, N, E)."""
        first, second, *own = h.split(self.widths, dim=-1)
        if self.shifts:  # the projected channels are shifted, so the cache keeps projections and not tokens
            past, k_seq = (h, None) if cache is None else cache.append(h, seq)
            pairs = zip((first, second, *own), past.split(self.widths, dim=-1), strict=True)
            first, second, *own = (shifted(part, seq, self.causal, self.axes, key, k_seq) for part, key in pairs)
        a = self.first_norm(first)  # (B, N, E)
        b = self.second_norm(self.expand(second))  # (B, N, E)
        skip = a if self.skip_norm is None else self.skip_norm(own[0])
        scaled = a if self.alpha is None else self.alpha * a
        return skip + scaled * b  # (B, N, E)

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache that keeps the tokens the next one can take channels from."""
        check_decodes(self.causal)
        return InputCache(batch_size, self.window)
