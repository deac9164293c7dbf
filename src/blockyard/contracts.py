"""What flows between components, and what each family promises. Start reading here.

A model is *tokenizer -> position -> blocks of (token mixer, channel mixer, norm) -> head*;
a task is *data + objective*. Each of those words is a folder beside this file, a folder of
`conf/`, and one class below.

Letters, the same in the whole project:
    B batch   N tokens   D width   H heads   K head width   A coordinate axes   V outputs
    M tokens of the keys, where they differ from the queries'

Two kinds of member exist. A *plan* (data, tokenizer, model, objective, optimizer, schedule) is
cheap: it is built from its options alone and holds no weights. A *module* (position, token and
channel mixer, norm, block, head) is built late, from a `Context` first and options after.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from annotated_types import Ge, Gt, Lt
from pydantic import AllowInfNan
from torch import Tensor, nn

if TYPE_CHECKING:
    import torchmetrics

# Ranges are part of the signature: `check` reads them from the annotation.
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), AllowInfNan(False)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Rate = Annotated[float, Ge(0), Lt(1)]  # dropout and its like


# ---------------------------------------------------------------------------------------------
# What is known when
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSpec:
    """What a data module says of itself before any file is read.

    `shape` is one item's: (channels, height, width) for an image, (tokens,) for text, where it
    counts the tokens of a sample *after* tokenizing. `variable` says that items are shorter than
    that by different amounts, so that batches are padded on the right.
    """

    modality: str  # "image", "text", "symbols", "views"; a data module may bring its own word
    shape: tuple[int, ...]
    variable: bool = False
    packed: bool = False  # rows hold several documents that must not see each other
    target: str | None = None  # "class", "symbols", "pixels", or None where the target is made from the input
    classes: int | None = None
    source: tuple[int, ...] | None = None  # shape of the other row, that an encoder reads (translation)
    vocabulary: int | None = None  # of data that is symbols from the start
    lengthens: bool = False  # its splits give longer rows where an evaluation asks for them (`Lengthens`)

    @property
    def things(self) -> str:
        """The modality in the plural: "images", "symbols"."""
        return plural(self.modality)


def plural(modality: str) -> str:
    """Several of what a modality names; some names are plural already."""
    return modality if modality.endswith("s") else f"{modality}s"


@dataclass(frozen=True)
class TokenSpec:
    """What a tokenizer makes of a `DataSpec`, known before any weight.

    `grid` is the layout of a full row of tokens: (7, 7) for patches, (64,) for text, () for a set
    whose tokens lie nowhere. Its length is the number of coordinate axes A. `count` is the largest
    N without prefix tokens; None means that the grid says it, as the product of its sides.
    `vocabulary` is None for inputs that are not symbols. Symbols beyond the
    tokenizer's own text: `mask`, which an objective hides others behind, where it added one; `start` and
    `end`, which frame the row that a decoder writes, where the data has a source. `scaled`: the vectors of
    symbols are multiplied by sqrt(D) as they enter the stream.
    """

    grid: tuple[int, ...]
    variable: bool = False
    vocabulary: int | None = None
    count: int | None = None
    mask: int | None = None
    start: int | None = None
    end: int | None = None
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.count is not None and (self.count < 1 or (self.grid and self.count != math.prod(self.grid))):
            raise ValueError(
                f"TokenSpec(grid={self.grid}, count={self.count}): a grid has as many tokens as places; "
                "leave count out, or use grid=() for a set of tokens"
            )

    @property
    def axes(self) -> int:
        """A, the number of coordinates a token has."""
        return len(self.grid)

    @property
    def max_len(self) -> int:
        """The largest number of tokens without the prefix."""
        return math.prod(self.grid) if self.count is None else self.count


@dataclass(frozen=True)
class Context:
    """Where a module is being built: every module's constructor takes it first."""

    dim: int  # D
    depth: int  # number of blocks
    heads: int  # H
    causal: bool  # the only place that says so
    tokens: TokenSpec
    data: DataSpec
    outputs: int  # V
    layer: int = 0  # which block, from 0
    num_prefix: int = 0  # class and register tokens in front of the row
    init_std: float = 0.02  # spread of initial weights, and the size at which vectors enter the stream
    gain: float | None = None  # a block's factor on the initial spread of what carries content through a branch
    # (values, hidden layers, outputs); None: outputs alone start smaller, by sqrt(branches depth)
    branches: int = 2  # of a block that write into the stream, by the shape of the model: 3 with cross-attention
    peer: int | None = None  # blocks of the other stack, where an encoder and a decoder stand side by side

    @property
    def head_dim(self) -> int:
        """K = D / H. Raises ValueError where it does not divide."""
        if self.dim % self.heads:
            fits = [h for h in range(1, self.dim + 1) if self.dim % h == 0 and h <= 4 * self.heads]
            raise ValueError(
                f"model.heads={self.heads} does not divide model.dim={self.dim}; "
                f"heads that do: {', '.join(map(str, fits))}"
            )
        return self.dim // self.heads

    @property
    def token_std(self) -> float:
        """Spread of the channels of a fresh token, as it enters the stream."""
        return self.init_std * (self.dim**0.5 if self.tokens.scaled else 1.0)

    def at(self, layer: int) -> Context:
        """The same place, in block number `layer`."""
        return replace(self, layer=layer)


