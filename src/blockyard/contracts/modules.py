"""Modules: built from a Context, then options. Embedder, token and channel mixers, norm, block, head.

A token mixer declares its abilities in `Traits`; a module with a loss of its own is `HasAuxiliary`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from blockyard.contracts.batch import Memory, Position, Seq
from blockyard.contracts.option_types import ChoiceOptions
from blockyard.contracts.specs import Context


@dataclass(frozen=True)
class Traits:
    """The abilities of a token mixer. Every trait is tested for every choice that declares it.

    causal: it can run so that no output depends on later tokens; bidirectional: it can run without this limit
    any_length: it takes any number of tokens; otherwise exactly `tokens.max_len` + prefix
    padding: padding does not change the outputs of real tokens
    packing: several segments in one sequence have the same outputs as each alone
    cross: it can take a `memory`
    prefix: it can mix class and register tokens
    strict: if it is causal, no output depends on the token at its own position either; a decoder with such a first
        layer, and without a residual, predicts a token at its own position
    equivariant: without positions, permuting tokens permutes outputs
    axes: the numbers of coordinate axes that it can take; 0 is a set of tokens without coordinates
    ports: its offers to a position scheme: "queries_and_keys", "scores"
    reads_features: it mixes by `Seq.features`, which the tokenizer must provide
    reads_pairs: it mixes by `Seq.pairs`, which the data must provide
    reads_ids: it reads `Seq.ids`, so that inputs must be token ids
    gives: the names of values that its layers give to later ones (`Seq.give`)
    takes: the names of values that they need from an earlier layer (`Seq.carry`) of another mixer
    """

    causal: bool = False
    bidirectional: bool = True
    any_length: bool = True
    padding: bool = False
    packing: bool = False
    cross: bool = False
    prefix: bool = True
    strict: bool = False
    equivariant: bool = False
    axes: frozenset[int] = frozenset({0, 1, 2})
    ports: frozenset[str] = frozenset()
    reads_features: bool = False
    reads_pairs: bool = False
    reads_ids: bool = False
    gives: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


class Embedder(nn.Module):
    """Inputs to vectors: forward(inputs, lengths, segment, start) -> x (B, N, D), Seq.

    `lengths` count items of the inputs, and `Seq.valid` tokens. x is zero at padding.

    start: the index of the first token, for a sequence that is decoded in several calls
    table: the (V, D) matrix of token vectors, if there is one; a tied head shares it
    scale: the factor on its vectors as they enter the stream; the head does not share it
    """

    table: nn.Parameter | None
    scale: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        # Not a class attribute: torch refuses a parameter where an attribute of that name exists.
        self.register_parameter("table", None)


class TokenMixer(nn.Module):
    """Mixes the tokens of a sequence: forward(x, seq, cache=None, memory=None) -> (B, N, D).

    An `empty` mixer adds nothing: a block leaves out its branch and the norm of the branch.

    A mixer that can decode token by token has `init_cache(batch_size) -> cache`, and its forward appends to
    the cache that it is called with. Every cache, of keys and values or of a state, has `bytes`, its size, and
    `reorder(order)`, which puts the former sequence order[i] at index i of the batch; order (B',) int64 may
    repeat sequences and leave some out, as a beam search does. Speculative decoding takes tokens back: by
    `crop(count)`, which forgets the last ones, or by continuing from a copy that `snapshot()` made before them.

    A mixer that can share matmuls in a parallel block is `Projected`.

    If an option changes the traits, override `traits_for`, which is called before anything is built, and set
    `self.traits` to the same in the constructor before it checks its Context.

    A layer may pass values on to later ones: `seq.give(name, value)` writes a value, `seq.carry[name]` reads it. Givers
    and takers are known when the model is built. `Context.given` tells a constructor the values of earlier layers, and
    the constructor sets:

    gives: the shapes of the values that this layer gives, by name, without batch and tokens: takers must expect them
    takes: the names of the values that it reads; the model is refused if no earlier visit of a block gives them
    must_be_taken: the given values that have no effect unless a later layer takes them; refused if none does
    takes_placed: the taken values that must come from a layer under the same position scheme, such as rotated keys
    """

    traits: Traits = Traits()
    empty: ClassVar[bool] = False
    holds: ClassVar[bool] = False  # a container: token mixers inside it do the work
    by_pairs: ClassVar[bool] = True  # its scores take one bias for each pair of query and key
    fades: str | None = None  # why its outputs shrink with the width, for the checks of scale; None if they do not
    hidden_multiple: ClassVar[int] = 1  # `expansion`, if it is an option, rounds hidden channels to a multiple of it
    key_width: int | None = None  # of the queries and keys that positions rotate; None: D / H
    key_option: ClassVar[str] = "token_mixer.key_dim"  # which sets it
    gives: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    takes: frozenset[str] = frozenset()
    must_be_taken: frozenset[str] = frozenset()
    takes_placed: frozenset[str] = frozenset()

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits under these options; override if an option changes them."""
        return cls.traits

    @classmethod
    def has(cls, method: str, options: ChoiceOptions) -> bool:
        """Return whether the mixer has, under these options, an optional method: init_cache, mix."""
        return callable(getattr(cls, method, None))

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Put values into `seq.memo` that layers can share. Called before a sequence enters the blocks.

        It is not called for tokens that follow a cache, or while compiling. Outputs must not depend on it.
        """

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        raise AssertionError("abstract")


class ChannelMixer(nn.Module):
    """Mixes the channels of each token alone: forward(x, seq=None) -> (B, N, D).

    Blocks pass `seq`, for mixers that need more than x, such as the padding. A class with a `forward` of x alone works
    as well: it is called without `seq`.

    An `empty` mixer adds nothing: a block leaves out its branch and the norm of the branch.

    reads_sequence: in training, the output of a token depends on others of the sequence, such as by a capacity
    """

    empty: ClassVar[bool] = False
    hidden_multiple: ClassVar[int] = 1  # as for a token mixer
    fades: str | None = None  # as for a token mixer
    reads_sequence: bool = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        forward = vars(cls).get("forward")
        if forward is not None and not _takes_seq(forward):
            cls.forward = _without_seq(forward)  # type: ignore[method-assign]

    @classmethod
    def mixes_tokens(cls, options: ChoiceOptions) -> bool:
        """Return whether a token's output depends on other tokens of its sequence under these options.

        Causal models and packed sequences refuse such a mixer.
        """
        return False

    def active_parameters(self) -> int:
        """Return the number of its parameters that one token uses: all, unless it sends tokens to parts of itself."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        raise AssertionError("abstract")


def _takes_seq(forward: Callable[..., Tensor]) -> bool:
    """Return whether a method can be called with x and seq."""
    try:
        inspect.signature(forward).bind("self", "x", "seq")
    except TypeError:
        return False
    return True


def _without_seq(forward: Callable[[Any, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return forward(self, x) as a method that takes `seq` too."""

    @wraps(forward)
    def taking_seq(self: ChannelMixer, x: Tensor, seq: Seq | None = None) -> Tensor:  # noqa: ARG001 a block passes it
        return forward(self, x)

    return taking_seq


class Norm(nn.Module):
    """A norm that declares something. Any module built from a Context can be a norm, of each token alone.

    across_tokens: in training, its statistics are taken over the tokens of all sequences together
    """

    across_tokens: ClassVar[bool] = False


@runtime_checkable
class NoWeightDecay(Protocol):
    """A module with parameters of two or more dimensions that are not linear maps, such as a bias for each token.

    no_weight_decay: their names; weight decay and Muon leave them out. Parameters of one dimension, and the tables
        of embedders and positions, need not be named
    """

    no_weight_decay: ClassVar[frozenset[str]]


class Projected(Protocol):
    """A mixer of the form projection, mixing, projection.

    forward(x, ...) == proj_out(mix(proj_in(x), ...)), and a parallel block can concatenate the
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
    replaces: ClassVar[bool] = False  # what its mixers return takes the place of x
    adds: ClassVar[bool] = True  # forward(x) is x plus what its branches give; False where x is scaled or normalised
    empty: ClassVar[bool] = False  # not a block: for a model without blocks
    single: ClassVar[bool] = False  # takes a token mixer only: the channel mixer must be empty

    def add_cross(
        self, ctx: Context, mixer: Callable[[Context], TokenMixer], norm: Callable[[Context], nn.Module]
    ) -> None:
        """Add a branch that reads the `memory`; without one, the token mixer reads it.

        Raises ValueError if the block cannot have one.
        """
        raise ValueError(f"block {type(self).__name__} cannot have a cross-attention branch; use block=pre_norm")

    @classmethod
    def fuses(cls, options: ChoiceOptions) -> bool:
        """Return whether both mixers must be `Projected` under these options."""
        return False


class Residual(nn.Module):
    """The path of the stream through the blocks: the input of each visit of a block, and the use of its output.

    A model calls `open` once, then `read` and `write` at each visit of `Context.visits`, then `close`. The state is up
    to the choice; `add`, the default, keeps the stream alone. `read` and `write` act on each token alone.

    Constructor: (ctx, *, options).

    empty: it changes nothing about the stream, and so may stand in a model without blocks
    of_additions: it treats the addition of a block to its input separately, and so needs a block that `adds`
    per_visit: it has weights for each visit, so that the number of visits cannot change after training
    """

    empty: ClassVar[bool] = False
    of_additions: ClassVar[bool] = False
    per_visit: ClassVar[bool] = True

    def __init__(self, ctx: Context) -> None:
        super().__init__()

    def open(self, x: Tensor) -> Any:
        """Return the state in front of the first block. x: (B, N, D)."""
        return x

    def read(self, state: Any, visit: int) -> tuple[Tensor, Any]:
        """Return the input (B, N, D) of the block of a visit, and the state for `write`."""
        raise AssertionError("abstract")

    def write(self, state: Any, visit: int, x: Tensor, output: Tensor) -> Any:
        """Return the state after a visit. x: the input of the block (B, N, D); output: of the block (B, N, D)"""
        raise AssertionError("abstract")

    def close(self, state: Any) -> Tensor:
        """Return the input of the final norm (B, N, D)."""
        raise AssertionError("abstract")


class Head(nn.Module):
    """From vectors to predictions: forward(x, seq) -> (B, V) or (B, N, V)."""

    # One prediction per "token" or per "sequence"; or per token a "mixture" of densities, or a "contrast": a prediction
    # and what it is to be told apart from.
    gives: ClassVar[str]
    needs_class_token: ClassVar[bool] = False
    fixed_length: ClassVar[bool] = False  # it has weights for each position, so all sequences are of one length
    later_ids: ClassVar[bool] = False  # in training it predicts the ids of later tokens of the inputs
    bidirectional: ClassVar[bool] = False  # it is for models in which every token sees every other one
    reads_last: ClassVar[bool] = False  # its predictions of all tokens are from the last one, which has seen them
    has_blocks: ClassVar[bool] = False  # it has blocks of its own for training, which `add_blocks` builds

    @classmethod
    def ties(cls, options: ChoiceOptions) -> bool:
        """Return whether it shares the embedder's table under these options."""
        return False

    def tie(self, embedder: Embedder) -> None:
        """Share weights with `embedder`, if the options say so. Called once, when the model is built."""

    def add_blocks(
        self,
        ctx: Context,
        block: Callable[[Context], Block],
        norm: Callable[[Context], nn.Module],
        position: Position,
    ) -> None:
        """Build blocks of its own. Called once, after `tie`, if it `has_blocks`.

        block, norm: factories, of the kind of the last layer; position: the scheme that acts there, and in them too
        """


class Model(nn.Module):
    """A model that an `Architecture` builds: forward(inputs, cache=None, record=None) -> (B, V) or (B, N, V).

    A model without these attributes trains and is evaluated; generation, extrapolation and inspection read them.
    """

    ctx: Context
    embedder: Embedder
    position: Position
    head: Head

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block, in order; a block without one is left out."""
        raise NotImplementedError


@runtime_checkable
class EncodesSource(Protocol):
    """A model with an encoder. The encoded source is the `memory` of every later call."""

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> Memory:
        """Return the encoded source. source: as `Batch.source`"""


def iter_blocks(model: nn.Module) -> Iterator[Block]:
    """Return every block of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Block))


def blocks_of_heads(model: nn.Module) -> list[Block]:
    """Return the blocks that are inside a head, for training alone."""
    return [block for head in model.modules() if isinstance(head, Head) for block in iter_blocks(head)]


def active_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model that one token uses; shared ones count once."""
    idle = 0
    inside: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if isinstance(module, ChannelMixer) and not path.startswith(inside):
            inside += (f"{path}.",)
            idle += sum(parameter.numel() for parameter in module.parameters()) - module.active_parameters()
    return sum(parameter.numel() for parameter in model.parameters()) - idle


@runtime_checkable
class HasAuxiliary(Protocol):
    """A module with a loss of its own beside the objective's, such as the commitment of a codebook.

    auxiliary: the addition of its forward in training to the loss of the batch, a scalar; None if it adds nothing. A
        module in a block that may be visited more than once (`model.order`) adds to the value of earlier visits. It
        is logged as `train/auxiliary` and is no part of any other metric; its weight is an option of the module
    """

    auxiliary: Tensor | None


@runtime_checkable
class AfterStep(Protocol):
    """A module that training changes without a gradient, such as the shift that balances experts.

    The values that it sets must be equal in all processes, and be in buffers, so that a run resumes exactly.
    """

    def after_step(self) -> None:
        """Called in every process after each step of the optimizer."""
        ...

    def training_metrics(self) -> dict[str, Tensor]:
        """Return scalars of the last step by name; the log has their mean over processes as `train/NAME.LAYER`."""
        ...


def auxiliary_loss(modules: Iterable[nn.Module]) -> Tensor | None:
    """Return the sum of the modules' auxiliary losses, and forget them; None if there are none."""
    total: Tensor | None = None
    for module in modules:
        if isinstance(module, HasAuxiliary) and module.auxiliary is not None:
            total = module.auxiliary if total is None else total + module.auxiliary
            module.auxiliary = None
    return total
