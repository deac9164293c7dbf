"""Several data sets as one split: what a step takes of each part, and batches of several parts.

Source: Tijdeman 1980, The chairman assignment problem (Discrete Mathematics 32), for whole numbers that follow shares
    which change; the rule here is the simpler one of the largest deficit
Equation: part i is w_i b(s) samples short after step s, in addition to what it was short before, w_i in the middle of
    the step; of its b(s) samples every part gets what it is short of, rounded down, and the largest rests one more

    weights  0.7 0.3, 4 samples a step       short 2.8 1.2 -> 3 1,  short 2.6 1.4 -> 3 1,  short 2.4 1.6 -> 2 2, ...

The numbers of a part thus never stray from the integral of its weights by more than about a sample, whatever the
weights do: nothing is left to chance, and no seed has more of a part than another.

Each part has an order of its own: its samples come in a random permutation, and then in a new one. A step's samples
are a function of (seed, step) and of the options alone, so a resumed run needs no state, and processes and
micro-batches take disjoint parts of one batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, HasDocuments, HasLengths, KeyedOrder, Resizable, Split
from blockyard.data.splits.order import mix, permuted
from blockyard.data.splits.split import known_classes
from blockyard.data.splits.token_stream import TokenWindows


@dataclass(frozen=True)
class WeightCurve:
    """The weights of the parts over a run: straight lines between points, constant before the first and after the last.

    points: shares of the run, increasing; weights: of the parts at each of them, of any sum
    """

    points: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]

    def at(self, share: float) -> tuple[float, ...]:
        """Return the weights at a share of the run; their sum is 1."""
        shares = [tuple(each / sum(row) for each in row) for row in self.weights]
        after = next((number for number, point in enumerate(self.points) if point > share), len(self.points))
        if after in (0, len(self.points)):
            return shares[min(after, len(shares) - 1)]
        low, high = self.points[after - 1], self.points[after]
        there = (share - low) / (high - low)
        return tuple(a + (b - a) * there for a, b in zip(shares[after - 1], shares[after], strict=True))


def apportioned(short: Sequence[float], weights: Sequence[float], count: int) -> list[int]:
    """Return how many of `count` samples each part gets, at least 0, by the largest deficit.

    short: what each part is short of, of sum `count`; a part of weight 0 gets none that another one can take
    """
    counts = [int(max(0.0, each)) for each in short]
    rest = count - sum(counts)
    while rest:
        sign = 1 if rest > 0 else -1
        able = [number for number in range(len(counts)) if sign > 0 or counts[number]]
        number = max(able, key=lambda i: (weights[i] > 0 or sign < 0, sign * (short[i] - counts[i])))
        counts[number] += sign
        rest -= sign
    return counts


class MixedOrder:
    """Which samples each step of a run takes.

    samples: of each step; curve: the weights of the parts
    """

    def __init__(
        self, split: MixedSplit, curve: WeightCurve, *, seed: int, total: int, samples: Callable[[int], int]
    ) -> None:
        self.split, self.curve, self.seed, self.total, self.samples = split, curve, seed, total, samples
        self._before = array("q", [0] * len(split.parts))  # samples of each part before step 0, 1, ...
        self._short = [0.0] * len(split.parts)
        self._permutations: dict[tuple[int, int], Tensor] = {}

    def __call__(self, step: int) -> Tensor:
        """Return the samples (b,) int64 of step number `step`, each as turn * len(split) + index, in random order."""
        before, after = self._until(step), self._until(step + 1)
        drawn = [
            self._drawn(part, torch.arange(start, stop))
            for part, (start, stop) in enumerate(zip(before, after, strict=True))
        ]
        order = torch.cat(drawn)
        generator = torch.Generator().manual_seed(mix("slots", self.seed, step))
        return order[torch.randperm(len(order), generator=generator)]

    def drawn(self, steps: int) -> dict[str, int]:
        """Return how many samples of each part the first `steps` steps take."""
        return dict(zip(self.split.parts, self._until(steps), strict=True))

    def _until(self, step: int) -> array[int]:
        """The samples of each part before step number `step`."""
        parts = len(self._short)
        for number in range(len(self._before) // parts - 1, step):
            weights, count = self.curve.at((number + 0.5) / self.total), self.samples(number)
            short = [left + count * weight for left, weight in zip(self._short, weights, strict=True)]
            counts = apportioned(short, weights, count)
            self._short = [left - taken for left, taken in zip(short, counts, strict=True)]
            self._before.extend(old + new for old, new in zip(self._before[-parts:], counts, strict=True))
        return self._before[step * parts : (step + 1) * parts]

    def _drawn(self, part: int, numbers: Tensor) -> Tensor:
        """The samples of a part that it gives as its `numbers` (n,), counted from the start of the run."""
        name, split = list(self.split.parts.items())[part]
        epochs, positions = numbers.div(len(split), rounding_mode="floor"), numbers % len(split)
        indices = torch.empty_like(positions)
        for epoch in epochs.unique().tolist():
            key = mix("order", self.seed, name, epoch)
            of_epoch = epochs == epoch
            if isinstance(split, KeyedOrder) and split.keyed:
                indices[of_epoch] = permuted(positions[of_epoch], len(split), key)
            else:
                indices[of_epoch] = self._permutation(part, epoch, len(split), key)[positions[of_epoch]]
        return epochs * len(self.split) + self.split.starts[part] + indices

    def _permutation(self, part: int, epoch: int, count: int, key: int) -> Tensor:
        """A permutation (count,); that of the epoch before it is dropped."""
        if (part, epoch) not in self._permutations:
            kept = {of: order for of, order in self._permutations.items() if of[0] != part or of[1] == epoch - 1}
            kept[part, epoch] = torch.randperm(count, generator=torch.Generator().manual_seed(key))
            self._permutations = kept
        return self._permutations[part, epoch]


class MixedSplit:
    """Several splits, one after the other.

    parts: by name; curve: their weights over a run, for a training split
    starts: the index of the first sample of each part
    bytes_per_token: over all targets of next-token prediction, where every part knows its own
    """

    def __init__(self, parts: Mapping[str, Split], context: int, curve: WeightCurve | None = None) -> None:
        self.parts, self.context, self.curve = dict(parts), context, curve
        counts = [len(part) for part in self.parts.values()]
        *self.starts, self._stop = accumulate(counts, initial=0)
        self.redrawn = any(getattr(part, "redrawn", False) for part in self.parts.values())
        self.target = _joined(known_classes(part) for part in self.parts.values())
        self.bytes_per_token = self._bytes_per_token()
        lengths = [_lengths(part, context) for part in self.parts.values()]
        if any(isinstance(part, HasLengths) and part.lengths is not None for part in self.parts.values()):
            self.lengths = torch.cat(lengths)  # absent where all samples have one length, as `HasLengths` asks

    def __len__(self) -> int:
        return self._stop

    def plan(self, seed: int, total: int, samples: Callable[[int], int]) -> MixedOrder:
        """Return the order of a run of `total` steps with so many `samples` in each."""
        assert self.curve is not None, "only a training split has weights"
        return MixedOrder(self, self.curve, seed=seed, total=total, samples=samples)

    def at_length(self, count: int, factor: int, multiple: int | None = None) -> MixedSplit:
        """Return the first `count` sequences `factor` times as long; of each part its share of them.

        multiple: of which the number of sequences of each part is one, so that several factors have the same ones;
            None is `factor`. Raises ValueError where a part has fewer.
        """
        multiple = multiple or factor
        shares = [count * len(part) // len(self) // multiple * multiple for part in self.parts.values()]
        longer = {}
        for (name, part), share in zip(self.parts.items(), shares, strict=True):
            if share:
                assert isinstance(part, Resizable)
                longer[name] = at_length(part, share, factor, multiple)
        if len(longer) < len(self.parts):
            missing = ", ".join(name for name in self.parts if name not in longer)
            raise ValueError(f"of {count} sequences, {missing} has too few to make one {multiple} times as long")
        return MixedSplit(longer, self.context * factor, self.curve)

    def document_of(self, order: Tensor) -> Tensor:
        """Return the text that each sample is from, (B,), counted over all parts; its index where that is unknown."""
        documents = order.clone()
        of_part = self._part_of(order)
        for number, part in enumerate(self.parts.values()):
            chosen = of_part == number
            if isinstance(part, HasDocuments) and bool(chosen.any()):
                # A part has no more texts than samples.
                documents[chosen] = self.starts[number] + part.document_of(order[chosen] - self.starts[number])
        return documents

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples `order` (B,), numbers of a `MixedOrder`, with their part as `slice`.

        A part is augmented, and its text is cut, by a key for each epoch, as it would be in epochs of its own.
        Parts of different lengths are padded to the longest of the batch.
        """
        epochs, order = order.div(len(self), rounding_mode="floor"), order % len(self)
        part = self._part_of(order)
        local = order - torch.tensor(self.starts)[part]
        names, batches, chosen = list(self.parts), [], []
        for number, epoch in torch.stack([part, epochs], 1).unique(dim=0).tolist():
            chosen.append(((part == number) & (epochs == epoch)).nonzero()[:, 0])
            own = None if key is None else mix("turn", key, epoch)
            batches.append(self.parts[names[number]].batch(local[chosen[-1]], own))
        batch = batches[0] if len(batches) == 1 else _concatenated(batches, torch.cat(chosen).argsort())
        return replace(batch, slice=part, number=local if key is None else None)

    def _part_of(self, order: Tensor) -> Tensor:
        return torch.searchsorted(torch.tensor([*self.starts[1:], len(self)]), order, right=True)

    def _bytes_per_token(self) -> float | None:
        each = [getattr(part, "bytes_per_token", None) for part in self.parts.values()]
        if None in each:
            return None
        targets = [float((_lengths(part, self.context) - 1).sum()) for part in self.parts.values()]
        return sum(a * b for a, b in zip(targets, each, strict=True) if b is not None) / sum(targets)


