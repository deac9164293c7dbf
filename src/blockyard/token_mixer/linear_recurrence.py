"""Linear recurrence: a state that decays and takes in each token, computed by a parallel scan.

Source: Feng et al. 2024, Were RNNs All We Needed? (arXiv 2410.01201), eq. of minGRU; decay=fixed is a moving average
    with one trained rate per channel, near the LRU of Orvieto et al. 2023, Resurrecting Recurrent Neural Networks for
    Long Sequences (arXiv 2303.06349), which has complex decays and scales the input by sqrt(1 - |a|^2)
Reference: a loop; the scan is Blelloch's (1990)
Equation: h_t = a_t h_(t-1) + (1 - a_t) W_v x_t, a_t = sigmoid(W_a x_t), or one trained number per channel
Cost: O(N D E) time, O(N E log N) for the scan of E channels; a decoding step takes constant time and memory
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Expansion, Memory, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._recurrent import causal_states, restart, reverse, scan
from blockyard.weight_init import Init


class LinearRecurrence(TokenMixer):
    """Reads tokens in the order of the sequence. In a bidirectional model half of the channels run backwards.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        decay: input computes it from the token, as in minGRU; fixed is one trained number per channel
        expansion: state channels as a multiple of model.dim
        bias: use biases in the projections
    """

    roles: ClassVar[dict[str, Role]] = {"rate": "vector"}

    traits = Traits(causal=True, padding=True, packing=True, axes=frozenset({1, 2}))
    hidden_multiple: ClassVar[int] = 2  # a half for each direction

    def __init__(
        self,
        ctx: Context,
        *,
        decay: Literal["input", "fixed"] = "input",
        expansion: Expansion = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.decay = decay
        self.hidden = 2 * max(1, round(expansion * ctx.dim / 2))
        self.proj_in = linear(ctx, ctx.dim, self.hidden * (2 if decay == "input" else 1), bias=bias)
        self.rate = nn.Parameter(torch.empty(self.hidden)) if decay == "fixed" else None
        self.proj_out = residual(ctx, self.hidden, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Draw fixed decays uniformly between 0.5 and 0.999 per token."""
        if self.rate is not None:
            decay = torch.empty(self.rate.shape).uniform_(0.5, 0.999, generator=init.generator("rate"))
            init.copy("rate", torch.logit(decay))

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: StateCache | None = None) -> Tensor:
        """The recurrence between the projections: (B, N, E or 2 E) -> (B, N, E). States are in float32 at least."""
        exact = h.to(torch.promote_types(h.dtype, torch.float32))
        value = exact[..., : self.hidden]  # (B, N, E)
        logit = exact[..., self.hidden :] if self.rate is None else self.rate.to(exact.dtype).expand_as(value)
        a = torch.sigmoid(logit)  # (B, N, E)
        b = torch.sigmoid(-logit) * value  # 1 - a as a sigmoid keeps its digits where a is near one
        if seq.valid is not None:  # padding leaves the state as it is
            padding = ~seq.valid[..., None]
            a = a.masked_fill(padding, 1.0)
            b = b.masked_fill(padding, 0.0)
        if self.causal:
            start = None if cache is None or cache.parts is None else cache.parts[0]
            states = causal_states(a, b, seq, start)
            if cache is not None:
                cache.store(states[:, -1])
            return states.to(h.dtype)  # (B, N, E)
        a_ahead, a_back = a.chunk(2, dim=-1)  # 2 x (B, N, E / 2)
        b_ahead, b_back = b.chunk(2, dim=-1)
        forwards = scan(*restart(a_ahead, b_ahead, seq.segment))  # (B, N, E / 2)
        a_back, b_back = reverse(a_back, seq.valid), reverse(b_back, seq.valid)
        segment = None if seq.segment is None else reverse(seq.segment[..., None], seq.valid)[..., 0]
        backwards = reverse(scan(*restart(a_back, b_back, segment)), seq.valid)  # (B, N, E / 2)
        return torch.cat([forwards, backwards], dim=-1).to(h.dtype)  # (B, N, E)

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty state. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return StateCache()
