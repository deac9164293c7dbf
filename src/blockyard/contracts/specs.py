"""Facts before any weight: of data, of its tokens, of a model and its parametrization; and problems of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from blockyard.contracts.option_types import ChoiceOptions
from blockyard.contracts.roles import Role
from blockyard.errors import fold, printable, shortened

if TYPE_CHECKING:
    from torch import Tensor

Lengths = TypeVar("Lengths", "Tensor", int)


@dataclass(frozen=True)
class DataSpec:
    """The facts that a data module declares before any file is read.

    `shape` is the shape of one item: (channels, height, width) of an image, (tokens,) of a text, *after* tokenizing,
    (steps, channels) of a time series, (nodes, columns) of a graph, and (samples,) of audio. `variable` says that items
    may be shorter, so that batches are padded on the right.
    """

    modality: str  # "image", "text", "symbols", "views", "series", "graph", "audio"; a data module may have its own
    shape: tuple[int, ...]
    variable: bool = False
    packed: bool = False  # sequences hold several documents that must not see each other
    target: str | None = None  # "class", "symbols", "pixels", "values", "labels", "tags", or None: made from the input
    classes: int | None = None
    class_names: tuple[str, ...] = ()  # in the order of the class numbers, where the data has names for them
    slices: tuple[str, ...] = ()  # names of the parts of a split that evaluation also reports, by `Batch.slice`
    mixed: bool = False  # its slices are data sets of their own, of which every metric is reported (`Mixed`)
    values: tuple[int, ...] | None = None  # shape of a real-valued target of a sample: (steps, channels), (tasks,)
    levels: int | None = None  # gray levels of each channel of an image that is stored as bytes, for tokens of levels
    rate: int | None = None  # samples a second, of audio
    pairs: int | None = None  # facts of a pair of items: their distance, and the edges along the path between them
    joined: bool = False  # a sequence is a source, the start token, and what a model is to write from it
    source: DataSpec | None = None  # what an encoder reads beside it, of any modality: a text, an image, a sound
    vocabulary: int | None = None  # of data that is token ids from the start
    resizable: bool = False  # its splits give longer sequences to an evaluation (`Resizable`)

    @property
    def things(self) -> str:
        """The modality in the plural: "images", "symbols"."""
        return plural(self.modality)


def plural(modality: str) -> str:
    """Return the plural of a modality; some are plural already, and audio has none."""
    if modality.endswith(("s", "audio")):
        return modality
    return f"{modality}s"


@dataclass(frozen=True)
class TokenSpec:
    """The tokens that a tokenizer makes of a `DataSpec`, known before any weight.

    grid: the layout of a full sequence of tokens: (7, 7) for patches, (64,) for text, () for a set of tokens without
        coordinates. Its length is the number of coordinate axes A
    variable: sequences may be shorter, and are padded
    shrink: how windows over the items of an input become tokens, a stage each: items of a window, from one window to
        the next, and items added to the ends together; () if every item is a token
    vocabulary: the number of token ids; None for inputs that are not token ids
    predicted: the number of token ids that are predicted, the first of the vocabulary; None is all of them
    ahead: each token has the coordinates of the one that it predicts, which follows it; the first one is a start token
    raster: tokens on a grid follow each other row by row
    codes: the number of codes in each column of an item, for tokens that are the sum of the codes' vectors
    pairs: the number of codes of each fact of a pair of tokens (`Seq.pairs`); None if pairs have no facts
    count: the largest N without prefix tokens; None is the product of the sides of the grid
    mask: the token id that hides others, if an objective added one
    start, end: the token ids around the sequence that a decoder writes, for data with a source
    scaled: the vectors of tokens are multiplied by sqrt(D) as they enter the stream
    rescaled: predictions are in the units of the inputs: heads undo the scaling of the embedder (`Seq.scale`)
    patch: the shape of the values of the input that belong to each token alone: (channels, side, side) of an image,
        (steps, channels) of the last steps of a series; None if tokens share values
    padding: pixels added left, right, above and below an image before it is cut into patches; None without any
    causal: no vector depends on the input of later tokens
    hides: batches name hidden tokens (`Batch.hidden`), and the model has a learned vector in their place
    """

    grid: tuple[int, ...]
    variable: bool = False
    vocabulary: int | None = None
    predicted: int | None = None
    ahead: bool = False
    raster: bool = True
    codes: tuple[int, ...] | None = None
    pairs: tuple[int, ...] | None = None
    count: int | None = None
    mask: int | None = None
    start: int | None = None
    end: int | None = None
    scaled: bool = False
    rescaled: bool = False
    shrink: tuple[tuple[int, int, int], ...] = ()
    patch: tuple[int, ...] | None = None
    padding: tuple[int, int, int, int] | None = None
    causal: bool = True
    hides: bool = False

    def __post_init__(self) -> None:
        if self.count is not None and (self.count < 1 or (self.grid and self.count != math.prod(self.grid))):
            raise ValueError(
                f"TokenSpec(grid={self.grid}, count={self.count}): count must be the product of the grid's "
                "sides; leave count out, or use grid=() for a set of tokens"
            )

    @property
    def axes(self) -> int:
        """A, the number of coordinates a token has."""
        return len(self.grid)

    def tokens_of(self, lengths: Lengths) -> Lengths:
        """Return the number of tokens (B,) of inputs of `lengths` items (B,), after the stages of `shrink`."""
        for window, stride, added in self.shrink:
            windows = (lengths + added - window) // stride + 1
            lengths = windows * (windows > 0)
        return lengths

    @property
    def max_len(self) -> int:
        """The largest number of tokens without the prefix."""
        if self.count is None:
            return math.prod(self.grid)
        return self.count


# How the size of an update depends on the gradient: not at all for a coordinate (adam), in proportion (sgd), or the
# update is an orthogonal matrix (M, N) with Jordan's factor sqrt(max(1, M / N)) (muon), with sqrt(M / N) (dion), or as
# large as Adam's (muon_rms).
UpdateRule = Literal["adam", "sgd", "muon", "dion", "muon_rms"]
InitShape = Literal["normal", "uniform"]
Place = Literal["logits", "output", "scores", "branch", "embedding"]


class Parametrization:
    """The factors of a model that depend on its size; here each is 1.

    Subclasses override the factors that depend on the size. Each method gets the Context of the model.

    scales: some factor depends on the size, so that every weight needs a role
    decides_function: the choice decides the function that a model computes from its weights
    """

    decides_function: ClassVar[bool] = True
    scales: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items(), key=str)))

    @classmethod
    def scales_branches(cls, options: ChoiceOptions) -> bool:
        """Return whether additions of blocks have a factor under these options; then blocks must add to the stream."""
        return False

    @classmethod
    def scales_scores(cls, options: ChoiceOptions) -> bool:
        """Return whether scores always have a factor under these options; then the token mixer must have scores."""
        return False

    def width_ratio(self, ctx: Context) -> float:
        """Return the width of the model over the width of the base."""
        return 1.0

    def head_ratio(self, ctx: Context) -> float:
        """Return the width of a head over the width of the base's."""
        return 1.0

    def base_visits(self, ctx: Context) -> int:
        """Return the number of visits of blocks that initial weights are made for."""
        return ctx.visits

    def std(self, role: Role, ctx: Context) -> float:
        """Return the factor for weights of a role on `ctx.init_std`, the standard deviation of hidden weights."""
        return 1.0

    def factor(self, place: Place, ctx: Context) -> float:
        """Return the factor on the activations at a place.

        logits: inputs of the last map of a head; output: inputs of other maps of the role output; scores: products of
        queries and keys, beside 1 / sqrt(K); branch: the addition of a block; embedding: the stream before the blocks
        """
        return 1.0

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """Return the factor on the learning rate of weights of a role; weight decay is divided by it."""
        return 1.0

    def epsilon(self, role: Role, ctx: Context, *, in_block: bool) -> float:
        """Return the factor on Adam's epsilon, equal to the factor on gradients."""
        return 1.0


