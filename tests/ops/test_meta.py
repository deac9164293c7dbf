"""Operations on the meta device without the compiler: the same shapes, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys, torch
from blockyard.ops.meta import DYNAMO, SHAPES, SYMPY, without_compiler
NAMES = (DYNAMO, SHAPES, SYMPY)
"""


def run(code: str) -> list[str]:
    """The lines that a process prints which has not imported the compiler yet."""
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.full
def test_a_forward_pass_on_the_meta_device_imports_no_compiler() -> None:
    code = """
from blockyard.ops.flops import counter
with without_compiler(), torch.device("meta"), counter() as counted:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    out = layer(torch.arange(80.0).view(2, 5, 8) / 3)
print(tuple(out.shape), counted.get_total_flops() > 0)
print([name for name in NAMES if name in sys.modules])
with torch.device("meta"):
    print(tuple((torch.arange(6) * 2.0).shape))
print([name for name in NAMES if name in sys.modules] == list(NAMES), sys.modules[DYNAMO].__file__ is not None)
"""
    assert run(code) == ["(2, 5, 8) True", "[]", "(6,)", "True True"]


@pytest.mark.full
def test_whoever_needs_the_compiler_gets_it() -> None:
    code = """
with without_compiler():
    import sympy, torch._dynamo
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false, sym_eq
    print(sym_eq((1, 2), torch.Size([1, 2])), guard_or_false(False))
    print(sympy.Symbol("n") + 1, torch._dynamo.config.__name__, sympy.__version__ == sys.modules[SYMPY].__version__)
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    print(compiled(torch.ones(2)).tolist())
print(ShapeEnv.__name__, sys.modules[SYMPY].__file__ is not None)
"""
    expected = ["True False", "n + 1 torch._dynamo.config True", "[3.0, 3.0]", "ShapeEnv True"]
    assert run(code) == expected


@pytest.mark.full
def test_a_compiler_that_is_imported_already_stays() -> None:
    code = """
import torch._dynamo
before = [sys.modules[name] for name in NAMES]
with without_compiler():
    print([sys.modules[name] for name in NAMES] == before)
print([sys.modules[name] for name in NAMES] == before)
"""
    assert run(code) == ["True", "True"]


@pytest.mark.full
def test_flops_are_counted_without_triton() -> None:
    """The type of Triton's functions is Triton's own once it is imported."""
    code = """
from blockyard.ops.flops import counter
with without_compiler(), torch.device("meta"), counter() as counted:
    torch.ones(2, 3) @ torch.ones(3, 4)
print(counted.get_total_flops(), [name for name in sys.modules if name.partition(".")[0] == "triton"])
from torch.utils.flop_counter import _JITFunction
print(isinstance(counter, _JITFunction))
try:
    from triton.runtime.jit import JITFunction
except ImportError:
    print("True False")
else:
    print(isinstance(object.__new__(JITFunction), _JITFunction), isinstance(counter, _JITFunction))
"""
    assert run(code) == ["48 []", "False", "True False"]