def at_length(split: Resizable, count: int, factor: int, multiple: int) -> Split:
    """Return sequences `factor` times as long, of the same text for every factor of `multiple`.

    Raises ValueError where the split, or a part of it, has fewer than `multiple` sequences.
    """
    if isinstance(split, MixedSplit | TokenWindows):
        return split.at_length(count, factor, multiple)
    if not split.redrawn:
        count -= count % multiple
    if not count:
        raise ValueError(f"there are fewer than {multiple} sequences")
    return split.at_length(count, factor)


def _lengths(part: Split, context: int) -> Tensor:
    """The items of each sample of a part (n,); those of a text count its last token, which is a target only."""
    lengths = part.lengths if isinstance(part, HasLengths) else None
    full = context + hasattr(part, "bytes_per_token")
    return torch.full((len(part),), full) if lengths is None else lengths


def _joined(parts: Any) -> Tensor | None:
    """Tensors one after the other; None where one is missing."""
    parts = list(parts)
    return None if any(each is None for each in parts) else torch.cat(parts)


def _concatenated(batches: Sequence[Batch], order: Tensor) -> Batch:
    """Return batches of several parts as one, padded to the longest, its samples in `order` (B,)."""
    widths = [batch.inputs.shape[1] for batch in batches]
    padded = any(batch.lengths is not None for batch in batches) or len(set(widths)) > 1
    assert all(batch.source is None and batch.pairs is None and batch.hidden is None for batch in batches)

    def joined(name: str, padding: float) -> Tensor | None:
        tensors = [getattr(batch, name) for batch in batches]
        if all(each is None for each in tensors):
            return None
        assert all(each is not None for each in tensors), name
        if padded and tensors[0].ndim > 1:
            tensors = [_padded(each, max(widths), padding) for each in tensors]
        return torch.cat(tensors)[order]

    lengths = None
    if padded:
        each = [
            torch.full((len(batch),), width) if batch.lengths is None else batch.lengths
            for batch, width in zip(batches, widths, strict=True)
        ]
        lengths = torch.cat(each)[order]
    inputs = joined("inputs", 0)
    assert inputs is not None
    return Batch(inputs, joined("target", Batch.ignore), lengths=lengths, segment=joined("segment", 0))


def _padded(tensor: Tensor, width: int, value: float) -> Tensor:
    """Return a tensor (B, N, ...) with `value` on the right of its second axis, (B, width, ...)."""
    size = (len(tensor), width - tensor.shape[1], *tensor.shape[2:])
    return torch.cat([tensor, tensor.new_full(size, value)], 1)