PLAIN = Parametrization()


@dataclass(frozen=True)
class Context:
    """The facts of a model for the constructors of its modules. Every constructor takes it first."""

    dim: int  # D; of an embedder beside positions with separate channels, the other channels
    depth: int  # number of blocks
    heads: int  # H
    causal: bool  # whether tokens see earlier tokens only; stated here and nowhere else
    tokens: TokenSpec
    data: DataSpec
    outputs: int  # V
    source: TokenSpec | None = None  # of the source, if its tokens are of another kind (`source_tokenizer`)
    layer: int = 0  # the index of the block
    num_prefix: int = 0  # class and register tokens in front of the sequence
    init_std: float = 0.02  # standard deviation of initial weights that are hidden; see `input_std`
    # A block's factor on the initial standard deviation of the maps of a branch (values, hidden layers, outputs).
    # None: outputs alone start smaller, by sqrt(branches depth).
    gain: float | None = None
    zero_branches: bool = False  # maps that write into the stream start at zero
    init_shape: InitShape = "normal"  # the distribution of weights that are drawn with a standard deviation
    branches: int = 2  # branches of a block that write into the stream: 3 with cross-attention
    peer: int | None = None  # visits of blocks in the other stack, in a model of an encoder and a decoder
    order: tuple[int, ...] | None = None  # the index of the block at each visit; None is each block once
    # The values that earlier blocks give to this one: name -> shape without batch and tokens (`TokenMixer.gives`).
    given: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    parametrization: Parametrization = PLAIN  # how weights, rates and factors depend on the size of the model
    stream: int | None = None  # the width of the stream, if it is not `dim`
    source_ties: bool = False  # though `causal`, the tokens of a source in front of the sequence see each other

    @property
    def sees_later(self) -> bool:
        """Return whether a token may see a later one on its axis."""
        return not self.causal or self.tokens.axes > 1 or self.source_ties

    @property
    def visits(self) -> int:
        """The number of blocks that a token passes: `depth`, or more if blocks are visited more than once."""
        if self.order is None:
            return self.depth
        return len(self.order)

    @property
    def head_dim(self) -> int:
        """K = D / H. Raises ValueError if H does not divide D."""
        if self.dim % self.heads:
            divisors = [h for h in range(1, self.dim + 1) if self.dim % h == 0 and h <= 4 * self.heads]
            raise ValueError(
                f"model.heads={self.heads} does not divide model.dim={self.dim}; "
                f"heads that do: {', '.join(map(str, divisors))}"
            )
        return self.dim // self.heads

    @property
    def source_tokens(self) -> TokenSpec:
        """The tokens of the source: by default of the kind of `tokens`, as many as the source has."""
        assert self.data.source is not None
        if self.source is not None:
            return self.source
        return replace(self.tokens, grid=self.data.source.shape, count=None)

    @property
    def token_std(self) -> float:
        """Standard deviation of the channels of a token as it enters the stream, at initialisation."""
        return self.input_std * self.token_scale

    @property
    def token_scale(self) -> float:
        """The factor on the vectors of tokens as they enter the stream: sqrt(D) of the base if they are scaled."""
        if self.tokens.scaled:
            return (self.dim / self.width_ratio) ** 0.5
        return 1.0

    @property
    def input_std(self) -> float:
        """Standard deviation of initial vectors that enter the stream."""
        return self.init_std * self.parametrization.std("input", self)

    @property
    def width_ratio(self) -> float:
        """The width of the model over the width of its parametrization's base; 1 without a base."""
        return self.parametrization.width_ratio(self)

    @property
    def head_ratio(self) -> float:
        """The width K of a head over the base's; 1 without a base."""
        return self.parametrization.head_ratio(self)

    def score_scale(self, width: int, *, grows: bool = True) -> float | None:
        """Return the factor on scores of queries and keys of a width K; None is the usual 1 / sqrt(K).

        grows: whether K is the width of a head; a width that an option fixes does not grow with the model
        """
        factor = self.parametrization.factor("scores", self)
        if not grows:
            factor *= self.head_ratio**0.5
        return None if factor == 1.0 else factor * width**-0.5

    def at(self, layer: int) -> Context:
        """Return the same context for block number `layer`."""
        return replace(self, layer=layer)


@dataclass(frozen=True)
class FittingValue:
    """A value of an option that fits the files of the data.

    key: of the option; dotted in what a data module returns, and the name alone in what a tokenizer returns
    value: as plain data
    reason: a few words, such as "95 % of the texts have at most 38 tokens"
    """

    key: str
    value: Any
    reason: str


@dataclass
class Issue:
    """One problem of a config: its key, a text, and overrides that would work.

    legal: overrides that would work, the nearest first
    see: a command that shows more
    unknown: whether the key or the choice exists nowhere: a mistake of spelling, not a combination that cannot be
    """

    key: str
    text: str
    legal: list[str] = field(default_factory=list)
    see: str = ""
    unknown: bool = False

    def __str__(self) -> str:
        hints = [f"try {fold(self.legal)}"] if self.legal else []
        hints += [f"see {self.see}"] if self.see else []
        key = self.key if "/" in self.key else shortened(self.key)  # a path is of use as a whole only
        return printable(f"{key}: {self.text}" + (f" ({'; '.join(hints)})" if hints else ""))