@dataclass
class Batch:
    """One step's data, on one device.

    inputs: images (B, C, height, width), float or uint8; views (B, N, C, height, width); symbols (B, N) int64
    target: classes (B,) int64; symbols (B, N), or classes of pixels (B, height, width), int64 with `ignore`
        where nothing is asked
    lengths: (B,) int64, the valid tokens of each row; None where all are
    segment: (B, N) int64, the document each token belongs to; None where a row is one document
    source: (B, M) int64, the row that an encoder reads where the model has one beside its decoder
    source_lengths: (B,) int64, the valid tokens of each source; None where all are
    weight: () float, set by the engine on a part of a larger batch: the factor on the part's mean
        loss with which the mean over all parts is the mean over all that is asked. None is 1
    sample: (B,) int64, the number of each row's sample in its split, set by the engine: what an objective
        draws for a row is a hash of it, and so the same however a batch is cut. None reads as 0, 1, ...
    """

    inputs: Tensor
    target: Tensor | None = None
    lengths: Tensor | None = None
    segment: Tensor | None = None
    source: Tensor | None = None
    source_lengths: Tensor | None = None
    weight: Tensor | None = None
    sample: Tensor | None = None

    ignore: ClassVar[int] = -100

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Every tensor moved as `Tensor.to` would."""
        return Batch(*(None if t is None else t.to(*args, **kwargs) for t in self.tensors()))

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All fields in order."""
        return tuple(getattr(self, each.name) for each in fields(self))

    def arguments(self) -> dict[str, Tensor]:
        """What a model is called with: `model(**batch.arguments())`. What a batch does not have is left out, so
        that a model which takes no source refuses one by its signature.
        """
        names = ("inputs", "lengths", "segment", "source", "source_lengths")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def pin_memory(self) -> Batch:
        """For a DataLoader's pinning thread."""
        return Batch(*(None if t is None else t.pin_memory() for t in self.tensors()))

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class Seq:
    """The facts of a row of tokens in one forward pass. Mixers get facts, never masks.

    index: (N,) int64, strictly increasing; causality compares it and nothing else
    coords: (B|1, N, A) float; where a token lies. Prefix tokens have a row here too (zeros)
    valid: (B, N) bool, False at padding; None where all tokens are real. Rows pad on the right
    segment: (B, N) int64; tokens of different segments must not see each other. None: one segment
    num_prefix: class and register tokens, always the first; no position scheme touches them
    grid: the layout of the tokens after the prefix, or None where they lie on no full grid
    features: (B, N, F) float, what the tokenizer says of each token's raw input before any weight, such as
        the mean colour of a patch; zeros at prefix tokens. None where it says nothing
    position: the model's position scheme; None reads as "no scheme"
    memo: what `ops` worked out once from the fields above, for all layers of one forward pass
    """

    index: Tensor
    coords: Tensor
    valid: Tensor | None = None
    segment: Tensor | None = None
    num_prefix: int = 0
    grid: tuple[int, ...] | None = None
    position: Position | None = None
    features: Tensor | None = None
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return self.index.shape[0]


class Memory(NamedTuple):
    """What cross-attention looks at: another row of tokens. x: (B, M, D)."""

    x: Tensor
    seq: Seq


# ---------------------------------------------------------------------------------------------
# Plans: built from options alone
# ---------------------------------------------------------------------------------------------


