"""Delta rule: a state of keys and values that replaces the value it holds for a key; DeltaNet, Gated DeltaNet, KDA.

Source: Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers (arXiv 2102.11174), eq. 24; Yang et
    al. 2024, Parallelizing Linear Transformers with the Delta Rule (arXiv 2406.06484), for the layer; gate=head after
    Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464), eq. 10; gate=channel after Kimi Linear (arXiv
    2510.26692), eq. 1; negative after Grazzi et al. 2024, Unlocking State-Tracking in Linear RNNs (arXiv 2411.12537)
Reference: transformers Qwen3NextGatedDeltaNet, OlmoHybridGatedDeltaNet, KimiLinearDeltaAttention
Equation: S_t = (1 - beta_t k_t k_t^T) D_t S_(t-1) + beta_t k_t v_t^T and y_t = S_t^T q_t / sqrt(K), with unit q and k,
    beta_t = sigmoid(W x_t), or twice that, and decays D_t of one number a head, one for each channel, or none
Cost: O(N D (D + C + K)) time in chunks of C tokens; a decoding step takes constant time and memory

    x --> q k v --> short convolution --> silu --> unit q and k --> state --> norm --> gate --> projection
      --> beta, decay ----------------------------------------------^                   ^
      --> z ----------------------------------------------------------------------------+

    gate=none                                                         DeltaNet
    gate=head                                                         Gated DeltaNet, of Qwen3-Next and OLMo Hybrid
    gate=channel output_gate=sigmoid gate_rank=K                      Kimi Delta Attention
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Heads, Memory, Positive, Seq, Width
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.linear import linear, low_rank, output, residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.token_mixer._decay_rates import DecayRates
from blockyard.token_mixer._gated_norm import GatedNorm, OutputGate
from blockyard.token_mixer._short_conv import Kernel, ShortConv
from blockyard.token_mixer._state_mixer import StateMixer, exact

EPSILON = 1e-6  # of the length of queries and keys


class DeltaRule(StateMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        gate: decay of the state before each token: none; head computes one number for each head; channel one for each
            channel of the keys
        negative: let a token reverse the value that the state holds for its key: beta is between 0 and 2 instead of 1
        conv: tokens that the short convolution of queries, keys and values reads; 0 leaves it out
        num_key_heads: number of heads of queries and keys, each read by so many heads of values; null means num_heads
        output_gate: function of the token that multiplies the normalised output: none, silu or sigmoid
        gate_rank: channels between two maps, in place of one, for the decays of gate=channel and for the output gate;
            null means one map
        eps: term added to the mean square by the norm of the outputs
    """

    delta: ClassVar[bool] = True

    @with_options_of(StateMixer)
    def __init__(
        self,
        ctx: Context,
        *,
        gate: Literal["none", "head", "channel"] = "head",
        negative: bool = False,
        conv: Kernel = 4,
        num_key_heads: Heads | None = None,
        output_gate: OutputGate = "silu",
        gate_rank: Width | None = None,
        eps: Positive = 1e-6,
        **options: Any,
    ) -> None:
        super().__init__(ctx, **options)
        self.key_heads = num_key_heads or self.heads
        keys = self.key_heads * self.key_dim
        values = self.heads * self.value_dim
        self.widths = [keys, keys, values]
        self.conv = ShortConv(sum(self.widths), conv) if conv else None
        check_context(self, ctx)
        self.gate = gate
        self.negative = negative
        if self.heads % self.key_heads:
            divisors = ", ".join(str(h) for h in range(1, self.heads + 1) if self.heads % h == 0)
            raise ValueError(
                f"token_mixer.num_key_heads={num_key_heads} does not divide the {self.heads} heads; "
                f"use one of {divisors}"
            )
        if gate_rank is not None and gate != "channel" and output_gate == "none":
            raise ValueError(
                f"token_mixer.gate_rank={gate_rank} is of the maps of gate=channel and of the output gate; leave it "
                "out without them"
            )
        gated = output_gate != "none" and gate_rank is None
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths) + gated * values, content=2 * keys)
        self.proj_gate: nn.Module | None = None
        if output_gate != "none" and gate_rank is not None:
            self.proj_gate = low_rank(ctx, ctx.dim, values, gate_rank)
        # beta of each head, and its decay
        self.proj_rates = output(ctx, ctx.dim, self.heads * (2 if gate == "head" else 1))
        decays = self.heads * self.key_dim
        self.proj_decay = low_rank(ctx, ctx.dim, decays, gate_rank) if gate == "channel" else None
        channels = self.key_dim if gate == "channel" else 1
        self.decay = None if gate == "none" else DecayRates(self.heads, channels)
        self.norm = GatedNorm(self.value_dim, output_gate, eps)
        self.proj_out = residual(ctx, values, ctx.dim)

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). States are in float32 at least."""
        check_call(self, self.traits, seq, cache, memory)
        h = self.proj_in(x)
        qkv, z = h.split([sum(self.widths), h.shape[-1] - sum(self.widths)], dim=-1)
        rates = exact(self.proj_rates(x))
        # Up to 2, the transition I - beta k k^T has an eigenvalue down to -1, with which a state can track parity.
        beta = torch.sigmoid(rates[..., : self.heads]) * (2 if self.negative else 1)  # (B, N, H)
        log = torch.zeros_like(beta)[..., None]  # (B, N, H, K or 1)
        if self.decay is not None:
            steps = rates[..., self.heads :] if self.proj_decay is None else exact(self.proj_decay(x))
            log = self.decay(steps.unflatten(-1, (self.heads, -1)))
        y = self.read(qkv, log, beta, seq, cache)  # (B, N, H, V)
        gate = self.proj_gate(x) if self.proj_gate is not None else z  # (B, N, H V), or empty without a gate
        y = self.norm(y, gate.unflatten(-1, (self.heads, -1)) if gate.shape[-1] else None)
        return self.proj_out(y.flatten(2).to(h.dtype))  # (B, N, D)

    def split_heads(self, h: Tensor, log: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of length one, repeated for all heads that read them, and values."""
        q, k, v = F.silu(h).split(self.widths, dim=-1)
        q, k = (part.unflatten(-1, (self.key_heads, -1)) for part in (q, k))  # (B, N, H', K)
        # Unit keys: with beta = 1 the state replaces the value of a key exactly.
        q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + EPSILON) for part in (q, k))
        q, k = (part.repeat_interleave(self.heads // self.key_heads, dim=2) for part in (q, k))  # (B, N, H, K)
        return q * self.key_dim**-0.5, k, v.unflatten(-1, (self.heads, -1))
