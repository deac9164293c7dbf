"""Modules: built from a Context, then options. Embedder, position, mixers, norm, block, head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from blockyard.contracts.specs import Context, Memory, Seq


@dataclass(frozen=True)
class Traits:
    """What a token mixer can do. Each is tested for every choice that declares it.

    causal: it can keep the future from past outputs; bidirectional: it can run without
    any_length: it takes rows of any number of tokens; otherwise exactly `tokens.max_len` + prefix
    padding: a padded row gives what the row gives alone
    packing: several segments in a row give what each gives alone
    cross: it can take `memory`
    prefix: class and register tokens take part
    equivariant: without positions, permuting tokens permutes outputs
    axes: the numbers of coordinate axes it can work on; 0 is a set of tokens without places
    ports: what it offers to a position scheme: "queries_and_keys", "scores"
    reads_features: it mixes by `Seq.features`, which the tokenizer must give
    """

    causal: bool = False
    bidirectional: bool = True
    any_length: bool = True
    padding: bool = False
    packing: bool = False
    cross: bool = False
    prefix: bool = True
    equivariant: bool = False
    axes: frozenset[int] = frozenset({0, 1, 2})
    ports: frozenset[str] = frozenset()
    reads_features: bool = False


class Embedder(nn.Module):
    """Inputs to vectors: forward(inputs, lengths, segment, start) -> x (B, N, D), Seq.

    `start` is the index of the first token, for a stream that is decoded piece by piece.
    `table` is the (V, D) matrix of symbol vectors where there is one; a tied head shares it. `scale` is what
    its vectors are multiplied by as they enter the stream, which the head does not share.
    """

    table: nn.Parameter | None
    scale: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        # Not a class attribute: torch refuses a parameter where an attribute of that name exists.
        self.register_parameter("table", None)


class Position(nn.Module):
    """Where tokens lie. Each hook is the identity unless overridden and named in `acts_on`.

    Hooks are functions of coordinates, never of lengths. They never see prefix tokens.

    width: channels that `embed` appends; the embedder is then built for D - width, the stream stays D wide
    length_scale: how many times longer than in training the rows of an evaluation are, set by it where the scheme
        `scales_length`; the model divides the coordinates of a bounded scheme by it, any other reads it itself
    """

    acts_on: ClassVar[frozenset[str]] = frozenset()  # of "embed", "rotate", "bias"
    axes: ClassVar[frozenset[int]] = frozenset({1, 2})
    relative: ClassVar[bool] = False  # moving all coordinates by one vector changes nothing
    bounded: ClassVar[bool] = False  # knows no coordinate beyond `tokens.grid`
    length_advice: ClassVar[str] = (
        ""  # advice on the option with which a bounded one reads longer rows, where it has one
    )
    needs_causal: ClassVar[bool] = False  # it is for models that look back only

    width: int = 0
    length_scale: float = 1.0

    @property
    def scales_length(self) -> bool:
        """Whether it reads longer rows than those of training as if they were shorter, by a fixed factor."""
        return False

    # The port of the mixer that each hook needs; `embed` acts before the blocks and needs none.
    needs: ClassVar[dict[str, str]] = {"rotate": "queries_and_keys", "bias": "scores"}

    @classmethod
    def concatenates(cls, options: dict[str, Any]) -> bool:
        """Whether `width` is not 0 under these options."""
        return False

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D - width), coords (B|1, N, A) -> (B, N, D)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k of the same shapes.

        K is the `key_width` of the mixer, which may differ from layer to layer.
        """
        return q, k

    def check_width(self, width: int) -> None:
        """Raises ValueError where queries and keys of this K cannot be rotated; asked before anything runs."""

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """What is added to the scores, elementwise over broadcast shapes.

        head: int64 of any shape; q_coords, k_coords: one tensor for each of the A axes. All shapes
        broadcast against each other, and the result has the broadcast shape. Written so that the
        same lines give a whole (B|1, H, N, M) table and one entry inside a FlexAttention score
        function, where every tensor is a single number: no matmul, no reduction, no reshape.
        """
        raise AssertionError("only called where acts_on names 'bias'")


