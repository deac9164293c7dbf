"""How tokens get their positions: the two parts that every model builds first, and the one way to use them.

embedder --> x (B, N, D - width) --(position.embed)--> (B, N, D)      width: channels of a concatenated code
                 seq.coords  -----------^------ position.rotate and position.bias read them in every block
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.contracts import UNREACHABLE, Context, Embedder, Parts, Position, Seq, TokenMixer


def embedder_and_position(ctx: Context, parts: Parts) -> tuple[Embedder, Position]:
    """Build the embedder and the position scheme of one sequence; together they give a stream D wide.

    Raises ValueError where a concatenated code would leave no channel to the tokens.
    """
    position = parts.position(ctx)
    if position.width >= ctx.dim:
        raise ValueError(
            f"position {type(position).__name__} takes {position.width} of model.dim={ctx.dim} channels, which leaves "
            "none for the tokens; use a larger model.dim or position.combine=add"
        )
    return parts.embedder(replace(ctx, dim=ctx.dim - position.width)), position


def check_key_widths(ctx: Context, position: Position, mixers: Iterable[TokenMixer]) -> None:
    """Raises ValueError where the scheme cannot rotate the queries and keys of a mixer, because of their width."""
    if "rotate" not in position.acts_on:
        return
    rotated = (mixer for mixer in mixers if "queries_and_keys" in mixer.traits.ports)
    for width in dict.fromkeys(mixer.key_width or ctx.head_dim for mixer in rotated):
        position.check_width(width)


def add_position(ctx: Context, position: Position, x: Tensor, seq: Seq, start: int = 0) -> Tensor:
    """Apply `position.embed` to tokens x (B, N, D - width) -> (B, N, D), and put the scheme into `seq` for the blocks.

    start: index of the first token, for a sequence that is decoded in several calls
    Raises ValueError where the scheme does not reach as far as the sequence.
    """
    coords = scaled_coords(ctx, position, seq, start)
    seq.position = position
    if position.acts_on - {"embed"}:
        seq.coords = coords
    x = position.embed(x, coords)  # (B, N, D)
    if "embed_neighbours" in position.acts_on:
        x = position.embed_neighbours(x, seq)
    if not position.acts_on & position.of_pairs:
        return x
    if seq.pairs is None:
        raise ValueError(
            f"position {type(position).__name__} reads facts of pairs of tokens and there are none; call the model "
            "with pairs=, or use position=none"
        )
    return position.embed_pairs(x, seq.pairs)  # (B, N, D)


def set_pairs(seq: Seq, pairs: Tensor | None) -> None:
    """Put the facts of pairs (B, N, N, P) into `seq`; those of padding and of two segments say "no path"."""
    if pairs is None:
        return
    facts = pairs.movedim(-1, 0).to(torch.int64, memory_format=torch.contiguous_format)  # (P, B, N, N)
    together = None if seq.valid is None else seq.valid[:, :, None] & seq.valid[:, None]  # (B, N, N)
    if seq.segment is not None:
        same = seq.segment[:, :, None] == seq.segment[:, None]
        together = same if together is None else together & same
    if together is not None:
        nothing = torch.zeros(len(facts), dtype=torch.int64, device=facts.device)
        nothing[0] = UNREACHABLE
        facts = torch.where(together, facts, nothing[:, None, None, None])
    seq.pairs = facts.unbind(0)


def scaled_coords(ctx: Context, position: Position, seq: Seq, start: int) -> Tensor:
    """Returns the coordinates that the scheme reads: a bounded one gets larger inputs scaled down to its grid.

    Input and table keep their outer edges: coordinate c of n becomes (c + 1/2) side / n - 1/2. Raises ValueError
    where that would be wrong, because the coordinate of a token would then depend on how many tokens follow it.
    A constant factor (`position.length_scale`) is right there too.
    """
    coords, trained_grid, actual = seq.coords, ctx.tokens.grid, seq.grid
    if not position.bounded:
        return coords
    if position.length_scale != 1:
        coords = (coords + 0.5) / position.length_scale - 0.5
    if len(trained_grid) == 1:
        actual = (start + len(seq),)
    # Part of a grid: only the embedder has its extent, and coordinates are those of the full grid.
    if actual is None or all(n <= side * position.length_scale for n, side in zip(actual, trained_grid, strict=True)):
        return coords
    if ctx.causal or seq.valid is not None or seq.segment is not None:
        raise ValueError(
            f"position {type(position).__name__} supports {_sides(trained_grid)} positions and the sequence has "
            f"{_sides(actual)}; use shorter sequences, or an unbounded position (rope, alibi, sinusoidal)"
        )
    shrink = torch.tensor(
        [min(1.0, side / n) for side, n in zip(trained_grid, actual, strict=True)], device=coords.device
    )
    return (seq.coords + 0.5) * shrink - 0.5  # (B|1, N, A)


def _sides(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))
