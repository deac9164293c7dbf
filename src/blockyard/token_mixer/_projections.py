"""Queries, keys and values by maps of their own: linear ones, anything else in front of them, or none at all.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.2.2, for three linear maps; without
    any of them Ramsauer et al. 2020, Hopfield Networks is All You Need (arXiv 2008.02217), eq. 3; He and Hofmann 2023,
    Simplifying Transformer Blocks (arXiv 2311.01906), section 4.2, leave out the maps of values and output
Reference: torch.nn.MultiheadAttention with kdim and vdim, which has three matrices
Equation: q = W_Q f_Q(x), k = W_K f_K(x), v = W_V f_V(x); without a map f(x) = x, and without a
    projection W = 1
Cost: that of the maps; three products of a third of the width in place of one

    fused                          fused=false            project=[output]       map=M, project=[output]

    x --> W --> q | k | v          x -+-> W_Q --> q       x -+--------> q        x -+-> M_Q --> q
                                      +-> W_K --> k          +--------> k           +-> M_K --> k
                                      +-> W_V --> v          +--------> v           +-> M_V --> v
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import ChannelMixer, Context, Seq
from blockyard.ops.linear import linear

Projection = Literal["queries", "keys", "values", "output"]
ALL: tuple[Projection, ...] = ("queries", "keys", "values", "output")
INPUTS = ALL[:3]
TokenMap = Callable[[Context], ChannelMixer]


class Projections(nn.Module):
    """The inputs of attention as separate maps: forward(x, seq) -> queries, keys, values and gates.

    widths: widths of queries, keys, values and gates; a part of width 0 has no map and is empty
    project: names of the parts of `INPUTS` with a linear map; gates always have one
    token_map: the factory of a map in front of queries, keys and values, one for each; None leaves the token itself
    """

    def __init__(
        self,
        ctx: Context,
        widths: Sequence[int],
        *,
        bias: bool,
        project: Sequence[str],
        token_map: TokenMap | None,
    ) -> None:
        super().__init__()
        # A ModuleDict has methods `keys` and `values`, so no part of it can have these names.
        self.names = ["query", "key", "value", *(f"further_{index}" for index in range(len(widths) - 3))]
        self.widths = list(widths)
        self.dim = ctx.dim
        plain = replace(ctx, gain=1.0)  # the output is no branch of the stream: it starts as large as the token
        self.maps = nn.ModuleDict()
        self.linear = nn.ModuleDict()
        for index, (name, width) in enumerate(zip(self.names, widths, strict=True)):
            if width and index < len(INPUTS) and token_map is not None:
                self.maps[name] = token_map(plain)
            if width and (index >= len(INPUTS) or INPUTS[index] in project):
                self.linear[name] = linear(ctx, ctx.dim, width, bias=bias, content=None if index < 2 else 0)

    def forward(self, x: Tensor, seq: Seq) -> list[Tensor]:
        """x (B, N, D) -> a tensor (B, N, width) for each width."""
        return [self.part(index, x, seq) for index in range(len(self.widths))]

    def part(self, index: int, x: Tensor, seq: Seq) -> Tensor:
        """Return one part: (B, N, D) -> (B, N, width)."""
        name = self.names[index]
        if not self.widths[index]:
            return x[..., :0]
        if name in self.maps:
            x = self.maps[name](x, seq)
        return self.linear[name](x) if name in self.linear else x

    def matrices(self) -> list[Tensor]:
        """Return the linear map (width, D) of each part, the identity without one; `token_map` is not in it."""
        matrices = []
        for name, width in zip(self.names, self.widths, strict=True):
            if name in self.linear:
                weight: Any = self.linear[name].weight
                matrices.append(weight.detach())
            else:
                matrices.append(torch.eye(self.dim)[:width])
        return matrices


def one_product(project: Sequence[str] = ALL, fused: bool = True, token_map: Any = None) -> bool:
    """Return whether queries, keys and values are one linear map of the token under these options of attention."""
    return fused and token_map is None and {*INPUTS} <= {*project}


def check_projections(
    ctx: Context,
    widths: dict[Projection, int],
    *,
    project: Sequence[Projection],
    fused: bool,
    token_map: TokenMap | None,
    tied_kv: bool,
    bias: bool,
) -> None:
    """Raise ValueError if an option has no effect, or a part without a projection has another width than x.

    widths: the width of each part, 0 if it is computed by another layer or part
    """
    listed = f"token_mixer.project=[{','.join(project)}]"
    if list(project) != [name for name in ALL if name in project]:
        raise ValueError(f"{listed}: list each of {', '.join(ALL)} at most once, in this order")
    apart = token_map is not None or not {*INPUTS} <= {*project}
    if not fused and apart:
        reason = listed if token_map is None else "map"
        raise ValueError(
            f"token_mixer.fused=false: with {reason} they are apart already, so it has no effect; leave fused out"
        )
    if tied_kv and "values" not in project:
        raise ValueError(f"{listed}: with tied_kv=true values are the keys, without a projection; list values")
    for part in ALL:
        width = widths[part]
        if part not in project and width not in (0, ctx.dim):
            raise ValueError(
                f"{listed}: {part} without a projection have the {ctx.dim} channels of model.dim, and the heads need "
                f"{width}; list {part}, or leave num_kv_heads, key_dim, value_dim and output_dim at null"
            )
    if bias and not project:
        raise ValueError(
            f"{listed} token_mixer.bias=true: no projection is left that could have a bias; use bias=false"
        )
    if token_map is not None:
        _check_map(token_map)


def _check_map(token_map: TokenMap) -> None:
    """Raise ValueError for a map that is empty or mixes tokens."""
    node: Any = token_map
    if node.func.empty:
        raise ValueError(f"token_mixer.map: {node.func.__name__} maps nothing; use null")
    if node.func.mixes_tokens(node.keywords):
        raise ValueError(
            f"token_mixer.map: {node.func.__name__} with these options mixes tokens; use a map of each token alone, "
            "such as {_target_: blockyard.channel_mixer.mlp.MLP, _partial_: true}"
        )
