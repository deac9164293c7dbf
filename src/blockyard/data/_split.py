"""Cutting a data set into parts that never mix."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from blockyard.data._order import mix

Fraction = Annotated[float, Gt(0), Lt(1)]  # of a data set that goes to one part


def stratified(target: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two disjoint sets of sample numbers, (kept, taken), each ascending.

    target: (n,) int64 classes. `taken` holds `fraction` of all samples, drawn by `seed`, and of
    every class as nearly that share as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("split", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    by_class = shuffled[torch.argsort(target[shuffled], stable=True)]
    # Every (1 / fraction)-th of a list sorted by class: exact shares, for any fraction.
    ticks = (torch.arange(len(target) + 1, dtype=torch.float64) * fraction + 1e-9).floor()
    chosen = ticks[1:] > ticks[:-1]
    return by_class[~chosen].sort().values, by_class[chosen].sort().values


def by_size(sizes: Sequence[int], fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Whole documents dealt to parts: a list of document numbers per fraction, then the rest.

    Documents come in an order drawn by `seed`; a part takes them until it holds its fraction of
    the total size. Every part gets at least one document, as long as there are enough.
    """
    generator = torch.Generator().manual_seed(mix("documents", seed))
    queue = torch.randperm(len(sizes), generator=generator).tolist()
    total = sum(sizes)
    parts: list[list[int]] = []
    for fraction in fractions:
        part: list[int] = []
        held = 0
        while queue and (not part or held < fraction * total):
            part.append(queue.pop())
            held += sizes[part[-1]]
        parts.append(sorted(part))
    return [*parts, sorted(queue)]


def sha256(parts: Iterable[Tensor | bytes | str]) -> str:
    """The hex SHA-256 of the contents in turn, each preceded by its length or shape."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().data)
        else:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            digest.update(f"{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()
