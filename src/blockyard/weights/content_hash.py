"""The hash of tensors by name: the same for the same weights, whatever file they lie in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def content_hash(tensors: Mapping[str, Tensor], more: Iterable[bytes] = ()) -> str:
    """Returns the SHA-256, in hex, of names, types, shapes and values, in the order of the names.

    more: further content that belongs to the tensors
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for content in more:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
