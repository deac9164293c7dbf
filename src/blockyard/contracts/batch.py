"""What is known of a batch, and of the tokens of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from blockyard.contracts.position import Position

# A tensor, or a named tuple of tensors that only the objective which made it reads.
Target: TypeAlias = "Tensor | Any"

UNREACHABLE = 255  # the distance of two tokens that no path joins


@dataclass
class Inputs:
    """What a model reads: `model(inputs, cache=None, record=None)`. A `Batch` is one; a tensor may stand for one.

    inputs: images (B, C, height, width), float or uint8; views (B, N, C, height, width); token ids (B, N) int64;
        time series (B, steps, C) float, NaN where a value is missing; nodes of graphs (B, N, C) int64, a code for each
        column; audio (B, samples), float in [-1, 1] or int16, in the unit 1/32768. With a cache, the new tokens only
    lengths: (B,) int64, the valid items of each input: tokens of a text, steps of a series, samples of audio, views;
        None where all are. `TokenSpec.tokens_of` says how many tokens that are
    segment: (B, N) int64, the document of each token; None where a sequence is one document
    hidden: (B, N) bool, the tokens whose vectors the model replaces by a learned one (`TokenSpec.hides`); None where
        it reads all
    source: what an encoder reads, where the model has one in addition to its decoder: token ids (B, M) int64, or any
        other kind of `inputs`
    source_lengths: (B,) int64, the valid items of each source, as `lengths`; None where all are
    pairs: (B, N, N, P) uint8, facts of each pair of tokens: their distance, or `UNREACHABLE`, and then codes that the
        tokenizer counts in `TokenSpec.pairs`. None where pairs have no facts
    memory: the encoded source, from the model's `encode`, in place of `source`; no batch of data has one
    """

    inputs: Tensor
    _: KW_ONLY
    lengths: Tensor | None = None
    segment: Tensor | None = None
    hidden: Tensor | None = None
    source: Tensor | None = None
    source_lengths: Tensor | None = None
    pairs: Tensor | None = None
    memory: Memory | None = None

    @classmethod
    def of(cls, inputs: Inputs | Tensor) -> Inputs:
        """Return the inputs as they are; a tensor is the inputs of which no other fact is known."""
        return cls(inputs) if isinstance(inputs, Tensor) else inputs

    def facts(self) -> dict[str, Any]:
        """Return what is known, by name: the fields that a model reads and that are not None."""
        return {each.name: value for each in fields(Inputs) if (value := getattr(self, each.name)) is not None}

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class Batch(Inputs):
    """The samples of one step, on one device: what the model reads, and what objective and engine know besides.

    target: classes (B,) int64; token ids (B, N), or classes of pixels (B, height, width), int64 with `ignore`
        without a target; real values (B, ...) float with NaN without a target; after `Objective.prepare` also a named
        tuple of tensors
    weight: () float, set by the engine on a micro-batch: the factor that turns its mean loss into its share of the
        mean over the whole batch. None is 1
    sample: (B,) int64, the index of each sample in its split, set by the engine. What an objective draws for a
        sample is a hash of it, and so the same however a batch is cut. None reads as 0, 1, ...
    slice: (B,) int64, which of `DataSpec.slices` each sample belongs to; None where the data has no slices
    """

    target: Target | None = None
    _: KW_ONLY
    weight: Tensor | None = None
    sample: Tensor | None = None
    slice: Tensor | None = None

    ignore: ClassVar[int] = -100

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Returns the batch with every tensor moved as by `Tensor.to`."""
        return self.map(lambda tensor: tensor.to(*args, **kwargs))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Returns the batch with every tensor replaced by a function of it."""
        return Batch(**{each.name: _map(getattr(self, each.name), function) for each in fields(self)})

    @staticmethod
    def counted(target: Tensor) -> Tensor:
        """Returns which targets count, bool: those that are not `ignore`, or not NaN where they are floats."""
        return ~target.isnan() if target.is_floating_point() else target != Batch.ignore

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory, for a DataLoader's pinning thread."""
        return self.map(Tensor.pin_memory)


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(function(each) for each in value))
    return None if value is None else function(value)


@dataclass
class Seq:
    """The facts of a sequence of tokens in one forward pass. Mixers get facts, never masks.

    index: (N,) int64, increasing; causality compares it and nothing else. Tokens of one index see each other
    ties: several tokens have one index; otherwise it is strictly increasing
    shown: (B, N) bool, the tokens that earlier tokens of their sequence see too, in a causal model; None where there
        are none
    coords: (B|1, N, A) float, the coordinates of each token; zeros for prefix tokens
    valid: (B, N) bool, False at padding, which is on the right; None where all tokens are real
    segment: (B, N) int64; tokens of different segments must not see each other. None is one segment
    num_prefix: class and register tokens, always the first, and the tokens of a source that stands in front of the
        sequence; no position scheme acts on them
    grid: the layout of the tokens after the prefix; None where they fill no grid
    features: (B, N, F) float, what the tokenizer computes of each token's raw input without weights, such as
        the mean colour of a patch; zeros at prefix tokens. None where it computes nothing
    pairs: the facts of each pair of tokens, P x (B, N, N) int64: first the distance, `UNREACHABLE` where no path joins
        them, where one is padding and where they are of different segments; then codes. Zeros for pairs with a prefix
        token. None where pairs have no facts
    scale: what the embedder took out of each sequence of values, an offset and a size, each (B, 1, C); None where
        it took nothing
    position: the position scheme of the model, or None
    embedded: (B, N, E) the embedder's vectors before any is hidden, without the prefix; None in models that hide none
    hidden: (B, N) bool, which of `embedded` the model does not see; None where it sees all
    memo: what `ops` computed once from the fields above, for all layers of one forward pass
    """

    index: Tensor
    coords: Tensor
    valid: Tensor | None = None
    segment: Tensor | None = None
    num_prefix: int = 0
    grid: tuple[int, ...] | None = None
    position: Position | None = None
    features: Tensor | None = None
    pairs: tuple[Tensor, ...] | None = None
    scale: tuple[Tensor, Tensor] | None = None
    ties: bool = False
    shown: Tensor | None = None
    embedded: Tensor | None = None
    hidden: Tensor | None = None
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return self.index.shape[0]


class Memory(NamedTuple):
    """What cross-attention reads: another sequence of tokens. x: (B, M, D)."""

    x: Tensor
    seq: Seq