class TokenMixer(nn.Module):
    """Mixes tokens of one row: forward(x, seq, cache=None, memory=None) -> (B, N, D).

    One that is `empty` adds nothing: a block leaves its branch out, and the norm of it.

    A mixer that can decode token by token has `init_cache(batch_size) -> cache`; its forward then
    appends to the cache it is given. Every cache, of keys and values or of a state, has `bytes`, what it
    fills now, and `reorder(order)`, after which row i of the batch is what row order[i] was; order (B',)
    int64 may repeat rows and leave some out (a beam search does both).

    A mixer that can share matmuls in a parallel block is `Projected`.

    Where an option changes the traits, `traits_for` says so before anything is built, and the
    constructor sets `self.traits` to the same before it checks its Context.
    """

    traits: Traits = Traits()
    empty: ClassVar[bool] = False
    hidden_multiple: ClassVar[int] = 1  # its `expansion`, where it has one, makes hidden channels in multiples of it
    key_width: int | None = None  # of the queries and keys that positions rotate; None: D / H

    @classmethod
    def traits_for(cls, options: dict[str, Any]) -> Traits:
        """The traits under these options; override where an option changes them."""
        return cls.traits

    @classmethod
    def has(cls, method: str, options: dict[str, Any]) -> bool:
        """Whether what is built with these options has a method that not every mixer has: init_cache, mix."""
        return callable(getattr(cls, method, None))

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Called with a row before it enters the blocks: put into `seq.memo` what layers can share.

        Not called for pieces that follow a cache. An answer may not depend on it.
        """

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        raise AssertionError("abstract")


class ChannelMixer(nn.Module):
    """Mixes the channels of each token alone: forward(x) -> (B, N, D).

    One that is `empty` adds nothing: a block leaves its branch out, and the norm of it.
    """

    empty: ClassVar[bool] = False
    hidden_multiple: ClassVar[int] = 1  # as of a token mixer

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        raise AssertionError("abstract")


class Norm(nn.Module):
    """Any module of one Context is a norm, and takes each token alone, unless it is this and declares more.

    across_tokens: while training, its statistics are taken over the tokens of all rows together
    """

    across_tokens: ClassVar[bool] = False


@runtime_checkable
class NoWeightDecay(Protocol):
    """A module some of whose own parameters are no maps, although they have two dimensions or more.

    no_weight_decay: their names, such as a bias for each token; weight decay leaves them alone, and Muon too.
        What has one dimension, and the tables of embedders and positions, need not be named
    """

    no_weight_decay: ClassVar[frozenset[str]]


class Projected(Protocol):
    """A mixer that is projection, something without big matmuls, projection.

    forward(x, ...) == proj_out(mix(proj_in(x), ...)); a parallel block concatenates the
    projections of two such mixers. `mix` takes (h, seq, cache) in a token mixer, (h) in a
    channel mixer.
    """

    proj_in: nn.Linear
    proj_out: nn.Linear
    mix: Callable[..., Tensor]


class Block(nn.Module):
    """Wires a token mixer, a channel mixer and norms: forward(x, seq, cache, memory) -> (B, N, D).

    Constructor: (ctx, token_mixer, channel_mixer, norm, *, options), the three being factories.
    """

    needs_final_norm: ClassVar[bool] = True
    empty: ClassVar[bool] = False  # it is no block: for a model that stacks none
    single: ClassVar[bool] = False  # has a place for a token mixer only: the channel mixer must be empty

    def add_cross(
        self, ctx: Context, mixer: Callable[[Context], TokenMixer], norm: Callable[[Context], nn.Module]
    ) -> None:
        """A further branch, which alone reads the `memory` from now on; without it the token mixer does.

        Raises ValueError where the block has no place for one.
        """
        raise ValueError(f"block {type(self).__name__} has no place for cross-attention; use block=pre_norm")

    @classmethod
    def fuses(cls, options: dict[str, Any]) -> bool:
        """Whether both mixers must be `Projected` under these options."""
        return False


class Head(nn.Module):
    """From vectors to predictions: forward(x, seq) -> (B, V) or (B, N, V)."""

    gives: ClassVar[str]  # "token" or "sequence"
    needs_class_token: ClassVar[bool] = False

    @classmethod
    def ties(cls, options: dict[str, Any]) -> bool:
        """Whether it shares the embedder's table under these options."""
        return False

    def tie(self, embedder: Embedder) -> None:
        """Share what is to be shared with `embedder`; called once, when the model is built."""


def iter_blocks(model: nn.Module) -> Iterator[Block]:
    """Every block of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Block))
