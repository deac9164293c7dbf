"""What is known of a batch, and of the tokens of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from blockyard.contracts.position import Position


@dataclass
class Batch:
    """The samples of one step, on one device.

    inputs: images (B, C, height, width), float or uint8; views (B, N, C, height, width); token ids (B, N) int64
    target: classes (B,) int64; token ids (B, N), or classes of pixels (B, height, width), int64 with `ignore`
        without a target
    lengths: (B,) int64, the valid tokens of each sequence; None where all are
    segment: (B, N) int64, the document of each token; None where a sequence is one document
    source: (B, M) int64, the sequence that an encoder reads, where the model has one in addition to its decoder
    source_lengths: (B,) int64, the valid tokens of each source; None where all are
    weight: () float, set by the engine on a micro-batch: the factor that turns its mean loss into its share of the
        mean over the whole batch. None is 1
    sample: (B,) int64, the index of each sample in its split, set by the engine. What an objective draws for a
        sample is a hash of it, and so the same however a batch is cut. None reads as 0, 1, ...
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
        """Returns the batch with every tensor moved as by `Tensor.to`."""
        moved = {name: None if tensor is None else tensor.to(*args, **kwargs) for name, tensor in self._items()}
        return Batch(**moved)  # type: ignore[arg-type]  # `inputs` is never None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Returns all fields in order."""
        return tuple(tensor for _, tensor in self._items())

    def arguments(self) -> dict[str, Tensor]:
        """Returns what a model is called with: `model(**batch.arguments())`.

        Fields that are None are left out, so that a model without a source refuses one by its signature.
        """
        names = ("inputs", "lengths", "segment", "source", "source_lengths")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory, for a DataLoader's pinning thread."""
        pinned = {name: None if tensor is None else tensor.pin_memory() for name, tensor in self._items()}
        return Batch(**pinned)  # type: ignore[arg-type]  # `inputs` is never None

    def _items(self) -> list[tuple[str, Tensor | None]]:
        return [(each.name, getattr(self, each.name)) for each in fields(self)]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class Seq:
    """The facts of a sequence of tokens in one forward pass. Mixers get facts, never masks.

    index: (N,) int64, strictly increasing; causality compares it and nothing else
    coords: (B|1, N, A) float, the coordinates of each token; zeros for prefix tokens
    valid: (B, N) bool, False at padding, which is on the right; None where all tokens are real
    segment: (B, N) int64; tokens of different segments must not see each other. None is one segment
    num_prefix: class and register tokens, always the first; no position scheme acts on them
    grid: the layout of the tokens after the prefix; None where they fill no grid
    features: (B, N, F) float, what the tokenizer computes of each token's raw input without weights, such as
        the mean colour of a patch; zeros at prefix tokens. None where it computes nothing
    position: the position scheme of the model, or None
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
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return self.index.shape[0]


class Memory(NamedTuple):
    """What cross-attention reads: another sequence of tokens. x: (B, M, D)."""

    x: Tensor
    seq: Seq
