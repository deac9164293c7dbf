"""What is known when: of data, of tokens, of a place in a model, of a batch, of a row; and what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from blockyard.contracts.modules import Position


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
    resizable: bool = False  # its splits give longer rows where an evaluation asks for them (`Resizable`)

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


@dataclass
class Issue:
    """One problem of a config: where, what, and what would work."""

    key: str
    text: str
    legal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        hint = f" (works: {', '.join(self.legal)})" if self.legal else ""
        return f"{self.key}: {self.text}{hint}"
