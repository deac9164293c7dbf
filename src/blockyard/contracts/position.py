"""Position: how a model encodes the positions of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from blockyard.contracts.batch import Seq


class Position(nn.Module):
    """A position scheme. Each hook is the identity unless it is overridden and named in `acts_on`.

    Hooks are functions of coordinates, of facts of pairs or of neighbouring tokens, never of lengths, and never see
    prefix tokens.

    width: channels that `embed` appends; the embedder then has D - width channels, and the stream is D wide
    length_scale: how many times longer than in training the sequences of an evaluation are, which sets it if the
        scheme `scales_length`. The model divides the coordinates of a bounded scheme by it; another scheme reads
        it itself
    """

    # Of "embed", "rotate", "bias", "embed_pairs", "relate", "embed_neighbours".
    acts_on: ClassVar[frozenset[str]] = frozenset()
    of_pairs: ClassVar[frozenset[str]] = frozenset({"embed_pairs", "relate"})  # the hooks that read facts of pairs
    of_later: ClassVar[frozenset[str]] = of_pairs | {"embed_neighbours"}  # the hooks that later tokens change
    # The hooks that act before the first block; others need a port of the mixers.
    before_blocks: ClassVar[frozenset[str]] = frozenset({"embed", "embed_pairs", "embed_neighbours"})
    axes: ClassVar[frozenset[int]] = frozenset({1, 2})
    relative: ClassVar[bool] = False  # adding one vector to all coordinates changes nothing
    bounded: ClassVar[bool] = False  # accepts no coordinate beyond `tokens.grid`
    length_advice: ClassVar[str] = ""  # the option with which a bounded scheme takes longer sequences, if it has one
    needs_causal: ClassVar[bool] = False  # for causal models only

    width: int = 0
    length_scale: float = 1.0

    # The port of the mixer that each hook needs.
    needs: ClassVar[dict[str, str]] = {"rotate": "queries_and_keys", "bias": "scores", "relate": "scores"}

    @property
    def scales_length(self) -> bool:
        """Whether it takes sequences longer than those of training by dividing coordinates by a constant factor."""
        return False

    @classmethod
    def concatenates(cls, options: dict[str, Any]) -> bool:
        """Whether `width` is not 0 under these options."""
        return False

    def resized(self, name: str, value: Tensor, grid: tuple[int, ...] | None) -> Tensor | None:
        """Returns a parameter of this scheme over another grid of tokens as it would be over this one's.

        name: of the parameter; grid: of the tokens that `value` was learned on, None where it is not known
        None where the grids are equal or the scheme cannot do it. A value on the meta device gives the shape.
        """
        return None

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D - width), coords (B|1, N, A) -> (B, N, D)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k of the same shapes.

        K is the `key_width` of the mixer, which may differ from layer to layer.
        """
        return q, k

    def check_width(self, width: int) -> None:
        """Raises ValueError if queries and keys of this K cannot be rotated. Called before any forward pass."""

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Returns what is added to the scores, elementwise over broadcast shapes.

        head: int64 of any shape; q_coords, k_coords: one tensor for each of the A axes. All shapes
        broadcast against each other, and the result has the broadcast shape. The same lines compute
        a whole (B|1, H, N, M) table and one entry inside a FlexAttention score function, where every
        tensor is a scalar: use no matmul, no reduction and no reshape.
        """
        raise AssertionError("only called where acts_on names 'bias'")

    def embed_pairs(self, x: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
        """x (B, N, D), `Seq.pairs` P x (B, N, N) -> (B, N, D)."""
        return x

    def embed_neighbours(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, N, D); padding and tokens of other segments must not matter."""
        return x

    def relate(self, head: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
        """Returns what is added to the scores, as `bias` does, from the facts of each pair of query and key.

        head: int64 of any shape; pairs: one int64 tensor for each fact of `Seq.pairs`. Elementwise over shapes that
        broadcast, under the rules of `bias`.
        """
        raise AssertionError("only called where acts_on names 'relate'")

    def at_prefix(self, head: Tensor) -> Tensor:
        """Returns what `relate` gives for pairs with a prefix token: zero. head: int64 of any shape."""
        return torch.zeros_like(head, dtype=torch.get_default_dtype())