class Split(Protocol):
    """One part of a data set, from which whole batches are taken by number."""

    def __len__(self) -> int:
        """How many samples."""

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """The samples `order` (B,) int64; `key` seeds augmentation, None leaves it out."""


@runtime_checkable
class Lengthens(Protocol):
    """A split that an evaluation can ask for longer rows.

    redrawn: False where rows are pieces of one text, which are then joined, so that the same tokens are asked
        for at every length; True where rows follow a rule and as many are drawn anew at that length
    """

    redrawn: bool

    def longer(self, rows: int, factor: int) -> Split:
        """The first `rows` rows, or as many new ones, `factor` times as long.

        rows: at most as many as there are, and a multiple of `factor` where they are joined
        """


class Splits(NamedTuple):
    """Three disjoint parts. `test` is never used to choose anything."""

    train: Split
    validation: Split
    test: Split


class DataModule(ABC):
    """A data set. `spec` is known before any file is read.

    Lightning sees it through `engine.loader.Loaders`; it is no LightningDataModule itself so that
    `check` and `explain` need not import Lightning.
    """

    batch_size: int
    eval_batch_size: int

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Known from the options; at most a folder is listed."""

    def missing(self) -> str | None:
        """What is not on the disk and how to get it, or None. Looks, never reads or fetches."""
        return None

    def prepare(self) -> None:  # noqa: B027 - most data sets need nothing
        """Fetch what was asked to be fetched. Called once on a machine, before `load`."""

    def symbol_name(self, symbol: int) -> str | None:
        """What a symbol is called where tables and pictures show it; None where the tokenizer knows better."""
        return None

    @abstractmethod
    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split and encode. A trained tokenizer is fitted here, on the training part only."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content that was loaded, recorded with the run. Valid after `load`."""


class Tokenizer(ABC):
    """How raw items become tokens. Names its `modality`; text tokenizers also encode and decode."""

    modality: ClassVar[str]
    axes: ClassVar[int | None] = None  # of its tokens, where `spec` takes long to say it
    gives_features: ClassVar[bool] = False  # its embedder fills `Seq.features`

    @abstractmethod
    def spec(self, data: DataSpec) -> TokenSpec:
        """The tokens of `data`. Raises ValueError where the shape does not fit the options.

        Before `fit`, a trained tokenizer answers with the largest vocabulary it may come to.
        """

    @abstractmethod
    def embedder(self, ctx: Context) -> Embedder:
        """The weights that turn inputs into vectors."""

    def symbol_name(self, symbol: int) -> str | None:
        """What a symbol is called where tables and pictures show it; None where nothing reads it alone."""
        return None

    def state(self) -> dict[str, Any]:
        """What `fit` learned, as plain JSON; saved with the run."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """The inverse of `state`."""


class TextTokenizer(Tokenizer):
    """A tokenizer of strings."""

    modality = "text"

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from the training part. Deterministic; cached by content."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Symbols of `text`. Unknown symbols become the tokenizer's unknown symbol."""

    @abstractmethod
    def decode(self, symbols: list[int]) -> str:
        """Text of `symbols`; the inverse of `encode` for known symbols."""

    def symbol_name(self, symbol: int) -> str | None:
        """The text of the symbol alone, where it has any."""
        try:
            return self.decode([symbol]) or None
        except (ValueError, KeyError, IndexError, OverflowError):
            return None


class Objective(ABC):
    """What is asked of a model, and how the answer is judged."""

    needs_causal: ClassVar[bool | None] = None  # True, False, or None where both will do
    takes: ClassVar[str]  # "token" or "sequence": what the head must give
    target: ClassVar[str | None] = None  # what the data must bring; None where it is made here
    modality: ClassVar[str | None] = None  # the only modality it is for, or None
    needs_source: ClassVar[bool] = False  # it is about a row that is written from another one

    @abstractmethod
    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """V, the width of the head."""

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """The tokens as the model sees them: the tokenizer's, and what this objective adds to them.

        Asked again whenever the tokenizer has learned its vocabulary, and before any `prepare`.
        """
        return tokens

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """The batch as the model and the loss see it. Whatever is drawn is a hash of (key, sample).

        key: in training a number that follows from (seed, epoch, step) alone, the same in every process
            and for every piece of an update; None takes one fixed draw for each sample, so that
            evaluation gives the same figures whenever and however it is run
        """
        return batch

    @abstractmethod
    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean loss, a scalar, in nats where it is a likelihood. prediction: (B, V) or (B, N, V)."""

    @abstractmethod
    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Fresh metrics for one pass over a split, fed with (prediction, target).

        `split` may bring facts that a metric needs, such as `bytes_per_token` of a text.
        """

    @abstractmethod
    def best(self) -> tuple[str, str]:
        """The validation metric that chooses a checkpoint, and "min" or "max"."""

    def directions(self, split: Split | None = None) -> dict[str, str]:
        """The better direction of each metric, "min" or "max", as its class declares `higher_is_better`.

        A metric that declares none is left out; the one that chooses is always there.
        """
        declared = {name: metric.higher_is_better for name, metric in self.metrics(split).items()}
        found = {name: "max" if better else "min" for name, better in declared.items() if better is not None}
        name, mode = self.best()
        return {**found, name: mode}


