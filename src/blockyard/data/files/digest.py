"""The hash of contents, by which data is recognized."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor


def sha256(contents: Iterable[Tensor | bytes | str]) -> str:
    """Return the hex SHA-256 of the contents in order, each preceded by its length or shape."""
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, Tensor):
            digest.update(f"{content.dtype}{tuple(content.shape)}".encode())
            digest.update(content.contiguous().numpy().data)
        else:
            data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            digest.update(f"{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()
