"""Small configs of objective=restore."""

from __future__ import annotations

from torch import nn

from blockyard.config.build import Components
from tests.support.helpers import stir
from tests.support.tiny import configured

TINY = ("model.dim=16", "model.depth=1", "model.heads=2", "logger=none", "debug=none", "trainer=cpu")
SIDE_BY_SIDE = ("tokenizer=series_patch", "tokenizer.size=8", "tokenizer.stride=8", "tokenizer.pad_end=false")
DIGITS = ("experiment=restore_digits", *TINY)
TASK = ("head=token", "objective=restore", "model=encoder", *TINY)
CO2 = ("data=co2", *SIDE_BY_SIDE, *TASK)


def components(*overrides: str) -> Components:
    """The components of a config."""
    return Components(configured(*overrides)[0])


def stirred(parts: Components) -> nn.Module:
    """A model in float64 whose weights are far from their initial values."""
    return stir(parts.model(0)).double().eval()