class Parts(NamedTuple):
    """The checked factories a model is built from. All but `embedder` take a Context."""

    embedder: Callable[[Context], Embedder]
    position: Callable[[Context], Position]
    token_mixer: Callable[[Context], TokenMixer]
    channel_mixer: Callable[[Context], ChannelMixer]
    norm: Callable[[Context], nn.Module]
    block: Callable[[Context, Any, Any, Any], Block]
    head: Callable[[Context], Head]


class Architecture(ABC):
    """The shape of a model: how parts are stacked. Holds the sizes, makes the Context."""

    causal: ClassVar[bool]
    takes_source: ClassVar[bool] = False  # an encoder reads a second row beside the one that is predicted
    crosses: ClassVar[bool] = False  # its blocks need a branch of their own that reads the other row
    latents: ClassVar[bool] = False  # its blocks run over learned vectors that lie nowhere, not over the tokens
    stacks: ClassVar[bool] = True  # it has blocks; one without takes `none` for every part of a block

    @abstractmethod
    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """The Context of this architecture over `data`."""

    def mixing(self, ctx: Context) -> Context:
        """Where token mixers are built: among the tokens, unless its blocks run over something else."""
        return ctx

    @abstractmethod
    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """The model: forward(inputs, lengths=None, segment=None, cache=None) -> prediction.

        One with an encoder of its own takes `source` and `source_lengths` too.
        """


class OptimizerPlan(ABC):
    """Which parameters are updated how."""

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """A torch optimizer over every trainable parameter of `model`."""


class Schedule(ABC):
    """A factor on the learning rate."""

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """The factor for update number `step` (from 0) of `total`; 1.0 is the full rate."""


# ---------------------------------------------------------------------------------------------
# Modules: built from a Context, then options
# ---------------------------------------------------------------------------------------------


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
    stretch: how many times longer than in training the rows of an evaluation are, set by it where the scheme
        `stretches`; the model divides the coordinates of a bounded scheme by it, any other reads it itself
    """

    acts_on: ClassVar[frozenset[str]] = frozenset()  # of "embed", "rotate", "bias"
    axes: ClassVar[frozenset[int]] = frozenset({1, 2})
    relative: ClassVar[bool] = False  # moving all coordinates by one vector changes nothing
    bounded: ClassVar[bool] = False  # knows no coordinate beyond `tokens.grid`
    longer: ClassVar[str] = ""  # advice on the option with which a bounded one reads longer rows, where it has one
    needs_causal: ClassVar[bool] = False  # it is for models that look back only

    width: int = 0
    stretch: float = 1.0

    @property
    def stretches(self) -> bool:
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

    def check_width(self, width: int) -> None:  # noqa: B027 - most schemes turn nothing
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
class Undecayed(Protocol):
    """A module some of whose own parameters are no maps, although they have two dimensions or more.

    undecayed: their names, such as a bias for each token; weight decay leaves them alone, and Muon too.
        What has one dimension, and the tables of embedders and positions, need not be named
    """

    undecayed: ClassVar[frozenset[str]]


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


@dataclass
class Issue:
    """One problem of a config: where, what, and what would work."""

    key: str
    text: str
    legal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        hint = f" (works: {', '.join(self.legal)})" if self.legal else ""
        return f"{self.key}: {self.text}{hint}"


def iter_blocks(model: nn.Module) -> Iterator[Block]:
    """Every block of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Block))
