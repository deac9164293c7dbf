"""Inputs that the reference tests share: sequences, coordinates, mixers with large weights, models of presets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Seq
from blockyard.weight_init import initialise
from tests.support.helpers import stir

SIZES = ["model.dim=16", "model.depth=2", "model.heads=4", "logger=none"]


def sequence(
    n: int,
    valid: Tensor | None = None,
    segment: Tensor | None = None,
    *,
    start: int = 0,
    position: nn.Module | None = None,
) -> Seq:
    """The `Seq` of n tokens on a line, from index `start` on."""
    index = torch.arange(start, start + n)
    return Seq(index, index.double()[None, :, None], valid, segment, position=position)


def line(n: int) -> Tensor:
    """Coordinates of a line (1, N, 1)."""
    return torch.arange(n, dtype=torch.float64)[None, :, None]


def lattice(rows: int, cols: int) -> Tensor:
    """Coordinates of a grid (1, N, 2)."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(cols)).double()[None]


def stirred(mixer: nn.Module) -> nn.Module:
    """The mixer in float64 with weights large enough to matter."""
    return stir(initialise(mixer, 0)).double()


def preset(*overrides: str, sizes: Sequence[str] = SIZES) -> nn.Module:
    """The model of a preset as `train` builds it, in float64."""
    composed = compose([*sizes, *overrides])
    assert check(composed) == []
    return Components(composed.config).model(0).double().eval()


def images() -> Tensor:
    """Images (2, 1, 8, 8)."""
    return torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
