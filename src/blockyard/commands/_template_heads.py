"""The beginnings of the files that `blockyard new` writes."""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """component: the Python file; test: what its test does after the imports."""

    component: str
    test: str


HEAD = '''"""NAME: what it does, in one sentence.

Source: the paper, with its arXiv number and the equation
Reference: an independent implementation, if there is one
Equation: what it computes
Cost: time and parameters
"""

from __future__ import annotations

'''
YAML = """# What it is, in one line. Options that a reader may vary stand below.
_target_: PACKAGE.NAME.CLASS
_partial_: true
"""
TEST_HEAD = '''"""NAME against a formula that is written independently; replace both."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.verify import small_model
from PACKAGE.NAME import CLASS

CHOICE = ["FAMILY=NAME", "allow=[PACKAGE]"]


def component(causal: bool = False) -> CLASS:
    """The first one in a small model of width 16, in float64."""
    model = small_model(CHOICE, ["CONF"], causal=causal)
    return next(module for module in model.modules() if isinstance(module, CLASS))


def tokens() -> tuple[torch.Tensor, Seq]:
    """Two sequences of six tokens, and their facts."""
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, Seq(index=torch.arange(6), coords=torch.arange(6.0)[None, :, None])


'''
