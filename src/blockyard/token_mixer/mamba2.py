"""Mamba-2: a state-space model with one decay for each head and token, computed as linear attention.

Source: Dao and Gu 2024, Transformers are SSMs (arXiv 2405.21060), section 7.1 and figure 6
Reference: transformers Mamba2Mixer
Equation: S_t = exp(-A d_t) S_(t-1) + d_t B_t x_t^T and y_t = S_t^T C_t + D x_t, with a trained rate A of each head and
    steps d_t = softplus(W u_t + b); x, B and C are projections of u that go through a short convolution and silu
Cost: O(N E (D + C + K)) time for E inner channels and states of K numbers for each, in chunks of C tokens; a decoding
    step takes constant time and memory

    u --> x B C --> short convolution --> silu --> state --> * silu(z) --> norm --> projection
      --> d --------------------------------------^         ^
      --> z ------------------------------------------------+
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Heads, Memory, Positive, Role, Seq, Width
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.linear import linear, output, residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.token_mixer._decay_rates import DecayRates
from blockyard.token_mixer._short_conv import Kernel, ShortConv
from blockyard.token_mixer._state_mixer import StateMixer, exact
from blockyard.weight_init import Init


class Mamba2(StateMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        state: numbers of the state for each inner channel, the width of B and C
        value_dim: inner channels of each head; null means twice model.dim / model.heads
        groups: number of B and C, each read by so many heads
        conv: tokens that the short convolution of x, B and C reads; 0 leaves it out
        norm: RMS norm of the inner channels of a group: after the gate, before it, or none
        bias: use biases in the projections, beside that of the steps
        eps: term added to the mean square by the norm
    """

    @with_options_of(StateMixer, without=("key_dim",))
    def __init__(
        self,
        ctx: Context,
        *,
        state: Width = 64,
        value_dim: Width | None = None,
        groups: Heads = 1,
        conv: Kernel = 4,
        norm: Literal["after_gate", "before_gate", "none"] = "after_gate",
        bias: bool = False,
        eps: Positive = 1e-5,
        **options: Any,
    ) -> None:
        super().__init__(ctx, value_dim=value_dim or 2 * ctx.head_dim, **options)
        heads = self.heads
        inner = heads * self.value_dim
        self.widths = [inner, groups * state, groups * state]  # x, B, C
        self.conv = ShortConv(sum(self.widths), conv, bias=True) if conv else None
        check_context(self, ctx)
        if heads % groups:
            divisors = ", ".join(str(g) for g in range(1, heads + 1) if heads % g == 0)
            raise ValueError(f"token_mixer.groups={groups} does not divide the {heads} heads; use one of {divisors}")
        self.groups = groups
        self.norm = norm
        self.eps = eps
        self.proj_in = linear(ctx, ctx.dim, inner + sum(self.widths), bias=bias, content=0)  # z, x, B, C
        self.proj_steps = output(ctx, ctx.dim, heads)
        self.decay = DecayRates(heads)
        self.through = nn.Parameter(torch.empty(heads))  # D
        self.gain = nn.Parameter(torch.empty(inner)) if norm != "none" else None
        self.roles: dict[str, Role] = {"through": "fixed", "gain": "vector"}
        self.proj_out = residual(ctx, inner, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Set the factor of inputs that go through, and the gain of the norm, to one."""
        init.ones("through")
        init.ones("gain")

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). States are in float32 at least."""
        check_call(self, self.traits, seq, cache, memory)
        z, h = self.proj_in(x).split([self.widths[0], sum(self.widths)], dim=-1)
        log, step = self.decay.with_steps(exact(self.proj_steps(x))[..., None])  # 2 x (B, N, H, 1)
        # The step is a factor on the input and on the decay: a token that is taken in more also forgets more.
        y = self.read(h, log, step[..., 0], seq, cache).flatten(2)  # (B, N, E)
        gate = F.silu(z.to(y.dtype))
        if self.norm == "before_gate":
            y = self._normalised(y) * gate
        elif self.norm == "after_gate":
            y = self._normalised(y * gate)
        else:
            y = y * gate
        return self.proj_out(y.to(h.dtype))  # (B, N, D)

    def split_heads(self, h: Tensor, log: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Tensor]:
        """Return C and B, repeated for all heads that read them, and x: the queries, keys and values of the state."""
        x, b, c = F.silu(h).split(self.widths, dim=-1)
        b, c = (part.unflatten(-1, (self.groups, -1)) for part in (b, c))  # (B, N, groups, K)
        b, c = (part.repeat_interleave(self.heads // self.groups, dim=2) for part in (b, c))  # (B, N, H, K)
        return c, b, x.unflatten(-1, (self.heads, -1))

    def skip(self, v: Tensor) -> Tensor:
        """Return D x."""
        return self.through.to(v.dtype)[:, None, None] * v

    def _normalised(self, y: Tensor) -> Tensor:
        """Normalise to unit root mean square over the channels of a group, then apply the gain: (B, N, E)."""
        assert self.gain is not None
        groups = y.unflatten(-1, (self.groups, -1))  # (B, N, groups, E / groups)
        return F.rms_norm(groups, groups.shape[-1:], eps=self.eps).flatten(-2) * self.gain.to(y.dtype)
