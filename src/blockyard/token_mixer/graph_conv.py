"""Graph convolution: each node mixes with its neighbours in the graph, by a sum, a mean or attention.

Source: Xu et al. 2019, How Powerful are Graph Neural Networks? (GIN, arXiv 1810.00826), eq. 4.1; Kipf and Welling 2017,
    Semi-Supervised Classification with Graph Convolutional Networks (GCN, arXiv 1609.02907), eq. 2; Velickovic et al.
    2018, Graph Attention Networks (GAT, arXiv 1710.10903), eq. 3
Reference: torch_geometric.nn.GINConv, GCNConv, GATConv
Equation: gin: MLP((1 + eps) x_i + sum_j x_j); gcn: W sum_j x_j / sqrt(d_i d_j); gat: sum_j a_ij W x_j, a_ij = softmax
    over j of LeakyReLU(a . W x_i + b . W x_j), head by head; gcn and gat count i among its neighbours j, d with it
Cost: O(N^2 D) time with dense adjacency, D^2 parameters (gin: 2 D^2), and 2 D for gat
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.weight_init import Init

SLOPE = 0.2  # of GAT's leaky ReLU


class GraphConv(TokenMixer):
    """Two nodes are neighbours if their distance is one; types of edges are not read.

    Options:
        kind: gin sums neighbours and applies two layers; gcn averages them by degrees; gat attends to them
        bias: use biases in the linear maps
    """

    traits = Traits(padding=True, packing=True, prefix=False, equivariant=True, axes=frozenset({0}), reads_pairs=True)
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"sends", "receives"})
    roles: ClassVar[dict[str, Role]] = {"eps": "fixed", "sends": "output", "receives": "output"}

    def __init__(self, ctx: Context, *, kind: Literal["gin", "gcn", "gat"] = "gin", bias: bool = True) -> None:
        super().__init__()
        check_context(self, ctx)
        self.kind = kind
        self.heads = ctx.heads
        self.eps = nn.Parameter(torch.empty(1)) if kind == "gin" else None
        self.hidden = linear(ctx, ctx.dim, ctx.dim, bias=bias, content=0) if kind == "gin" else None
        shape = (ctx.heads, ctx.head_dim)
        self.sends = nn.Parameter(torch.empty(shape)) if kind == "gat" else None  # (H, K)
        self.receives = nn.Parameter(torch.empty(shape)) if kind == "gat" else None
        self.std = (ctx.head_dim / ctx.head_ratio) ** -0.5
        self.scale = 1.0 / ctx.head_ratio  # scores of wider heads stay as large
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Let a node count as much as a neighbour; small vectors of attention."""
        init.zeros("eps")
        init.normal("sends", std=self.std)
        init.normal("receives", std=self.std)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        assert seq.pairs is not None
        joined = seq.pairs[0] == 1  # (B, N, N)
        if self.hidden is not None and self.eps is not None:
            total = x + self.eps * x + joined.to(x.dtype) @ _real(x, seq)  # (B, N, D)
            return self.proj_out(F.relu(self.hidden(total)))
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        joined = joined | itself  # (B, N, N)
        if self.kind == "gcn":
            weight = joined.to(x.dtype)
            scale = weight.sum(-1, keepdim=True).rsqrt()  # (B, N, 1)
            return self.proj_out(scale * (weight @ (scale * _real(x, seq))))
        return self._attend(_real(x, seq), joined)

    def _attend(self, x: Tensor, joined: Tensor) -> Tensor:
        """Attend to neighbours: (B, N, D)."""
        assert self.sends is not None
        assert self.receives is not None
        # The scores of GAT read the mapped nodes, so the output map comes first, and its bias last.
        h = F.linear(x, self.proj_out.weight).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, K)
        scaled = h * self.scale
        sent = (scaled * self.sends[:, None]).sum(-1)  # (B, H, N)
        received = (scaled * self.receives[:, None]).sum(-1)  # (B, H, N)
        scores = F.leaky_relu(received[..., :, None] + sent[..., None, :], SLOPE)  # (B, H, N, N)
        weights = scores.masked_fill(~joined[:, None], float("-inf")).softmax(-1)
        y = (weights @ h).transpose(1, 2).flatten(2)  # (B, N, D)
        if self.proj_out.bias is None:
            return y
        return y + self.proj_out.bias


def _real(x: Tensor, seq: Seq) -> Tensor:
    """Return the tokens with zeros at padding."""
    # No edge leads to padding, but zero times infinity is not zero.
    if seq.valid is None:
        return x
    return x.masked_fill(~seq.valid[..., None], 0.0)
