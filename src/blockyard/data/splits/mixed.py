"""Several data sets as one split: the samples of each part in a step, and batches of several parts.

Source: Tijdeman 1980, The chairman assignment problem (Discrete Mathematics 32), for whole numbers that follow shares
    which change; the rule here is the simpler one of the largest deficit
Equation: step s adds w_i b(s) samples to the deficit of part i, with w_i in the middle of the step; of its b(s) samples
    every part gets its deficit, rounded down, and the parts with the largest rests get one more

    weights  0.7 0.3, 4 samples a step       short 2.8 1.2 -> 3 1,  short 2.6 1.4 -> 3 1,  short 2.4 1.6 -> 2 2, ...

The numbers of a part thus never stray from the integral of its weights by more than about a sample, whatever the
weights do: nothing is left to chance, and no seed has more of a part than another.

Each part has an order of its own: its samples come in a random permutation, and then in a new one. A step's samples
are a function of (seed, step) and of the options alone, so a resumed run needs no state, and processes and
micro-batches take disjoint parts of one batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

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
        shares = [tuple(weight / sum(row) for weight in row) for row in self.weights]
        after = bisect_right(self.points, share)  # the first point behind `share`
        if after == 0:
            return shares[0]
        if after == len(self.points):
            return shares[-1]
        low, high = self.points[after - 1], self.points[after]
        progress = (share - low) / (high - low)
        return tuple(a + (b - a) * progress for a, b in zip(shares[after - 1], shares[after], strict=True))


def apportioned(short: Sequence[float], weights: Sequence[float], count: int) -> list[int]:
    """Return how many of `count` samples each part gets, at least 0, by the largest deficit.

    short: the deficit of each part, of sum `count`; a part of weight 0 gets no sample that another one can take
    """
    counts = [int(max(0.0, deficit)) for deficit in short]
    parts = range(len(counts))
    while sum(counts) < count:
        number = max(parts, key=lambda i: (weights[i] > 0, short[i] - counts[i]))
        counts[number] += 1
    # More than `count` are given where a deficit is negative, because another part's weight has grown.
    while sum(counts) > count:
        number = max((i for i in parts if counts[i]), key=lambda i: counts[i] - short[i])
        counts[number] -= 1
    return counts


class MixedOrder:
    """The samples of each step of a run.

    samples: their number in each step; curve: the weights of the parts
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
        drawn = []
        for part, (start, stop) in enumerate(zip(before, after, strict=True)):
            drawn.append(self._drawn(part, torch.arange(start, stop)))
        order = torch.cat(drawn)
        generator = torch.Generator().manual_seed(mix("slots", self.seed, step))
        return order[torch.randperm(len(order), generator=generator)]

    def drawn(self, steps: int) -> dict[str, int]:
        """Return how many samples of each part the first `steps` steps take."""
        return dict(zip(self.split.parts, self._until(steps), strict=True))

    def _until(self, step: int) -> array[int]:
        """Return the number of samples of each part before step number `step`."""
        parts = len(self._short)
        for number in range(len(self._before) // parts - 1, step):
            weights = self.curve.at((number + 0.5) / self.total)
            count = self.samples(number)
            short = [left + count * weight for left, weight in zip(self._short, weights, strict=True)]
            counts = apportioned(short, weights, count)
            self._short = [left - taken for left, taken in zip(short, counts, strict=True)]
            self._before.extend(old + new for old, new in zip(self._before[-parts:], counts, strict=True))
        return self._before[step * parts : (step + 1) * parts]

    def _drawn(self, part: int, numbers: Tensor) -> Tensor:
        """Return the samples of a part by their `numbers` (n,), counted from the start of the run."""
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
        """Return a permutation (count,) of an epoch. Two epochs of each part are kept: a step may span both."""
        if (part, epoch) not in self._permutations:
            for other in list(self._permutations):
                if other[0] == part and other[1] != epoch - 1:
                    del self._permutations[other]
            self._permutations[part, epoch] = torch.randperm(count, generator=torch.Generator().manual_seed(key))
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

        multiple: divides the number of sequences of each part, so that several factors have the same ones; None is
            `factor`. Raises ValueError where a part has fewer.
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
            slots = ((part == number) & (epochs == epoch)).nonzero()[:, 0]
            chosen.append(slots)
            part_key = None if key is None else mix("turn", key, epoch)
            batches.append(self.parts[names[number]].batch(local[slots], part_key))
        batch = batches[0]
        if len(batches) > 1:
            batch = _concatenated(batches, torch.cat(chosen).argsort())
        return replace(batch, slice=part, number=local if key is None else None)

    def _part_of(self, order: Tensor) -> Tensor:
        return torch.searchsorted(torch.tensor([*self.starts[1:], len(self)]), order, right=True)

    def _bytes_per_token(self) -> float | None:
        num_bytes, num_targets = [], []
        for part in self.parts.values():
            bytes_per_token = getattr(part, "bytes_per_token", None)
            if bytes_per_token is None:
                return None
            targets = float((_lengths(part, self.context) - 1).sum())
            num_bytes.append(targets * bytes_per_token)
            num_targets.append(targets)
        return sum(num_bytes) / sum(num_targets)


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
    """Return the items of each sample of a part (n,), with the last token of a text, which is a target only."""
    lengths = part.lengths if isinstance(part, HasLengths) else None
    if lengths is not None:
        return lengths
    is_text = hasattr(part, "bytes_per_token")
    return torch.full((len(part),), context + 1 if is_text else context)


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Return tensors one after the other; None where one is missing."""
    present = []
    for part in parts:
        if part is None:
            return None
        present.append(part)
    return torch.cat(present)


def _concatenated(batches: Sequence[Batch], order: Tensor) -> Batch:
    """Return batches of several parts as one, padded to the longest, its samples in `order` (B,)."""
    widths = [batch.inputs.shape[1] for batch in batches]
    padded = any(batch.lengths is not None for batch in batches) or len(set(widths)) > 1
    assert all(batch.source is None and batch.pairs is None and batch.hidden is None for batch in batches)

    def joined(name: str, padding: float) -> Tensor | None:
        tensors = [getattr(batch, name) for batch in batches]
        if all(tensor is None for tensor in tensors):
            return None
        assert all(tensor is not None for tensor in tensors), name
        if padded and tensors[0].ndim > 1:
            after = (0, 0) * (tensors[0].ndim - 2)  # the axes behind the tokens stay
            tensors = [F.pad(tensor, (*after, 0, max(widths) - tensor.shape[1]), value=padding) for tensor in tensors]
        return torch.cat(tensors)[order]

    lengths = None
    if padded:
        parts = []
        for batch, width in zip(batches, widths, strict=True):
            parts.append(torch.full((len(batch),), width) if batch.lengths is None else batch.lengths)
        lengths = torch.cat(parts)[order]
    inputs = joined("inputs", 0)
    assert inputs is not None
    return Batch(inputs, joined("target", Batch.ignore), lengths=lengths, segment=joined("segment", 0))
