"""Keys and values of the tokens so far, for decoding in several calls.

The cache of every mixer has `bytes`, its size, and `reorder(order)`, which selects sequences of the batch by
number, as a beam search does. Its `kind` names its content.

For speculative decoding a cache can also be taken back: by `crop(count)`, which forgets the last tokens, or by
continuing from a copy that `snapshot()` made. A cache that drops old tokens keeps `spare` more of them, so that it can
be cropped by as many.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Seq


def cut(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    """Return a copy of x without `count` entries from `start` on, so that the memory of the rest is freed."""
    if count == 0:
        return x
    rest = x.shape[dim] - start - count
    return torch.cat([x.narrow(dim, 0, start), x.narrow(dim, start + count, rest)], dim=dim)


def cut_facts(seq: Seq, count: int) -> Seq:
    """Return the facts without the first `count` tokens after the prefix."""
    p = seq.num_prefix
    return Seq(
        index=cut(seq.index, 0, p, count),
        coords=cut(seq.coords, 1, p, count),
        valid=None if seq.valid is None else cut(seq.valid, 1, p, count),
        segment=None if seq.segment is None else cut(seq.segment, 1, p, count),
        num_prefix=p,
        position=seq.position,
    )


def without_last(seq: Seq, count: int) -> Seq:
    """Return the facts without the last `count` tokens."""
    end = len(seq) - count
    return replace(
        seq,
        index=seq.index[:end],
        coords=seq.coords[:, :end],
        valid=None if seq.valid is None else seq.valid[:, :end],
        segment=None if seq.segment is None else seq.segment[:, :end],
        grid=None,
        features=None,
        pairs=None,
        shown=None,  # later tokens see all of these anyway
        ids=None,
        memo={},
    )


def select(seq: Seq, order: Tensor) -> Seq:
    """Return the facts of the sequences `order`."""
    return Seq(
        index=seq.index,
        coords=seq.coords if seq.coords.shape[0] == 1 else seq.coords.index_select(0, order),
        valid=None if seq.valid is None else seq.valid.index_select(0, order),
        segment=None if seq.segment is None else seq.segment.index_select(0, order),
        num_prefix=seq.num_prefix,
        position=seq.position,
    )


def follow(past: Seq, new: Seq, batch_size: int) -> Seq:
    """Return the facts of `past` followed by `new`; layers that keep the same past share them.

    `ends_with` tells the masks that no key is later than `new`.
    """
    shared = new.memo.get("following")
    if shared is not None and shared[0].memo is past.memo and shared[1] == batch_size:
        joined: Seq = shared[2]
        return joined
    batch = max(past.coords.shape[0], new.coords.shape[0])
    coords = [s.coords.expand(batch, -1, -1) for s in (past, new)]
    joined = Seq(
        index=torch.cat([past.index, new.index]),  # (M,)
        coords=torch.cat(coords, dim=1),  # (B|1, M, A)
        valid=_join_valid(past, new, batch_size),
        segment=_join_segments(past, new),
        num_prefix=past.num_prefix,
        position=new.position,
    )
    joined.memo["ends_with"] = new.bare()
    new.memo["following"] = (past, batch_size, joined)
    past.memo.clear()  # the masks of the call before, and through it the facts of every earlier one
    return joined


def _join_valid(past: Seq, new: Seq, batch_size: int) -> Tensor | None:
    """Return True for each real token, (B, M) bool; None if all are."""
    if past.valid is None and new.valid is None:
        return None
    parts = []
    for seq in (past, new):
        all_real = torch.ones((batch_size, len(seq)), dtype=torch.bool, device=seq.index.device)
        parts.append(all_real if seq.valid is None else seq.valid)
    return torch.cat(parts, dim=1)


def _join_segments(past: Seq, new: Seq) -> Tensor | None:
    """Return the segment of each token, (B, M) int64; None without any. Raises ValueError if one side has none."""
    if past.segment is None and new.segment is None:
        return None
    if past.segment is None or new.segment is None:
        raise ValueError("segment is given for only one of past and new tokens; give it always or never")
    return torch.cat([past.segment, new.segment], dim=1)


class KVCache:
    """Keys and values of one layer, with the facts of their tokens.

    Storage is allocated at the first append, with that call's type and device, and doubles when it is
    full. A cache is for inference: no gradient flows through it. The tokens of each call follow those of
    the last one without a gap. `value_dim` None means values as wide as keys.
    """

    kind: ClassVar[str] = "key-value cache"

    def __init__(self, batch_size: int, kv_heads: int, head_dim: int, value_dim: int | None = None) -> None:
        self.batch_size, self.kv_heads, self.head_dim = batch_size, kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.length = 0  # tokens so far, prefix included
        self.seq: Seq | None = None  # the facts of what is stored
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def bytes(self) -> int:
        """The size of the stored keys and values, without the unused part of the storage."""
        if self._k is None or self._v is None or self.seq is None:
            return 0
        per_token = self.head_dim * self._k.element_size() + self.value_dim * self._v.element_size()
        return per_token * self.batch_size * self.kv_heads * len(self.seq)

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Store k (B, H', N, K), v (B, H', N, values' width) and return all keys, all values and their facts.

        Raises ValueError for other shapes than the cache was made for, and for a prefix behind other tokens.
        """
        self._check(k, v, seq)
        end = self.length + len(seq)
        keys, values = self._reserve(k, v, end)
        keys[:, :, self.length : end] = k.detach()
        values[:, :, self.length : end] = v.detach()
        self.length = end
        every = seq if self.seq is None else follow(self.seq, seq, self.batch_size)
        self.seq = every.bare()
        return keys[:, :, :end], values[:, :, :end], every  # 2 x (B, H', M, ...)

    def storage(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the storage of keys and values, with slots for at least `length` tokens.

        For a caller that writes the next token itself and then calls `advance`. Raises ValueError before any token.
        """
        if self._k is None or self._v is None:
            raise ValueError("the cache has no storage before its first token")
        return self._reserve(self._k, self._v, length)

    def advance(self, seq: Seq) -> None:
        """Count the tokens that were written into the storage; seq: the facts of all tokens."""
        self.length, self.seq = len(seq), seq

    def crop(self, count: int) -> None:
        """Forget the last `count` tokens; their storage is used again. Raises ValueError if it has fewer."""
        if count and (self.seq is None or count > len(self.seq) - self.seq.num_prefix):
            raise ValueError(f"the cache has fewer than {count} tokens after the prefix")
        if count and self.seq is not None:
            self.length -= count
            self.seq = without_last(self.seq, count)

    def snapshot(self) -> KVCache:
        """Return the present cache on the same storage: only one of the two can be continued."""
        return copy.copy(self)

    def reorder(self, order: Tensor) -> None:
        """Put the former sequence order[i] at index i; order (B',) int64 may repeat sequences or leave some out."""
        self.batch_size = len(order)
        if self._k is None or self._v is None or self.seq is None:
            return
        self._k, self._v = self._k.index_select(0, order), self._v.index_select(0, order)
        self.seq = select(self.seq, order)

    def _check(self, k: Tensor, v: Tensor, seq: Seq) -> None:
        for name, tensor, width in (("keys", k, self.head_dim), ("values", v, self.value_dim)):
            shape = (self.batch_size, self.kv_heads, len(seq), width)
            if tuple(tensor.shape) != shape:
                raise ValueError(f"the cache takes {name} of shape {shape}, not {tuple(tensor.shape)}")
        if self.length and seq.num_prefix:
            raise ValueError("prefix tokens must be the first in a cache; run the prefix with the first tokens only")

    def _reserve(self, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return the storage of keys and values, enlarged if it has fewer than `end` slots."""
        capacity = 0 if self._k is None else self._k.shape[2]
        if self._k is not None and self._v is not None and end <= capacity:
            return self._k, self._v
        slots = max(64, 2 * capacity, end)
        keys = k.new_empty((self.batch_size, self.kv_heads, slots, self.head_dim))
        values = v.new_empty((self.batch_size, self.kv_heads, slots, self.value_dim))
        if self._k is not None and self._v is not None:
            keys[:, :, : self.length] = self._k[:, :, : self.length]
            values[:, :, : self.length] = self._v[:, :, : self.length]
        self._k, self._v = keys, values
        return keys, values


class WindowCache(KVCache):
    """Keeps the prefix and the last `window` - 1 tokens, which the next token can see besides itself.

    spare: so many tokens more, by which it can be cropped
    """

    def __init__(
        self, batch_size: int, kv_heads: int, head_dim: int, value_dim: int | None = None, *, window: int
    ) -> None:
        super().__init__(batch_size, kv_heads, head_dim, value_dim)
        self.window, self.spare = window, 0

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Append as `KVCache.append`; return all that a new token may see, and keep all that the next one may see."""
        self._check(k, v, seq)
        k, v = k.detach(), v.detach()
        if self._k is not None and self._v is not None and self.seq is not None:
            k, v = torch.cat([self._k, k], dim=2), torch.cat([self._v, v], dim=2)
            seq = follow(self.seq, seq, self.batch_size)
        self.length += len(seq) - (0 if self.seq is None else len(self.seq))
        # A single token after the stored ones sees all of them.
        seq.memo["window"] = len(seq) - seq.num_prefix
        drop = max(0, len(seq) - seq.num_prefix - (self.window - 1) - self.spare)
        self._k, self._v = cut(k, 2, seq.num_prefix, drop), cut(v, 2, seq.num_prefix, drop)
        self.seq = cut_facts(seq, drop)
        return k, v, seq  # 2 x (B, H', M, ...)

    def crop(self, count: int) -> None:
        """Crop as `KVCache.crop`. Raises ValueError if tokens are missing that the next one would see."""
        stored = 0 if self.seq is None else len(self.seq)
        if self.seq is not None and stored < self.length and stored - self.seq.num_prefix - count < self.window - 1:
            raise ValueError(f"the window has dropped tokens that it needs without its last {count}; set spare={count}")
        super().crop(count)
        if count and self._k is not None and self._v is not None:
            self._k, self._v = self._k[:, :, : stored - count], self._v[:, :, : stored - count]


def cache_bytes(cache: object) -> int:
    """Return the bytes that the cache of a model or of a layer holds."""
    layers: list[Any] = getattr(cache, "layers", [cache])
    return sum(layer.bytes for layer in layers)
