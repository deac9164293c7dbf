"""A FLOP counter that also counts the CPU's flash kernel, recurrent cells, Fourier transforms and grouped convolutions.

Source: torch.utils.flop_counter, two FLOPs per multiply-add of every matmul, convolution and attention, and
5 n log2 n for a Fourier transform of n numbers (half of it for real ones), as FFTW reports it. Elementwise work is not
counted, and a causal sequence counts like a full one. Each gradient of a convolution takes as many as the convolution
itself, whatever its groups.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

# torch.utils.flop_counter is imported by the first count: plans and checks import this module and seldom count.

_aten = torch.ops.aten
_TRITON = "triton.runtime.jit"
_COUNTS_COMPILED: ContextVar[bool] = ContextVar("counts_compiled", default=False)


def counter() -> FlopCounterMode:
    """Return torch's counter with formulas for operations that it lacks or miscounts.

    It lacks the CPU's flash kernel, fused recurrent cells and Fourier transforms. It counts gradients of grouped
    convolutions as of plain ones.
    """
    with _without_triton():
        from torch.utils.flop_counter import FlopCounterMode

    formulas = {
        _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        _aten.mkldnn_rnn_layer: _recurrent,
        _aten.mkldnn_rnn_layer_backward: _recurrent_backward,
        _aten._cudnn_rnn: _recurrent,
        _aten._cudnn_rnn_backward: _recurrent_backward,
        _aten._fft_c2c: _fourier,
        _aten._fft_r2c: _real_fourier,
        _aten._fft_c2r: _real_fourier,
        _aten.convolution_backward: _convolution_backward,
    }
    return FlopCounterMode(display=False, custom_mapping=formulas)


class _TypeOfFunctions(type):
    """Compares objects with Triton's functions, of which there are none until Triton is imported."""

    def __instancecheck__(cls, value: object) -> bool:
        module = sys.modules.get(_TRITON)
        if module is None or module.JITFunction is cls:
            return False
        return isinstance(value, module.JITFunction)


class _JITFunction(metaclass=_TypeOfFunctions):
    pass


@contextmanager
def _without_triton() -> Iterator[None]:
    """Import torch.utils.flop_counter inside without Triton, which takes 75 MiB.

    It imports Triton for the type of its functions alone, to which a user may give formulas of their own.
    """
    if _TRITON in sys.modules:
        yield
        return
    stand_in = ModuleType(_TRITON)
    stand_in.__dict__["JITFunction"] = _JITFunction
    sys.modules[_TRITON] = stand_in
    try:
        yield
    finally:
        del sys.modules[_TRITON]


@contextmanager
def counted_as(*, compiled: bool) -> Iterator[None]:
    """Let `fixed_shapes` answer as in a compiled block inside this context, if `compiled`, to count its FLOPs.

    A block cannot be counted while it is compiled: torch compiles nothing under its counter.
    """
    token = _COUNTS_COMPILED.set(compiled)
    try:
        yield
    finally:
        _COUNTS_COMPILED.reset(token)


def fixed_shapes() -> bool:
    """Return whether shapes may not depend on the data: in a compiled block, or while FLOPs are counted as of one."""
    return torch.compiler.is_compiling() or _COUNTS_COMPILED.get()


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    from torch.utils.flop_counter import sdpa_flop_count

    # Several heads read the same keys; the work is that of one set of keys for each head.
    heads = query[1]
    return sdpa_flop_count(query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:]))


def _attention_backward(_grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    # The scores once more, then the gradients of values, scores, queries and keys: five matmuls, where the
    # forward pass has two.
    return _attention(query, key, value) * 5 // 2


def _convolution_backward(
    grad: Any,
    inputs: Any,
    weight: Any,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: Any,
    needs_gradient: Any,
    *_: Any,
    **__: Any,
) -> int:
    from torch.utils.flop_counter import conv_flop_count

    # Each gradient takes one product for every product of an input and a weight; the shape of the weight already
    # has the channels of one group. `needs_gradient` is for the input, the weight and the bias.
    return conv_flop_count(inputs, weight, grad, transposed=transposed) * sum(map(bool, needs_gradient[:2]))


def _fourier(inputs: Any, dims: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    # One side of a real transform holds half of the numbers; the other side has the full length.
    full = max(inputs, out_shape, key=math.prod)
    length = math.prod(full[dim] for dim in dims)
    return round(5 * math.prod(full) * math.log2(max(2, length)))


def _real_fourier(*args: Any, **named: Any) -> int:
    return _fourier(*args, **named) // 2


def _recurrent(inputs: Any, weight: Any, other: Any = None, *_: Any, **__: Any) -> int:
    # The two matrices are separate arguments (CPU) or in a list with the biases (cuDNN); each token takes both.
    matrices = [weight, other]
    if not isinstance(weight, torch.Size):
        matrices = [shape for shape in weight if len(shape) == 2]
    return 2 * math.prod(inputs[:-1]) * sum(map(math.prod, matrices))


def _recurrent_backward(*args: Any, **named: Any) -> int:
    return 2 * _recurrent(*args, **named)
