"""How close two implementations of the same formula have to be.

Two ways to add up the same numbers differ in rounding, and how much depends on the CPU: its vector instructions decide
the order of the sums. So implementations are compared in float64, where that order is far below any mistake, and a
tolerance is never what one machine happened to print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Both sides compute in float64 throughout.
FLOAT64 = {"rtol": 1e-9, "atol": 1e-9}
# Both sides are in float64, but single steps are in float32: the library casts norms, softmax or angles of rotations,
# or an import adds up weights. Each rounds by 6e-8 of its values once, whatever the length of any sum, and a few dozen
# such steps follow each other.
FLOAT32_STEPS = {"rtol": 1e-5, "atol": 1e-5}


def float32(terms: int, layers: int = 1, size: float = 1.0) -> dict[str, float]:
    """Return the tolerance of a comparison in float32, for outputs of at most `size`.

    A sum of n terms of random sign is off by about sqrt(n) roundings of 6e-8 of its terms' size; `layers` such sums
    follow each other. The factor of 16 covers unlucky signs, terms larger than their sum, and what is between sums.

    terms: the longest sum, such as the width of the model
    layers: how many sums follow each other
    """
    relative = 16 * layers * terms**0.5 * torch.finfo(torch.float32).eps / 2
    return {"rtol": relative, "atol": relative * size}


def double(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model with every floating-point tensor in float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
