"""Hyper-connections: several streams, mixed with each other before every block. A block reads and writes a mixture.

Source: Zhu et al. 2024, Hyper-Connections (arXiv 2409.19606), section 2 and algorithm 2; for mixing=sinkhorn
    Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4
Reference: for mixing=sinkhorn transformers DeepseekV4HyperConnection
Equation: y = a^T H,  H <- M^T H + b f(y)^T,  H (n, D) the streams of a token, f(y) the addition of the block
    free:     a, b, M = a0, b0, M0 + s tanh(W rms(H)), each stream of H by itself
    sinkhorn: a = sigmoid(.), b = 2 sigmoid(.), M doubly stochastic by alternating normalisation, of all of H together
Cost: O(N n^2 D) time a visit; n D (n + 2) parameters a visit (free: D (n + 2)); n streams are kept

    With several streams a block can read the outputs of earlier blocks without the sum of all others. The paper joins
    streams around each branch, here they are joined around each block. block=single has one branch a block.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Because, Context, Count, Residual, Role
from blockyard.ops.autocast import full_precision
from blockyard.weight_init import Init

Streams = Annotated[int, Ge(2), Le(64), Because("every token keeps so many vectors")]


class MixedStreams(NamedTuple):
    """The streams (B, N, n, D); while a block runs, mixed with each other, with its weights to write (B, N, n)."""

    streams: Tensor
    write: Tensor | None = None


class Hyper(Residual):
    """All streams start as the embedded tokens; the final norm reads their mean.

    Before training, free mixing computes the same as `add`: each block reads one stream, in turn, and adds to all of
    them. With sinkhorn it reads half of that stream, and the other half from the others.

    Options:
        streams: n, the number of streams
        mixing: free weights, or weights with bounds: sinkhorn keeps the mean of the streams as they are mixed
        dynamic: weights depend on the streams of each token; otherwise they are the same for all tokens
        iterations: of mixing=sinkhorn, normalisations of rows and columns
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"bias", "scale"})
    roles: ClassVar[dict[str, Role]] = {"bias": "fixed", "scale": "fixed", "maps": "output"}
    of_additions: ClassVar[bool] = True

    def __init__(
        self,
        ctx: Context,
        *,
        streams: Streams = 4,
        mixing: Literal["free", "sinkhorn"] = "free",
        dynamic: bool = True,
        iterations: Annotated[Count, Le(1_000)] = 20,
    ) -> None:
        super().__init__(ctx)
        self.streams = streams
        self.mixing = mixing
        self.iterations = iterations
        self.visits = ctx.visits
        self.start = ctx.parametrization.std("output", ctx)
        self.factor = ctx.parametrization.factor("output", ctx)
        self.sizes = (streams, streams, streams * streams)  # weights of a visit: to read, to write, and to mix
        if mixing == "free":  # a row of `maps` is over one stream
            outputs, width = streams + 2, ctx.dim
        else:  # over all streams of a token
            outputs, width = sum(self.sizes), streams * ctx.dim
        self.bias = nn.Parameter(torch.empty(ctx.visits, sum(self.sizes)))
        self.scale = nn.Parameter(torch.empty(ctx.visits, 3)) if dynamic else None
        self.maps = nn.Parameter(torch.empty(ctx.visits, outputs, width)) if dynamic else None

    def init_weights(self, init: Init) -> None:
        """Set weights that compute the same as `add`; weights that depend on the streams start at zero, or small."""
        init.copy("bias", torch.stack([self._start(visit) for visit in range(self.visits)]))
        init.constant("scale", 0.01)
        if self.mixing == "free":
            init.zeros("maps")
        else:
            std = self.start / math.sqrt(self.maps.shape[-1]) if self.maps is not None else 0.0
            init.normal("maps", std=std)

    def _start(self, visit: int) -> Tensor:
        """Return the initial weights of a visit, (n + n + n n,)."""
        own = torch.zeros(self.streams)
        own[visit % self.streams] = 1.0
        eye = torch.eye(self.streams)
        if self.mixing == "free":
            return torch.cat([own, torch.ones(self.streams), eye.flatten()])
        read = (0.5 * own + 0.5 * (1 - own) / (self.streams - 1)).logit()
        # 2 sigmoid(0) = 1 to write; e^4 on the diagonal, against 1 beside it, keeps streams nearly apart.
        return torch.cat([read, torch.zeros(self.streams), 4.0 * eye.flatten()])

    def open(self, x: Tensor) -> MixedStreams:
        """Return the embedded tokens as every stream."""
        return MixedStreams(x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]))  # (B, N, n, D)

    def read(self, state: MixedStreams, visit: int) -> tuple[Tensor, MixedStreams]:
        """Return the mixture that the block reads (B, N, D), and the streams mixed with each other."""
        streams = state.streams
        with full_precision(streams):
            read, write, mix = self._weights(streams, visit)
            x = torch.einsum("bns,bnsd->bnd", read.expand(streams.shape[:-1]), streams)
            mixed = torch.einsum("bnst,bnsd->bntd", mix.expand(*streams.shape[:-1], self.streams), streams)
        return x, MixedStreams(mixed, write)

    def write(self, state: MixedStreams, visit: int, x: Tensor, output: Tensor) -> MixedStreams:
        """Return the streams with the addition of the block."""
        assert state.write is not None
        addition = (output - x).unsqueeze(-2)  # (B, N, 1, D)
        return MixedStreams(state.streams + state.write.unsqueeze(-1) * addition)

    def close(self, state: MixedStreams) -> Tensor:
        """Return the mean of the streams, (B, N, D)."""
        return state.streams.mean(-2)

    def _weights(self, streams: Tensor, visit: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights to read (B|1, N|1, n), to write (B|1, N|1, n), and to mix (B|1, N|1, n, n)."""
        dtype = streams.dtype
        read, write, mix = (part.view(1, 1, -1) for part in self.bias[visit].to(dtype).split(self.sizes))
        mix = mix.unflatten(-1, (self.streams, self.streams))  # from stream, to stream
        if self.maps is not None and self.scale is not None:
            maps = self.maps[visit].to(dtype) * self.factor  # (rows, D) or (rows, n D)
            read_scale, write_scale, mix_scale = self.scale[visit].to(dtype)
            vectors = streams if self.mixing == "free" else streams.flatten(-2)  # (B, N, n, D) or (B, N, n D)
            moves = F.rms_norm(vectors, vectors.shape[-1:], eps=1e-6) @ maps.T  # (B, N, ..., rows)
            if self.mixing == "free":
                more_read, more_write, more_mix = torch.tanh(moves).split([1, 1, self.streams], dim=-1)
                more_read = more_read.squeeze(-1)
                more_write = more_write.squeeze(-1)
            else:
                more_read, more_write, more_mix = moves.split(self.sizes, dim=-1)
                more_mix = more_mix.unflatten(-1, (self.streams, self.streams))
            read = read + read_scale * more_read
            write = write + write_scale * more_write
            mix = mix + mix_scale * more_mix
        if self.mixing == "free":
            return read, write, mix
        return read.sigmoid(), 2 * write.sigmoid(), _doubly_stochastic(mix, self.iterations)


def _doubly_stochastic(scores: Tensor, iterations: int) -> Tensor:
    """Return exp(scores) with rows and columns normalised to a sum of one, alternating: (..., n, n)."""
    logs = scores  # in logarithms, so that large scores do not overflow
    for _ in range(iterations):
        logs = logs - logs.logsumexp(-1, keepdim=True)
        logs = logs - logs.logsumexp(-2, keepdim=True)
    return logs.exp()
