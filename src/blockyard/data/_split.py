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


def nested(target: Tensor, size: int, seed: int) -> Tensor:
    """`size` of the sample numbers of target (n,) int64, ascending; a smaller size is a part of a larger one.

    Samples stand in an order drawn by `seed` in which every class is spread evenly, so that its share of the
    first few is as nearly that of all as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("nested", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    place = torch.empty(len(target), dtype=torch.float64)
    for one in target.unique():
        members = shuffled[target[shuffled] == one]
        start = torch.rand((), generator=generator, dtype=torch.float64)
        place[members] = (torch.arange(len(members), dtype=torch.float64) + start) / len(members)
    return place.argsort(stable=True)[:size].sort().values


def by_size(sizes: Sequence[int], fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Whole documents dealt to parts: a list of document numbers per fraction, then the rest.

    Documents come in an order drawn by `seed`; after its first, a part takes them as long as that
    brings it nearer to its fraction of the total size. The largest document stays in the rest. With
    fewer documents than parts, the rest gets the first and the last parts go without; otherwise
    every part gets one.
    """
    generator = torch.Generator().manual_seed(mix("documents", seed))
    queue = torch.randperm(len(sizes), generator=generator).tolist()
    total = sum(sizes)
    rest = [queue.pop(max(range(len(queue)), key=lambda place: sizes[queue[place]]))] if queue else []
    parts: list[list[int]] = []
    for number, fraction in enumerate(fractions, start=1):
        later = len(fractions) - number  # parts that still need a document each
        part, short = [], fraction * total
        # Taking a document misses the share by |short - size|, stopping misses it by `short`.
        while queue and (not part or (len(queue) > later and sizes[queue[-1]] <= 2 * short)):
            part.append(queue.pop())
            short -= sizes[part[-1]]
        parts.append(sorted(part))
    return [*parts, sorted(rest + queue)]


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
