"""From the inputs of a sequence to its tokens: embedder, mask token and position scheme, the same in every model.

embedder --> x (B, N, D - width) --> mask token --(position.embed)--> (B, N, D)     width of a concatenated code
                 seq.coords --------------------------^---- position.rotate and position.bias read them in every block

The mask token is a learned vector in place of tokens that are hidden from the model. It is put there before positions
are added, so that a hidden token still has its position.

Source: for the mask token Devlin et al. 2019, BERT (arXiv 1810.04805), section 3.1; for image patches Xie et al. 2022,
    SimMIM (arXiv 2111.09886), section 3.2
Reference: transformers ViTMAEDecoder.mask_token, ViTEmbeddings.mask_token
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import UNREACHABLE, Context, Embedder, Inputs, Parts, Position, Role, Seq, TokenMixer
from blockyard.model._record import Record, Recorded, note
from blockyard.ops.autocast import as_stream
from blockyard.weight_init import Init


class Embeds(Recorded):
    """A model, or a part of one, that embeds a sequence: it holds the embedder, the position scheme and the mask token.

    embedder: the embedder of another part, to be shared. It stays a part of the other one.
    """

    def __init__(self, ctx: Context, parts: Parts, *, embedder: Embedder | None = None) -> None:
        super().__init__()
        self.ctx = ctx
        if embedder is None:
            self.embedder, self.position = embedder_and_position(ctx, parts)
        else:
            self.position = parts.position(ctx)
        self.mask_token = mask_token(ctx, self.position.width)

    def embed_tokens(
        self, inputs: Inputs, record: Record | None = None, *, start: int = 0, embedder: Embedder | None = None
    ) -> tuple[Tensor, Seq]:
        """Return the tokens of the inputs with their positions (B, N, D), and their facts.

        start: index of the first token, for a sequence that is decoded in several calls
        embedder: the shared embedder, for a part without one
        """
        embed = self.embedder if embedder is None else embedder
        x, seq = embed(inputs.inputs, inputs.lengths, inputs.segment, start)  # (B, N, D - position.width)
        set_pairs(seq, inputs.pairs)
        x = hide(self.mask_token, as_stream(x), seq, inputs.hidden)
        note(record, "embedded", x)
        x = add_position(self.ctx, self.position, x, seq, start)  # (B, N, D)
        note(record, "placed", x)
        return x, seq


class MaskToken(nn.Module):
    """One vector for all hidden tokens. ctx: the Context of the embedder, since it replaces vectors of the embedder."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vector"})  # as class and register tokens
    roles: ClassVar[dict[str, Role]] = {"vector": "input"}

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(1, ctx.dim))

    def init_weights(self, init: Init) -> None:
        """Draw a normal vector."""
        init.normal("vector")

    def forward(self, x: Tensor, seq: Seq, hidden: Tensor) -> Tensor:
        """x (B, N, D), hidden (B, N) bool -> (B, N, D). Sets `seq.features` of hidden tokens to zero.

        Raises ValueError for another number of tokens.
        """
        if hidden.shape != x.shape[:2]:
            raise ValueError(f"hidden of shape {tuple(hidden.shape)}: the model has tokens {tuple(x.shape[:2])}")
        if seq.features is not None:
            seq.features = seq.features.masked_fill(hidden[..., None], 0.0)
        return torch.where(hidden[..., None], self.vector.to(x.dtype), x)


def mask_token(ctx: Context, width: int) -> MaskToken | None:
    """Return the mask token, or None if the objective hides no tokens.

    width: channels that the position scheme appends
    """
    if not ctx.tokens.hides:
        return None
    return MaskToken(replace(ctx, dim=ctx.dim - width, stream=ctx.dim))


def hide(token: MaskToken | None, x: Tensor, seq: Seq, hidden: Tensor | None) -> Tensor:
    """Return x (B, N, D) with the mask token in place of tokens that are `hidden` (B, N). `seq` keeps x and `hidden`.

    Raises ValueError for hidden tokens in a model without a mask token.
    """
    if token is None and hidden is not None:
        raise ValueError("hidden tokens: this model has no mask token; use an objective that hides tokens")
    if token is None:
        return x
    seq.embedded = x
    seq.hidden = hidden
    if hidden is None:
        return x
    if seq.ids is not None:  # mixers that look ids up must not see hidden ones
        seq.ids = seq.ids.masked_fill(hidden, -1)
    return token(x, seq, hidden)


