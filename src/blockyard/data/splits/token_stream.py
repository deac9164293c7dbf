"""Token ids of several shards as one stream, and sequences cut out of such streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.files.token_shards import Shard, beyond, release
from blockyard.data.splits.order import mix, permuted

LARGEST_TABLE = 2**20  # sequences whose order is a table of 8 MiB; that of more is computed index by index
_READ = 1024  # sequences between two releases; a page that is read maps its neighbours too, 64 KiB together


class TokenStream:
    """The ids of shards one after the other, from `start` to `stop`; `vocabulary` bounds them."""

    def __init__(self, shards: Sequence[Shard], start: int, stop: int, vocabulary: int) -> None:
        self.shards, self.start, self.stop, self.vocabulary = list(shards), start, stop, vocabulary
        self.first = np.cumsum([0, *(shard.count for shard in shards)])  # the number of each shard's first id
        self.unreleased = 0

    def __len__(self) -> int:
        return self.stop - self.start

    def until(self, count: int) -> TokenStream:
        """Return the stream of the first `count` ids."""
        return TokenStream(self.shards, self.start, self.start + count, self.vocabulary)

    def read(self, start: Any, length: int) -> Any:
        """Return `length` ids from each `start` (n,) on, int64 (n, length).

        Raises UserError naming the file and the place of an id beyond the vocabulary.
        """
        start = start + self.start
        first = np.searchsorted(self.first, start, side="right") - 1  # the shard of the first id of each
        last = np.searchsorted(self.first, start + length - 1, side="right") - 1
        ids = np.empty((len(start), length), dtype=np.int64)
        for number in np.unique(first[first == last]):
            samples = np.flatnonzero((first == number) & (last == number))
            all_starts = np.lib.stride_tricks.sliding_window_view(self.shards[number].ids, length)
            ids[samples] = all_starts[start[samples] - self.first[number]]
        for row in np.flatnonzero(first != last):
            ids[row] = np.concatenate([part for _, _, part in self._parts(int(start[row]), length)])
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            self._refuse(start, length)
        self.unreleased += len(start)
        # Pages of mapped files count as memory of the process until they are unmapped.
        if self.unreleased >= _READ:
            self.unreleased = 0
            release()
        return ids

    def _parts(self, start: int, length: int) -> list[tuple[Shard, int, Any]]:
        """Return the shards that hold ids from `start` on, the number of the first in each, and the ids."""
        parts = []
        number = int(np.searchsorted(self.first, start, side="right")) - 1
        while length:
            shard = self.shards[number]
            inside = start - int(self.first[number])
            ids = shard.ids[inside : inside + length]
            parts.append((shard, inside, ids))
            start += len(ids)
            length -= len(ids)
            number += 1
        return parts

    def _refuse(self, start: Any, length: int) -> None:
        for first in start:
            for shard, inside, ids in self._parts(int(first), length):
                error = beyond(shard, inside, ids, self.vocabulary)
                if error:
                    raise error


class TokenWindows:
    """Streams cut into sequences of `context` + 1 ids, neighbours sharing one: `texts.Windows` on the disk.

    A stream is a source. With weights, a source has that share of the sequences of an epoch: one that has more of its
    own is drawn from anew in each epoch, without repetition; one that has fewer is read several times.

    keyed: there are too many sequences for a table of their order
    bytes_per_token: of the texts, where it is known
    separator: the id that ends a document, whose tokens then are a segment
    """

    redrawn = False

    def __init__(
        self,
        streams: Sequence[TokenStream],
        context: int,
        *,
        bytes_per_token: float | None = None,
        separator: int | None = None,
        weights: Sequence[float] | None = None,
        sliced: bool = False,
    ) -> None:
        self.streams, self.context, self.separator, self.sliced = list(streams), context, separator, sliced
        self.bytes_per_token = bytes_per_token
        self.counts = [(len(stream) - 1) // context for stream in streams]
        self.weighted = weights is not None
        self.stops = np.cumsum(self.counts if weights is None else _shares(sum(self.counts), weights))
        self.keyed = len(self) > LARGEST_TABLE

    def __len__(self) -> int:
        return int(self.stops[-1])

    def at_length(self, count: int, factor: int, multiple: int | None = None) -> TokenWindows:
        """Return the ids of the first `count` sequences in sequences `factor` times as long.

        multiple: of which the number of sequences of each source is one, so that several factors have the same ids;
            None is `factor`. Raises ValueError where no source has so many sequences.
        """
        multiple = multiple or factor
        streams, context = [], self.context * factor
        for stream, available in zip(self.streams, self.counts, strict=True):
            taken = min(count, available) // multiple * multiple
            if taken:
                streams.append(stream.until(taken * self.context + 1))
            count -= taken
        if not streams:
            raise ValueError(f"no source has {multiple} sequences")
        return TokenWindows(streams, context, bytes_per_token=self.bytes_per_token, separator=self.separator)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, context + 1), and with a separator a segment of that shape, from 0 in each sequence."""
        indices = order.numpy()
        source = np.searchsorted(self.stops, indices, side="right")
        ids = np.empty((len(indices), self.context + 1), dtype=np.int64)
        for number in np.unique(source):
            samples = np.flatnonzero(source == number)
            ids[samples] = self._read(int(number), indices[samples] - (self.stops[number - 1] if number else 0), key)
        inputs = torch.from_numpy(ids)
        batch = Batch(inputs, slice=torch.from_numpy(source) if self.sliced else None)
        if self.separator is not None:
            ends = (inputs == self.separator).long()
            batch.segment = ends.cumsum(1) - ends
        return batch

    def _read(self, source: int, indices: Any, key: int | None) -> Any:
        """Return the ids of sequences of one source. indices: among its sequences of an epoch."""
        stream, count = self.streams[source], self.counts[source]
        if self.weighted:
            passes, indices = np.divmod(indices, count)
            for epoch in np.unique(passes) if key is not None else ():
                samples = np.flatnonzero(passes == epoch)
                source_key = mix("source", key or 0, source, int(epoch))
                drawn = permuted(torch.from_numpy(indices[samples]), count, source_key)
                indices[samples] = drawn.numpy()
        offset = 0 if key is None else key % self.context
        start = np.minimum(indices * self.context + offset, len(stream) - 1 - self.context)
        return stream.read(start, self.context + 1)


def _shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in the ratio of the weights that add up to `total`."""
    stops = [round(total * share) for share in np.cumsum(weights) / sum(weights)]
    return [stop - start for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
