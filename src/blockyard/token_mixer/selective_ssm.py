"""Selective state space (Mamba): every channel has its own states, with decays and inputs that depend on the token.

Source: Gu and Dao 2023, Mamba (arXiv 2312.00752), algorithm 2 and section 3.4
Reference: transformers MambaMixer
Equation: h_t = exp(-A d_t) h_(t-1) + d_t B_t x_t and y_t = C_t h_t + D x_t, for K states of each channel with trained
    rates A, steps d_t = softplus(W_2 W_1 x_t + b) of each channel, and B and C of all channels; x goes through a short
    convolution and silu
Cost: O(N E (D + K)) time and O(N E K) memory in training, for E inner channels; a decoding step takes constant time
    and memory

    u --> x --> short convolution --> silu --> B, C, d --> states --> * silu(z) --> projection
      --> z ----------------------------------------------------------^
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Expansion, Memory, Role, Seq, TokenMixer, Traits, Width
from blockyard.ops.autocast import full_precision
from blockyard.ops.linear import Linear, linear, residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, check_one_document
from blockyard.token_mixer._decay_rates import initial_steps
from blockyard.token_mixer._recurrent import backwards, blocked_scan, causal_states, reverse
from blockyard.token_mixer._short_conv import Kernel, ShortConv, last_inputs
from blockyard.token_mixer._state_mixer import exact
from blockyard.weight_init import Init


class SelectiveSSM(TokenMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        expansion: inner channels as a multiple of model.dim
        state: numbers of the state for each inner channel
        rank: channels between the two maps that compute the steps; null means a 16th of model.dim
        conv: tokens that the short convolution reads; 0 leaves it out
        bias: use biases in the projections to and from the inner channels
    """

    traits = Traits(causal=True, padding=True, packing=True, axes=frozenset({1, 2}))
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"rate"})
    roles: ClassVar[dict[str, Role]] = {"rate": "vector", "step": "vector", "through": "vector"}

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 2.0,
        state: Width = 16,
        rank: Width | None = None,
        conv: Kernel = 4,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.inner = max(1, round(expansion * ctx.dim))
        self.state = state
        self.rank = rank or math.ceil(ctx.dim / 16)
        self.proj_in = linear(ctx, ctx.dim, 2 * self.inner, bias=bias, content=0)  # x, z
        self.conv = ShortConv(self.inner, conv, bias=True) if conv else None
        self.proj_state = linear(ctx, self.inner, self.rank + 2 * state)  # towards the steps, B, C
        role: Role = "hidden" if rank is None else "input"
        self.proj_step = Linear(self.rank, self.inner, bias=False, std=self.rank**-0.5, role=role)
        self.proj_step.fades = "it sums over a 16th of the width, of which narrow models have few" if not rank else None
        self.step = nn.Parameter(torch.empty(self.inner))  # b
        self.rate = nn.Parameter(torch.empty(self.inner, state))  # the logarithm of A
        self.through = nn.Parameter(torch.empty(self.inner))  # D
        self.proj_out = residual(ctx, self.inner, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Set rates 1, 2, ... of the states of each channel, steps between 0.001 and 0.1, and D to one."""
        rates = torch.arange(1, self.state + 1, dtype=torch.float32).log()
        init.copy("rate", rates.expand(self.inner, -1))
        init.copy("step", initial_steps(self.inner, init.generator("step")))
        init.ones("through")

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). States are in float32 at least."""
        check_call(self, self.traits, seq, cache, memory)
        check_one_document(self, seq, cache)
        h, z = self.proj_in(x).chunk(2, dim=-1)  # 2 x (B, N, E)
        y = self._read(h, seq, seq.valid, cache)
        if not self.causal:
            y = y + reverse(self._read(reverse(h, seq.valid), backwards(seq), seq.valid), seq.valid)
        return self.proj_out((y * F.silu(z.to(y.dtype))).to(h.dtype))  # (B, N, D)

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty cache, for the states and the last inputs of the convolution.

        Raises ValueError for a bidirectional model, whose outputs depend on the future.
        """
        check_decodes(self.causal)
        return StateCache()

    def _read(self, h: Tensor, seq: Seq, valid: Tensor | None, cache: StateCache | None = None) -> Tensor:
        """Run the states over h in the order of `seq`: (B, N, E) -> (B, N, E)."""
        states, past = (None, None) if cache is None or cache.parts is None else cache.parts
        x = F.silu(h if self.conv is None else self.conv(h, seq, past))
        step, b, c = self.proj_state(x).split([self.rank, self.state, self.state], dim=-1)
        b, c, x = exact(b), exact(c), exact(x)
        step = exact(self.proj_step(step))
        step = F.softplus(step + self.step.to(step.dtype))  # (B, N, E)
        if valid is not None:  # padding leaves the states as they are
            step = step.masked_fill(~valid[..., None], 0.0)
        # The rate is trained as a logarithm, so that every decay lies between 0 and 1.
        decay = torch.exp(-step[..., None] * self.rate.to(step.dtype).exp())  # (B, N, E, K)
        added = (step * x)[..., None] * b[:, :, None]  # (B, N, E, K)
        states = causal_states(decay.flatten(2), added.flatten(2), seq, states, scan=blocked_scan)  # (B, N, E K)
        if cache is not None:
            reach = 0 if self.conv is None else self.conv.kernel - 1
            cache.store(states[:, -1], last_inputs(past, h, reach))
        with full_precision(h):
            y = (states.unflatten(-1, (self.inner, -1)) @ c[..., None])[..., 0]  # (B, N, E)
        return y + self.through.to(y.dtype) * x  # (B, N, E)