def embedder_and_position(ctx: Context, parts: Parts) -> tuple[Embedder, Position]:
    """Build the embedder and the position scheme of one sequence. Together they give a stream of D channels.

    Raises ValueError if a concatenated code would leave no channel to the tokens.
    """
    position = parts.position(ctx)
    if position.width >= ctx.dim:
        raise ValueError(
            f"position {type(position).__name__} takes {position.width} of model.dim={ctx.dim} channels, which leaves "
            "none for the tokens; use a larger model.dim or position.combine=add"
        )
    return parts.embedder(replace(ctx, dim=ctx.dim - position.width, stream=ctx.dim)), position


def check_key_widths(ctx: Context, position: Position, mixers: Iterable[TokenMixer]) -> None:
    """Raise ValueError if the width of queries and keys of a mixer does not allow the scheme to rotate them."""
    if "rotate" not in position.acts_on:
        return
    inner = (part for mixer in mixers for part in mixer.modules() if isinstance(part, TokenMixer) and not part.holds)
    rotated = [mixer for mixer in inner if "queries_and_keys" in mixer.traits.ports]
    options = {mixer.key_width or ctx.head_dim: mixer.key_option for mixer in rotated}
    for width, option in options.items():
        try:
            position.check_width(width)
        except ValueError as error:
            raise ValueError(str(error).replace("token_mixer.key_dim", option)) from error


def add_position(ctx: Context, position: Position, x: Tensor, seq: Seq, start: int = 0) -> Tensor:
    """Apply `position.embed` to tokens x (B, N, D - width) -> (B, N, D), and put the scheme into `seq` for the blocks.

    start: index of the first token, for a sequence that is decoded in several calls
    Raises ValueError if the sequence is longer than the scheme reaches.
    """
    coords = scaled_coords(ctx, position, seq, start)
    if position.varies and position.training:
        seq.unvaried = coords
        coords = position.vary(coords)
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
            f"position {type(position).__name__} reads facts of pairs of tokens and there are none; pass "
            "Inputs(..., pairs=...), or use position=none"
        )
    return position.embed_pairs(x, seq.pairs)  # (B, N, D)


def set_pairs(seq: Seq, pairs: Tensor | None) -> None:
    """Put the facts of pairs (B, N, N, P) into `seq`, as "no path" for padding and between two segments."""
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
    """Return the coordinates that the scheme reads, for a bounded scheme scaled down to its grid.

    Input and table keep their outer edges: coordinate c of n becomes (c + 1/2) side / n - 1/2. Raises ValueError for a
    longer causal, padded or packed sequence.
    """
    coords = seq.coords
    if not position.bounded:
        return coords
    trained_grid = ctx.tokens.grid
    actual = seq.grid
    if position.length_scale != 1:
        coords = (coords + 0.5) / position.length_scale - 0.5
    if len(trained_grid) == 1:
        actual = (start + len(seq),)
    # Part of a grid: only the embedder has its extent, and coordinates are those of the full grid.
    if actual is None or all(n <= side * position.length_scale for n, side in zip(actual, trained_grid, strict=True)):
        return coords
    # Here the coordinate of a token would depend on the number of tokens that follow it. A constant factor
    # (`position.length_scale`) does not.
    if ctx.causal or seq.valid is not None or seq.segment is not None:
        raise ValueError(
            f"position {type(position).__name__} supports {_sides(trained_grid)} positions and the sequence has "
            f"{_sides(actual)}; use shorter sequences, or an unbounded position (rope, alibi, sinusoidal)"
        )
    factors = [min(1.0, side / n) for side, n in zip(trained_grid, actual, strict=True)]
    shrink = torch.tensor(factors, device=coords.device)  # (A,)
    return (seq.coords + 0.5) * shrink - 0.5  # (B|1, N, A)


def _sides(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))
