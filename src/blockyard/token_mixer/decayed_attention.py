"""Linear attention that forgets: a state that decays before each token; RetNet, gated RetNet, GLA, HGRN2.

Source: decay=fixed after Sun et al. 2023, Retentive Network (arXiv 2307.08621), eq. 6 and 8; decay=head after Sun et
    al. 2024, You Only Cache Once (arXiv 2405.05254), section 3.2; decay=channel after Yang et al. 2023, Gated Linear
    Attention (arXiv 2312.06635), section 4.4, and with tied_keys after Qin et al. 2024, HGRN2 (arXiv 2404.07904)
Reference: fla ops retention, simple_gla, gla and their naive forms, written out as a loop
Equation: S_t = D_t S_(t-1) + k_t v_t^T and y_t = S_t^T q_t / sqrt(K), with decays D_t of
    fixed      1 - 2^(-5 - h) in head h            head, channel      sigmoid(W x_t + b)^(1 / temperature)
    and with tied_keys k_t = 1 - D_t and queries through silu
Cost: O(N D (D + C + K)) time in chunks of C tokens; a decoding step takes constant time and memory

    decay=fixed                                                       RetNet, with position=rope
    decay=head                                                        the gated RetNet of YOCO
    decay=channel decay_rank=16                                       GLA
    decay=channel tied_keys=true temperature=1 output_gate=none       HGRN2

The scalar decays of state-space models, which are a rate times a step that also scales the values, are
token_mixer=mamba2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Memory, Positive, Seq, Traits, Width
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.linear import linear, low_rank, output, residual
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.token_mixer._gated_norm import GatedNorm, OutputGate
from blockyard.token_mixer._short_conv import Kernel, ShortConv
from blockyard.token_mixer._state_mixer import StateMixer, exact

Decay = Literal["fixed", "head", "channel"]


class DecayedAttention(StateMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        decay: fixed is one number for each head, not trained; head computes one for each head and token; channel one
            for each channel of the keys, without a rotation of queries and keys
        temperature: root of the computed decays; the larger, the longer the memory at the start
        decay_rank: channels between two maps, in place of one, that compute the decays of channels; null means one map
        tied_keys: keys are one minus the decays of their channels: a channel that forgets more takes in more
        conv: tokens that a short convolution of queries, keys and values reads, with silu after it; 0 leaves both out
        output_gate: function of the token by which the normalised output is multiplied: none, silu or sigmoid
        eps: term added to the mean square by the norm of the outputs
    """

    traits = replace(StateMixer.traits, ports=frozenset({"queries_and_keys"}))

    @with_options_of(StateMixer)
    def __init__(
        self,
        ctx: Context,
        *,
        decay: Decay = "head",
        temperature: Positive = 16.0,
        decay_rank: Width | None = None,
        tied_keys: bool = False,
        key_dim: Width | None = None,
        conv: Kernel = 0,
        output_gate: OutputGate = "silu",
        eps: Positive = 1e-5,
        **options: Any,
    ) -> None:
        super().__init__(ctx, key_dim=key_dim, **options)
        self.key_width = self.key_dim
        keys = self.heads * self.key_dim
        values = self.heads * self.value_dim
        self.widths = [keys, 0 if tied_keys else keys, values]
        self.conv = ShortConv(sum(self.widths), conv) if conv else None
        self.traits = self.traits_for({"decay": decay})
        check_context(self, ctx)
        if decay != "channel" and (tied_keys or decay_rank is not None):
            name = "tied_keys=true" if tied_keys else f"decay_rank={decay_rank}"
            raise ValueError(
                f"token_mixer.{name} is of decays of channels; use token_mixer.decay=channel, or leave it out"
            )
        if decay == "fixed" and temperature != 16.0:
            raise ValueError(
                f"token_mixer.temperature={temperature} is of computed decays; leave it out with decay=fixed"
            )
        self.decay = decay
        self.temperature = temperature
        self.tied_keys = tied_keys
        scale = ctx.score_scale(self.key_dim, grows=key_dim is None)
        self.scale = self.key_dim**-0.5 if scale is None else scale
        gates = values if output_gate != "none" else 0
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths) + gates, content=sum(self.widths[:2]))
        self.proj_decay: nn.Module | None = None
        if decay == "head":
            self.proj_decay = output(ctx, ctx.dim, self.heads, bias=True)
        elif decay == "channel":
            self.proj_decay = low_rank(ctx, ctx.dim, keys, decay_rank, bias=True)
        self.norm = GatedNorm(self.value_dim, output_gate, eps)
        self.proj_out = residual(ctx, values, ctx.dim)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits. With decay=channel there are no ports: a rotation would mix channels of unlike decays."""
        if options.get("decay") == "channel":
            return replace(cls.traits, ports=frozenset())
        return cls.traits

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). States are in float32 at least."""
        check_call(self, self.traits, seq, cache, memory)
        h = self.proj_in(x)
        qkv, z = h.split([sum(self.widths), h.shape[-1] - sum(self.widths)], dim=-1)
        y = self.read(qkv, self._logarithms(x), None, seq, cache)  # (B, N, H, V)
        y = self.norm(y, z.unflatten(-1, (self.heads, -1)) if z.shape[-1] else None)
        return self.proj_out(y.flatten(2).to(h.dtype))  # (B, N, D)

    def split_heads(self, h: Tensor, log: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, rotated by the position scheme."""
        h = h if self.conv is None else F.silu(h)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in h.split(self.widths, dim=-1))
        if self.tied_keys:
            return F.silu(q) * self.scale, -torch.expm1(log), v
        q, k = (part.transpose(1, 2) for part in (q, k))  # 2 x (B, H, N, K)
        if "queries_and_keys" in self.traits.ports:  # a scheme may be there for other layers
            q, k = rotate(q, k, seq, seq)
        return (q * self.scale).transpose(1, 2), k.transpose(1, 2), v

    def _logarithms(self, x: Tensor) -> Tensor:
        """Return the logarithms of the decays: (B, N, H, K or 1)."""
        if self.proj_decay is not None:
            return F.logsigmoid(exact(self.proj_decay(x))).unflatten(-1, (self.heads, -1)) / self.temperature
        # 1 - 2^(-5 - h), as in RetNet: head 0 remembers about 32 tokens, and each further head twice as many.
        head = torch.arange(self.heads, device=x.device, dtype=exact(x[:0]).dtype)
        return torch.log1p(-torch.exp2(-5 - head))[:, None].expand(*x.shape[:2], -1, -1)
