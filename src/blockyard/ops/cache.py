"""Keys and values of the tokens so far, for decoding piece by piece.

Every cache, of whatever mixer, has `bytes` (what it fills) and `reorder(order)` (rows of the batch, by
number: what a beam search does to its rows). Its `kind` says in words what it keeps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Seq


class KVCache:
    """Keys and values of one layer, with the facts of their tokens.

    Storage is taken on the first append, with that call's type and device, and doubles when it is
    full. It is for inference: no gradient flows through what is stored. Pieces follow each other
    without a gap. `value_dim` None means values as wide as keys.
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
        """What the stored keys and values fill; the head room of the storage is not counted."""
        if self._k is None or self._v is None or self.seq is None:
            return 0
        each = self.head_dim * self._k.element_size() + self.value_dim * self._v.element_size()
        return each * self.batch_size * self.kv_heads * len(self.seq)

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Store k (B, H', N, K), v (B, H', N, values' width); all keys, all values, and their facts.

        Raises ValueError for a batch of another size, and for tokens that do not follow the stored.
        """
        self._check(k, v, seq)
        end = self.length + len(seq)
        self._reserve(k, v, end)
        self._k[:, :, self.length : end] = k.detach()
        self._v[:, :, self.length : end] = v.detach()
        self.length = end
        self.seq = seq if self.seq is None else _follow(self.seq, seq, self.batch_size)
        return self._k[:, :, :end], self._v[:, :, :end], self.seq  # 2 x (B, H', M, ...)

    def reorder(self, order: Tensor) -> None:
        """Row i becomes what row order[i] was; order (B',) int64 may repeat rows, drop some, or add to them."""
        self.batch_size = len(order)
        if self._k is None or self._v is None or self.seq is None:
            return
        self._k, self._v = self._k.index_select(0, order), self._v.index_select(0, order)
        self.seq = _rows(self.seq, order)

    def _check(self, k: Tensor, v: Tensor, seq: Seq) -> None:
        for name, given, width in (("keys", k, self.head_dim), ("values", v, self.value_dim)):
            wanted = (self.batch_size, self.kv_heads, len(seq), width)
            if tuple(given.shape) != wanted:
                raise ValueError(f"the cache takes {name} of shape {wanted}, not {tuple(given.shape)}")
        if self.length and seq.num_prefix:
            raise ValueError("a prefix can only be the first thing in a cache")

    def _reserve(self, k: Tensor, v: Tensor, end: int) -> None:
        capacity = 0 if self._k is None else self._k.shape[2]
        if end <= capacity:
            return
        places = max(64, 2 * capacity, end)
        more_k = k.new_empty((self.batch_size, self.kv_heads, places, self.head_dim))
        more_v = v.new_empty((self.batch_size, self.kv_heads, places, self.value_dim))
        if self._k is not None and self._v is not None:
            more_k[:, :, : self.length] = self._k[:, :, : self.length]
            more_v[:, :, : self.length] = self._v[:, :, : self.length]
        self._k, self._v = more_k, more_v


class WindowCache(KVCache):
    """Keeps the prefix and the last `window` - 1 tokens: what the next token can see beside itself."""

    def __init__(
        self, batch_size: int, kv_heads: int, head_dim: int, value_dim: int | None = None, *, window: int
    ) -> None:
        super().__init__(batch_size, kv_heads, head_dim, value_dim)
        self.window = window

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """As `KVCache.append`; gives what any of the new tokens may see, and forgets the rest afterwards."""
        self._check(k, v, seq)
        k, v = k.detach(), v.detach()
        if self._k is not None and self._v is not None and self.seq is not None:
            k, v = torch.cat([self._k, k], dim=2), torch.cat([self._v, v], dim=2)
            seq = _follow(self.seq, seq, self.batch_size)
        self.length += len(seq) - (0 if self.seq is None else len(self.seq))
        # One token after the stored ones sees all of them.
        seq.memo["window"] = len(seq) - seq.num_prefix
        drop = max(0, len(seq) - seq.num_prefix - (self.window - 1))
        self._k, self._v = _cut(k, 2, seq.num_prefix, drop), _cut(v, 2, seq.num_prefix, drop)
        self.seq = _cut_facts(seq, drop)
        return k, v, seq  # 2 x (B, H', M, ...)


def _cut(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    """x without `count` entries from `start` on; a copy, so that what is cut off is freed."""
    if count == 0:
        return x
    rest = x.shape[dim] - start - count
    return torch.cat([x.narrow(dim, 0, start), x.narrow(dim, start + count, rest)], dim=dim)


def _cut_facts(seq: Seq, count: int) -> Seq:
    p = seq.num_prefix
    return Seq(
        index=_cut(seq.index, 0, p, count),
        coords=_cut(seq.coords, 1, p, count),
        valid=None if seq.valid is None else _cut(seq.valid, 1, p, count),
        segment=None if seq.segment is None else _cut(seq.segment, 1, p, count),
        num_prefix=p,
        position=seq.position,
    )


def _rows(seq: Seq, order: Tensor) -> Seq:
    """The facts of the rows `order`."""
    return Seq(
        index=seq.index,
        coords=seq.coords if seq.coords.shape[0] == 1 else seq.coords.index_select(0, order),
        valid=None if seq.valid is None else seq.valid.index_select(0, order),
        segment=None if seq.segment is None else seq.segment.index_select(0, order),
        num_prefix=seq.num_prefix,
        position=seq.position,
    )


def _follow(past: Seq, new: Seq, batch_size: int) -> Seq:
    """The facts of `past` and then `new`. `ends_with` tells the masks that nothing is later."""
    rows = max(past.coords.shape[0], new.coords.shape[0])
    coords = [s.coords.expand(rows, -1, -1) for s in (past, new)]
    joined = Seq(
        index=torch.cat([past.index, new.index]),  # (M,)
        coords=torch.cat(coords, dim=1),  # (B|1, M, A)
        valid=_join(past, new, "valid", True, batch_size),
        segment=_join(past, new, "segment", None, batch_size),
        num_prefix=past.num_prefix,
        position=new.position,
    )
    joined.memo["ends_with"] = new
    return joined


def _join(past: Seq, new: Seq, name: str, missing: bool | None, batch_size: int) -> Tensor | None:
    parts = [getattr(past, name), getattr(new, name)]
    if parts[0] is None and parts[1] is None:
        return None
    if missing is None and (parts[0] is None or parts[1] is None):
        raise ValueError(f"{name} is given for only one of past and new tokens; give it always or never")
    for place, seq in enumerate((past, new)):
        if parts[place] is None:
            parts[place] = torch.full((batch_size, len(seq)), missing, device=seq.index.device)
    return torch.cat(parts, dim=1)  # (B, M)


def cache_bytes(cache: object) -> int:
    """Bytes of keys and values in the cache of a model or of a layer."""
    layers = getattr(cache, "layers", [cache])
    return sum(layer.bytes for layer in layers)
