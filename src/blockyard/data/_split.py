"""Cutting a data set into disjoint splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from blockyard.data._order import mix

Fraction = Annotated[float, Gt(0), Lt(1)]  # of a data set that goes to one split


def check_fractions(validation: float, test: float) -> None:
    """Raises ValueError if the validation and test fractions leave nothing for training."""
    if validation + test >= 1:
        raise ValueError(
            f"data.validation_fraction={validation} and data.test_fraction={test} "
            "leave nothing to train on; their sum must be below 1"
        )


def stratified(target: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Splits samples into two disjoint sets of indices, (kept, held_out), each ascending.

    target: (n,) int64 classes. `held_out` holds `fraction` of all samples, drawn by `seed`, and of
    each class that share as nearly as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("split", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    by_class = shuffled[torch.argsort(target[shuffled], stable=True)]
    # Every (1 / fraction)-th entry of a list sorted by class: exact shares for any fraction.
    ticks = (torch.arange(len(target) + 1, dtype=torch.float64) * fraction + 1e-9).floor()
    chosen = ticks[1:] > ticks[:-1]
    return by_class[~chosen].sort().values, by_class[chosen].sort().values


def nested(target: Tensor, size: int, seed: int) -> Tensor:
    """Selects `size` sample indices of target (n,) int64, ascending; a smaller size selects a subset of a larger one.

    `seed` draws an order of the samples in which each class is spread evenly, so that its share of the
    first few is its share of all as nearly as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("nested", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    rank = torch.empty(len(target), dtype=torch.float64)
    for label in target.unique():
        members = shuffled[target[shuffled] == label]
        start = torch.rand((), generator=generator, dtype=torch.float64)
        rank[members] = (torch.arange(len(members), dtype=torch.float64) + start) / len(members)
    return rank.argsort(stable=True)[:size].sort().values


def by_size(sizes: Sequence[int], fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Assigns whole documents to splits; returns a list of document indices per fraction, then the rest.

    Documents come in an order drawn by `seed`. A split takes its first document, and further ones as long
    as each brings it nearer to its fraction of the total size. The largest document stays in the rest. With
    fewer documents than splits, the rest is filled first and the last splits stay empty; otherwise every
    split gets at least one.
    """
    generator = torch.Generator().manual_seed(mix("documents", seed))
    queue = torch.randperm(len(sizes), generator=generator).tolist()
    total = sum(sizes)
    rest = [queue.pop(max(range(len(queue)), key=lambda index: sizes[queue[index]]))] if queue else []
    splits: list[list[int]] = []
    for number, fraction in enumerate(fractions, start=1):
        remaining = len(fractions) - number  # splits that still need a document each
        split: list[int] = []
        short = fraction * total
        # Taking a document misses the share by |short - size|, stopping misses it by `short`.
        while queue and (not split or (len(queue) > remaining and sizes[queue[-1]] <= 2 * short)):
            split.append(queue.pop())
            short -= sizes[split[-1]]
        splits.append(sorted(split))
    return [*splits, sorted(rest + queue)]


def sha256(contents: Iterable[Tensor | bytes | str]) -> str:
    """Returns the hex SHA-256 of the contents in order, each preceded by its length or shape."""
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
