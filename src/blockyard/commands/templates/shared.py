"""The beginnings of the files that `blockyard new` writes."""

from __future__ import annotations

from typing import NamedTuple

HEAD = '''"""NAME: what it does, in one sentence.

Source: the paper, with its arXiv number and the equation
Reference: an independent implementation, if there is one
Equation: what it computes
Cost: time and parameters
"""

from __future__ import annotations

'''
YAML = """# What it is, in one line. Defaults stand in the signature; below, only what differs from them.
_target_: PACKAGE.NAME.CLASS
_partial_: true
"""
# Of what is built from its options alone.
PLAN_YAML = """# What it is, in one line. Defaults stand in the signature; below, only what differs from them.
_target_: PACKAGE.NAME.CLASS
"""
TEST_HEAD = '''"""NAME against a formula that is written independently; replace both."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.verify import small_model
from PACKAGE.NAME import CLASS

CHOICE = ["FAMILY=NAME", "allow=[PACKAGE]"BESIDE]


def component(causal: bool = False) -> CLASS:
    """The first one in a small model of width 16, in float64."""
    model = small_model(CHOICE, ["CONF"], causal=causal)
    return next(module for module in model.modules() if isinstance(module, CLASS))


def tokens() -> tuple[torch.Tensor, Seq]:
    """Two sequences of six tokens, and their facts."""
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, Seq(index=torch.arange(6), coords=torch.arange(6.0)[None, :, None])


'''

PLAN_TEST_HEAD = '''"""NAME against a formula that is written independently; replace both."""

from __future__ import annotations

'''


class Template(NamedTuple):
    """The files of one family. In each text FAMILY, NAME, CLASS, PACKAGE and CONF stand for what was asked for.

    component: the Python file; test: what its test does after the imports of `test_head`; yaml: the choice
    beside: overrides that a run of the component needs, as the command that is proposed writes them
    verified: whether `blockyard verify` holds it to what it declares
    bug: what a passage of the component is replaced by for its test to fail
    """

    component: str
    test: str
    bug: tuple[str, str]
    yaml: str = YAML
    test_head: str = TEST_HEAD
    beside: tuple[str, ...] = ()
    verified: bool = False
