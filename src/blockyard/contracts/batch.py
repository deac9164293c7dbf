"""A batch, the facts of the tokens of one forward pass, and the scheme that encodes their positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from blockyard.contracts.option_types import ChoiceOptions

# A tensor, or a named tuple of tensors that only its objective reads.
Target: TypeAlias = "Tensor | Any"

UNREACHABLE = 255  # the distance of two tokens that no path joins


@dataclass
class Inputs:
    """The inputs of a model: `model(inputs, cache=None, record=None)`. A `Batch` is one; a tensor may stand for one.

    inputs: images (B, C, height, width), float or uint8; views (B, N, C, height, width); token ids (B, N) int64;
        time series (B, steps, C) float, NaN where a value is missing; nodes of graphs (B, N, C) int64, a code for each
        column; audio (B, samples), float in [-1, 1] or int16, in the unit 1/32768. With a cache, the new tokens only
    lengths: (B,) int64, the valid items of each input: tokens of a text, steps of a series, samples of audio, views;
        None if all are. `TokenSpec.tokens_of` returns the number of their tokens
    segment: (B, N) int64, the document of each token; None if each sequence is one document
    hidden: (B, N) bool, the tokens that the model replaces by a learned vector (`TokenSpec.hides`); None if it reads
        all
    source: the inputs of an encoder, for a model that has one in addition to its decoder: token ids (B, M) int64, or
        any other kind of `inputs`
    source_lengths: (B,) int64, the valid items of each source, as `lengths`; None if all are
    pairs: (B, N, N, P) uint8, facts of each pair of tokens: their distance, or `UNREACHABLE`, and then codes that the
        tokenizer counts in `TokenSpec.pairs`. None if pairs have no facts
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
    def of(cls, inputs: Inputs | Tensor, cache: object = None) -> Inputs:
        """Return the inputs unchanged, or a tensor as inputs without other facts.

        cache: the second argument of the model's call; a tensor there, such as lengths, raises TypeError
        """
        if isinstance(cache, Tensor):
            raise TypeError("a model takes one object: pass lengths and other facts as Inputs(x, lengths=lengths)")
        if isinstance(inputs, Tensor):
            return cls(inputs)
        return inputs

    def facts(self) -> dict[str, Any]:
        """Return the fields that a model reads and that are not None, by name."""
        return {each.name: value for each in fields(Inputs) if (value := getattr(self, each.name)) is not None}

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class Batch(Inputs):
    """The samples of one step, on one device: the inputs of the model, and facts for objective and engine.

    target: classes (B,) int64; token ids (B, N), or classes of pixels (B, height, width), int64 with `ignore`
        without a target; real values (B, ...) float with NaN without a target; after `Objective.prepare` also a named
        tuple of tensors
    weight: () float, set by the engine on a micro-batch: the factor that turns its mean loss into its share of the
        mean over the whole batch. None is 1
    sample: (B,) int64, the index of each sample in its split, set by the engine. An objective's random draws for a
        sample are a hash of it, and so the same however a batch is cut. None reads as 0, 1, ...
    slice: (B,) int64, the index in `DataSpec.slices` of each sample's slice; None if the data has no slices
    number: (B,) int64, in place of `sample` for an objective's draws: the index of a sample in its part of a mixture,
        so that evaluation draws as it does for that part alone
    """

    target: Target | None = None
    _: KW_ONLY
    weight: Tensor | None = None
    sample: Tensor | None = None
    slice: Tensor | None = None
    number: Tensor | None = None

    ignore: ClassVar[int] = -100

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Return the batch with every tensor moved as by `Tensor.to`."""
        return self.map(lambda tensor: tensor.to(*args, **kwargs))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with every tensor replaced by a function of it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = type(value)(*map(function, value))
            elif value is not None:
                values[name] = function(value)
        return Batch(**values)

    @staticmethod
    def counted(target: Tensor) -> Tensor:
        """Return a bool for each target, True if it counts: it is not `ignore`, or not NaN among floats."""
        if target.is_floating_point():
            return ~target.isnan()
        return target != Batch.ignore

    def numbers(self) -> Tensor:
        """Return the number of each sample (B,) int64; random draws for the sample are a hash of it."""
        numbers = self.sample if self.number is None else self.number
        if numbers is None:
            return torch.arange(len(self), device=self.inputs.device)
        return numbers

    def pin_memory(self) -> Batch:
        """Return the batch in pinned memory, for a DataLoader's pinning thread."""
        return self.map(Tensor.pin_memory)


