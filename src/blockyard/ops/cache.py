"""Keys and values of the tokens so far, for decoding piece by piece."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Seq


class KVCache:
    """Keys and values of one layer, with the facts of their tokens.

    Storage is taken on the first append, with that call's type and device, and doubles when it is
    full. It is for inference: no gradient flows through what is stored.
    """

    def __init__(self, batch_size: int, kv_heads: int, head_dim: int) -> None:
        self.batch_size, self.kv_heads, self.head_dim = batch_size, kv_heads, head_dim
        self.length = 0  # tokens stored, prefix included
        self.seq: Seq | None = None
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def bytes(self) -> int:
        """What the stored keys and values fill; the head room of the storage is not counted."""
        if self._k is None:
            return 0
        each = self.batch_size * self.kv_heads * self.length * self.head_dim * self._k.element_size()
        return 2 * each

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Store k, v (B, H', N, K) of the new tokens; all keys, all values, and their facts.

        Raises ValueError for a batch of another size, and for tokens that do not follow the stored.
        """
        wanted = (self.batch_size, self.kv_heads, len(seq), self.head_dim)
        if tuple(k.shape) != wanted:
            raise ValueError(f"the cache takes keys of shape {wanted}, not {tuple(k.shape)}")
        if self.length and seq.num_prefix:
            raise ValueError("a prefix can only be the first thing in a cache")
        end = self.length + len(seq)
        self._reserve(k, end)
        self._k[:, :, self.length : end] = k.detach()
        self._v[:, :, self.length : end] = v.detach()
        self.length = end
        self.seq = seq if self.seq is None else _follow(self.seq, seq, self.batch_size)
        return self._k[:, :, :end], self._v[:, :, :end], self.seq  # 2 x (B, H', M, K)

    def _reserve(self, like: Tensor, end: int) -> None:
        capacity = 0 if self._k is None else self._k.shape[2]
        if end <= capacity:
            return
        shape = (self.batch_size, self.kv_heads, max(64, 2 * capacity, end), self.head_dim)
        k, v = like.new_empty(shape), like.new_empty(shape)
        if self._k is not None:
            k[:, :, : self.length] = self._k[:, :, : self.length]
            v[:, :, : self.length] = self._v[:, :, : self.length]
        self._k, self._v = k, v


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
