"""mLSTM of xLSTM: a matrix memory with an exponential input gate, a forget gate and a normaliser.

Source: Beck et al. 2024, xLSTM: Extended Long Short-Term Memory (arXiv 2405.04517), eq. 19 to 27; gate_cap and
    input_bias=-10 after Beck et al. 2025, xLSTM 7B (arXiv 2503.13427), section 3
Reference: transformers xLSTMLayer (xlstm)
Equation: C_t = f_t C_(t-1) + i_t k_t v_t^T, n_t = f_t n_(t-1) + i_t k_t and
    h_t = C_t^T q_t / max(|n_t^T q_t|, 1), y_t = W (sigmoid(o_t) norm(h_t)), with q_t a projection over sqrt(K), and for
    each head i_t = exp(c tanh(w_i x_t / c)), f_t = sigmoid(c tanh(w_f x_t / c)); without a cap c the argument alone
Cost: O(N D (D + C + K)) time in chunks of C tokens; a decoding step takes constant time and memory

    x --> q k v --> memory --> norm --> * sigmoid(o) --> projection
      --> i f ---------^                     ^
      --> o ---------------------------------+

The gate i_t has no bound, so memory and normaliser are kept over e^(m_t), m_t = max(ln f_t + m_(t-1), ln i_t): with
decays f_t e^(m_(t-1) - m_t) and inputs i_t e^(-m_t), which are at most 1, and |n_t^T q_t| against e^(-m_t).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Because, Context, Memory, Positive, Role, Seq, Width
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.linear import linear, output, residual
from blockyard.ops.rotate import rotate
from blockyard.ops.shaping import capped
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.token_mixer._short_conv import Kernel, ShortConv
from blockyard.token_mixer._state_mixer import StateMixer, exact
from blockyard.weight_init import Init

InputBias = Annotated[float, Ge(-100), Le(100), Because("it is in an exponent")]

FORGET_BIASES = (3.0, 6.0)  # of the first and the last head, at first: memories of 20 to 400 tokens
EPSILON = 1e-6  # of the normaliser


class MLSTM(StateMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.

    Options:
        gate_cap: bound c on the arguments of both gates, by a tanh; null is none
        input_bias: initial bias of the input gates; -10 starts with a memory that takes in almost nothing
        conv: tokens that a short convolution of queries, keys and values reads, with silu after it; 0 leaves both out
        eps: term added to the variance by the norm of the outputs
    """

    traits = replace(StateMixer.traits, ports=frozenset({"queries_and_keys"}))
    closed: ClassVar[float] = -torch.inf  # the logarithm of i_t at padding
    roles: ClassVar[dict[str, Role]] = {"gate_bias": "fixed", "gain": "vector"}

    @with_options_of(StateMixer)
    def __init__(
        self,
        ctx: Context,
        *,
        gate_cap: Positive | None = None,
        input_bias: InputBias = 0.0,
        key_dim: Width | None = None,
        conv: Kernel = 0,
        eps: Positive = 1e-6,
        **options: Any,
    ) -> None:
        super().__init__(ctx, key_dim=key_dim, **options)
        self.key_width = self.key_dim
        keys = self.heads * self.key_dim
        values = self.heads * self.value_dim
        self.widths = [keys, keys, values]
        self.conv = ShortConv(sum(self.widths), conv) if conv else None
        check_context(self, ctx)
        self.gate_cap = gate_cap
        self.input_bias = input_bias
        self.eps = eps
        scale = ctx.score_scale(self.key_dim, grows=key_dim is None)
        self.scale = self.key_dim**-0.5 if scale is None else scale
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths) + values, content=2 * keys)  # q, k, v, o
        self.proj_gates = output(ctx, ctx.dim, 2 * self.heads)
        self.gate_bias = nn.Parameter(torch.empty(2 * self.heads))  # of i, and of f
        self.gain = nn.Parameter(torch.empty(values))
        self.proj_out = residual(ctx, values, ctx.dim)

    def init_weights(self, init: Init) -> None:
        """Set the biases of both gates, for f at equal steps over the heads, and a gain of one."""
        inputs = torch.full((self.heads,), self.input_bias)
        init.copy("gate_bias", torch.cat([inputs, torch.linspace(*FORGET_BIASES, self.heads)]))
        init.ones("gain")

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). States are in float32 at least."""
        check_call(self, self.traits, seq, cache, memory)
        h = self.proj_in(x)
        qkv, z = h.split([sum(self.widths), self.widths[2]], dim=-1)
        gates = exact(self.proj_gates(x))
        gates = capped(gates + self.gate_bias.to(gates.dtype), self.gate_cap)  # (B, N, 2 H)
        log = F.logsigmoid(gates[..., self.heads :])[..., None]  # ln f: (B, N, H, 1)
        y = self.read(qkv, log, gates[..., : self.heads], seq, cache)  # (B, N, H, V)
        y = F.layer_norm(y, y.shape[-1:], eps=self.eps).flatten(2) * self.gain.to(y.dtype)
        return self.proj_out((y * torch.sigmoid(z.to(y.dtype))).to(h.dtype))  # (B, N, D)

    def split_heads(self, h: Tensor, log: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, rotated by the position scheme."""
        h = h if self.conv is None else F.silu(h)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in h.split(self.widths, dim=-1))
        q, k = rotate(q.transpose(1, 2), k.transpose(1, 2), seq, seq)
        return (q * self.scale).transpose(1, 2), k.transpose(1, 2), v

    def enter(
        self, v: Tensor, log: Tensor, rate: Tensor, order: Seq, level: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values with a one behind them, summed by the normaliser, and decays, both over e^m; and m.

        `rate` is the logarithm of i_t.
        """
        # m cancels out of the outputs, so it needs no gradient.
        levels, earlier = stabilisers(log.detach(), rate.detach(), order, level)
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # (B, H, N, V + 1)
        return values * (rate - levels).exp(), log + earlier - levels, levels

    def leave(self, y: Tensor, level: Tensor | None) -> Tensor:
        """Divide reads of the memory (B, H, N, V + 1) by their last channel, the normaliser: (B, H, N, V)."""
        assert level is not None
        y, total = y.split([y.shape[-1] - 1, 1], dim=-1)
        # The bound 1 of the normaliser is e^-m here, as the memory is kept over e^m.
        return y / (torch.maximum(total.abs(), (-level).exp()) + EPSILON)


def stabilisers(log: Tensor, gate: Tensor, order: Seq, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return m_t = max(log_t + m_(t-1), gate_t) and m_(t-1) for every token: 2 x (B, H, N, 1).

    log, gate: (B, H, N, 1), the logarithms of forget and input gates, in the order of `order`
    before: (B, H, 1, 1), m in front of the first token; None is zero, for an empty memory. Every document starts from
        m after the prefix
    """
    before = torch.zeros_like(log[:, :, :1]) if before is None else before
    if order.segment is None:
        return _levels(log, gate, before, None)
    p = order.num_prefix
    if not p:
        return _levels(log, gate, before, order.segment)
    prefix = _levels(log[:, :, :p], gate[:, :, :p], before, None)
    rest = _levels(log[:, :, p:], gate[:, :, p:], prefix[0][:, :, -1:], order.segment[:, p:])
    return torch.cat([prefix[0], rest[0]], dim=2), torch.cat([prefix[1], rest[1]], dim=2)


def _levels(log: Tensor, gate: Tensor, before: Tensor, segment: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return m_t and m_(t-1), every document (B, N) from `before`, by an associative scan in O(log N) steps."""
    # Step (a, b) followed by step (a', b') is the step (a + a', max(a' + b, b')).
    first = torch.zeros_like(log, dtype=torch.bool)
    first[:, :, 0] = True
    if segment is not None:
        first[:, :, 1:] = (segment[:, 1:] != segment[:, :-1])[:, None, :, None]
    b = torch.where(first, torch.maximum(log + before, gate), gate)
    a = log.masked_fill(first, -torch.inf)
    reach = 1
    while reach < a.shape[2]:
        b = torch.cat([b[:, :, :reach], torch.maximum(a[:, :, reach:] + b[:, :, :-reach], b[:, :, reach:])], dim=2)
        a = torch.cat([a[:, :, :reach], a[:, :, reach:] + a[:, :, :-reach]], dim=2)
        reach *= 2
    return b, torch.where(first, before, torch.cat([before, b[:, :, :-1]], dim=2))