@dataclass
class Seq:
    """The facts of a sequence of tokens in one forward pass. Mixers get facts, never masks.

    index: (N,) int64, increasing; causality compares it and nothing else. Tokens of one index see each other
    ties: several tokens have one index; otherwise it is strictly increasing
    shown: (B, N) bool, the tokens that earlier tokens of their sequence see too, in a causal model; None without any
    coords: (B|1, N, A) float, the coordinates of each token for the position scheme; zeros for prefix tokens
    unvaried: the same before the scheme has varied them in training, by which mixers find neighbours; None if they are
        `coords`
    valid: (B, N) bool, False at padding, which is on the right; None if all tokens are real
    segment: (B, N) int64; tokens of different segments must not see each other. None is one segment
    num_prefix: class and register tokens, always the first, and the tokens of a source that stands in front of the
        sequence; no position scheme acts on them
    grid: the layout of the tokens after the prefix; None if they fill no grid
    features: (B, N, F) float, computed by the tokenizer from each token's raw input without weights, such as the mean
        colour of a patch; zeros at prefix tokens. None if it computes nothing
    pairs: the facts of each pair of tokens, P x (B, N, N) int64: first the distance, `UNREACHABLE` if no path joins
        them, one is padding, or they are of different segments; then codes. Zeros for pairs with a prefix token. None
        if pairs have no facts
    scale: the offset and the size, each (B, 1, C), that the embedder took out of each sequence of values; None if it
        took nothing
    position: the position scheme of the model, or None
    embedded: (B, N, E) the embedder's vectors before any is hidden, without the prefix; None in models that hide none
    hidden: (B, N) bool, the vectors of `embedded` that the model does not see; None if it sees all
    ids: (B, N) int64, the token id of each token, for mixers that look vectors up; -1 at padding, prefix tokens, hidden
        tokens and the tokens of a source in front of the sequence. None if inputs are not token ids
    carry: values from earlier layers, by the names that this layer takes. Read only; outputs may depend on it. Each
        visit of a block has a `Seq` of its own, so that a visit that runs again reads the same
    given: values from this layer for later ones, by name, written with `give`; None if no layer takes anything
    memo: computed once by `ops` from the fields above, for all layers of one forward pass; the visits share it
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
    ids: Tensor | None = None
    unvaried: Tensor | None = None
    carry: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    given: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return self.index.shape[0]

    @property
    def token_coords(self) -> Tensor:
        """The coordinates of tokens, (B|1, N, A) float, before a position scheme varies them in training."""
        if self.unvaried is None:
            return self.coords
        return self.unvaried

    def give(self, name: str, value: Any) -> None:
        """Let later layers take `value`, a tensor or several, under a name that the mixer declares in `gives`."""
        if self.given is not None:
            self.given[name] = value

    def bare(self) -> Seq:
        """Return the facts without carried values, to be kept longer than the forward pass."""
        if self.given is None:
            return self
        return replace(self, carry={}, given=None)


class Memory(NamedTuple):
    """Another sequence of tokens, which cross-attention reads. x: (B, M, D)"""

    x: Tensor
    seq: Seq


class Position(nn.Module):
    """A position scheme. Each hook is the identity unless it is overridden and named in `acts_on`.

    Hooks are functions of coordinates, of facts of pairs or of neighbouring tokens, never of lengths, and never see
    prefix tokens.

    width: channels that `embed` appends; the embedder then has D - width channels, and the stream is D wide
    length_scale: the length of sequences over their length in training; an evaluation sets it if the scheme
        `scales_length`. The model divides the coordinates of a bounded scheme by it; another scheme reads it itself
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
    # `bias` reads each learned tensor once at most: FlexAttention has no gradient for a tensor that is read twice.
    reads_once: bool = True
    varies: bool = False  # in training its coordinates are drawn anew in each forward pass, by `vary`

    # The port of the mixer that each hook needs.
    needs: ClassVar[dict[str, str]] = {"rotate": "queries_and_keys", "bias": "scores", "relate": "scores"}

    @property
    def scales_length(self) -> bool:
        """Return whether it takes sequences longer than in training by dividing coordinates by a constant factor."""
        return False

    @classmethod
    def concatenates(cls, options: ChoiceOptions) -> bool:
        """Return whether `width` is not 0 under these options."""
        return False

    def resized(self, name: str, value: Tensor, grid: tuple[int, ...] | None) -> Tensor | None:
        """Return a parameter that was learned on another grid of tokens, resized to the grid of this scheme.

        name: of the parameter; grid: of the tokens that `value` was learned on, None if it is not known
        Returns None if the grids are equal or the scheme cannot do it. A value on the meta device gives the shape.
        """
        return None

    def vary(self, coords: Tensor) -> Tensor:
        """Return coordinates (B|1, N, A) as training sees them. Called once in a forward pass, before all layers."""
        return coords

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D - width), coords (B|1, N, A) -> (B, N, D)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k of the same shapes.

        K is the `key_width` of the mixer, which may differ from layer to layer.
        """
        return q, k

    def check_width(self, width: int) -> None:
        """Raise ValueError if queries and keys of this K cannot be rotated. Called before any forward pass."""

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return the addition to the scores, elementwise over broadcast shapes.

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
        """Return the addition to the scores, like `bias`, from the facts of each pair of query and key.

        head: int64 of any shape; pairs: one int64 tensor for each fact of `Seq.pairs`. Elementwise over shapes that
        broadcast.
        """
        raise AssertionError("only called where acts_on names 'relate'")

    def at_prefix(self, head: Tensor) -> Tensor:
        """Return the value of `relate` for pairs with a prefix token: zero. head: int64 of any shape"""
        return torch.zeros_like(head, dtype=torch.get_default_dtype())
