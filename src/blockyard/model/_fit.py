"""What has to agree between the parts of a model, and between a model and its input."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Context, Head, Position, Seq, TokenMixer
from blockyard.model._prefix import Prefix


def check_parts(ctx: Context, prefix: Prefix, position: Position, mixers: list[TokenMixer], head: Head) -> None:
    """Raises ValueError where a part would be ignored or could not work."""
    name = type(position).__name__
    if ctx.tokens.axes not in position.axes:
        raise ValueError(f"position {name} does not work on {ctx.tokens.axes} coordinate axes; use position=none")
    for mixer in mixers:
        for hook in sorted(position.acts_on):
            port = position.needs.get(hook)
            if port is not None and port not in mixer.traits.ports:
                raise ValueError(
                    f"position {name} acts on {port}, which token_mixer {type(mixer).__name__} does not have; "
                    "use position=none, a position that is added to tokens, or token_mixer=attention"
                )
    if prefix.class_token and ctx.causal:
        raise ValueError(
            "model.prefix.class_token=true: the class token stands first, so in a causal model it sees "
            "nothing; use model.prefix.class_token=false"
        )
    if head.needs_class_token and not prefix.class_token:
        raise ValueError(
            f"head {type(head).__name__} reads the class token, the model has none; use "
            "model.prefix.class_token=true or head=mean_pool"
        )


def check_call(ctx: Context, prefix: Prefix, lengths: Tensor | None, segment: Tensor | None, cached: bool) -> None:
    """Raises ValueError where the arguments of a forward pass contradict each other."""
    if segment is not None and prefix and not ctx.causal:
        raise ValueError(
            "packed rows and model.prefix in a bidirectional model: class and register tokens would carry one "
            "document into another; use rows of one document, or no prefix"
        )
    if cached and (lengths is not None or segment is not None):
        raise ValueError("a cache takes rows of one length and one document; leave lengths and segment out")


def fit_coords(ctx: Context, position: Position, seq: Seq, start: int) -> Tensor:
    """Coordinates for `position.embed`: squeezed onto the grid it knows, where the row is larger.

    Row and table keep their outer edges: place c of n becomes (c + 1/2) side / n - 1/2. Raises
    ValueError where that would be wrong, since a place then depends on what comes later in the row.
    """
    known, given = ctx.tokens.grid, seq.grid
    if len(known) == 1:
        given = (start + len(seq),)
    # Part of a grid: only the embedder knows its extent, and coordinates are those of the full grid.
    if not position.bounded or given is None or all(n <= side for n, side in zip(given, known, strict=True)):
        return seq.coords
    if ctx.causal or seq.valid is not None or seq.segment is not None:
        raise ValueError(
            f"position {type(position).__name__} knows {_sides(known)} places and the row has {_sides(given)}; "
            "use shorter rows, or a position that knows no end (rope, alibi, sinusoidal)"
        )
    shrink = torch.tensor([min(1.0, side / n) for side, n in zip(known, given, strict=True)], device=seq.coords.device)
    return (seq.coords + 0.5) * shrink - 0.5  # (B|1, N, A)


def _sides(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))
