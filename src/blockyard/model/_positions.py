"""How tokens get their places: the parts that every model shape builds first, and the one way to use them.

embedder --> x (B, N, D - width) --(position.embed)--> (B, N, D)      width: what a concatenated code takes
                 seq.coords  -----------^------ position.rotate and position.bias see them in every block
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.contracts import Context, Embedder, Parts, Position, Seq, TokenMixer


def placing_parts(ctx: Context, parts: Parts) -> tuple[Embedder, Position]:
    """The embedder and the position scheme of one row of tokens; together they give a stream D wide.

    Raises ValueError where a concatenated code would leave no channel to the tokens.
    """
    position = parts.position(ctx)
    if position.width >= ctx.dim:
        raise ValueError(
            f"position {type(position).__name__} takes {position.width} of model.dim={ctx.dim} channels, which leaves "
            "none to the tokens; use a larger model.dim or position.combine=add"
        )
    return parts.embedder(replace(ctx, dim=ctx.dim - position.width)), position


def check_turned(ctx: Context, position: Position, mixers: Iterable[TokenMixer]) -> None:
    """Raises ValueError where the scheme cannot rotate queries and keys as wide as some mixer's."""
    if "rotate" not in position.acts_on:
        return
    turned = (mixer for mixer in mixers if "queries_and_keys" in mixer.traits.ports)
    for width in dict.fromkeys(mixer.key_width or ctx.head_dim for mixer in turned):
        position.check_width(width)


def place(ctx: Context, position: Position, x: Tensor, seq: Seq, start: int = 0) -> Tensor:
    """Tokens (B, N, D - width) with their code -> (B, N, D); from here on `seq` carries the scheme.

    start: index of the first token, for a stream that is decoded piece by piece
    Raises ValueError where the scheme does not know the places.
    """
    coords = fit_coords(ctx, position, seq, start)
    seq.position = position
    if position.acts_on - {"embed"}:
        seq.coords = coords
    return position.embed(x, coords)  # (B, N, D)


def fit_coords(ctx: Context, position: Position, seq: Seq, start: int) -> Tensor:
    """Coordinates as a bounded scheme reads them: squeezed onto the grid it knows, where the row is larger.

    Row and table keep their outer edges: place c of n becomes (c + 1/2) side / n - 1/2. Raises
    ValueError where that would be wrong, since a place then depends on what comes later in the row;
    a factor that does not depend on the row (`position.length_scale`) is right there too.
    """
    coords, known, given = seq.coords, ctx.tokens.grid, seq.grid
    if not position.bounded:
        return coords
    if position.length_scale != 1:
        coords = (coords + 0.5) / position.length_scale - 0.5
    if len(known) == 1:
        given = (start + len(seq),)
    # Part of a grid: only the embedder knows its extent, and coordinates are those of the full grid.
    if given is None or all(n <= side * position.length_scale for n, side in zip(given, known, strict=True)):
        return coords
    if ctx.causal or seq.valid is not None or seq.segment is not None:
        raise ValueError(
            f"position {type(position).__name__} knows {_sides(known)} places and the row has {_sides(given)}; "
            "use shorter rows, or a position that knows no end (rope, alibi, sinusoidal)"
        )
    shrink = torch.tensor([min(1.0, side / n) for side, n in zip(known, given, strict=True)], device=coords.device)
    return (seq.coords + 0.5) * shrink - 0.5  # (B|1, N, A)


def _sides(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))
