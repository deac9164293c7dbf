"""A permutation of more indices than a table in memory should hold, computed index by index.

Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains: the generalized Feistel cipher and cycle walking;
    Luby and Rackoff 1988 for the network of rounds
Equation: an index m < a b is split into L = m mod a and R = m div a; round j replaces (L, R) by (R, L + F_j(R)), the
    sum modulo a in odd rounds and modulo b in even ones

Each round can be undone, so that the rounds permute the a b indices whatever F is. a and b are the square root of the
number of indices, rounded up; the few results that lie beyond the last index are permuted again until none does. F is a
hash with a key of its own in each round, and no cipher: nothing here is secret.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROUNDS = 6  # an even number, after which L is below a again, and R below b
LARGEST = 2**62  # indices


def permuted(indices: Tensor, size: int, key: int) -> Tensor:
    """Returns where a permutation of 0 ... size - 1 sends `indices` (n,) int64; `key` selects the permutation."""
    assert 0 < size <= LARGEST, size
    a = isqrt(size - 1) + 1
    sides = np.uint64(a), np.uint64(-(-size // a))
    keys = _scrambled(np.arange(1, ROUNDS + 1, dtype=np.uint64), np.uint64(key % 2**64))
    result = _rounds(indices.numpy().astype(np.uint64), sides, keys)
    beyond = np.flatnonzero(result >= size)
    while len(beyond):
        result[beyond] = _rounds(result[beyond], sides, keys)
        beyond = beyond[result[beyond] >= size]
    return torch.from_numpy(result.astype(np.int64))


def _rounds(index: Any, sides: tuple[Any, Any], keys: Any) -> Any:
    """The network of rounds on indices (n,) uint64 below the product of the sides (a, b)."""
    left, right = index % sides[0], index // sides[0]
    for number, key in enumerate(keys):
        side = sides[number % 2]
        # The hash is reduced first: a sum beyond 64 bits would not be the sum modulo the side.
        left, right = right, (left + _scrambled(right, key) % side) % side
    return left + right * sides[0]


def _scrambled(values: Any, key: Any) -> Any:
    """Hashes of values (n,) uint64: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = values * np.uint64(0x9E3779B97F4A7C15) + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
