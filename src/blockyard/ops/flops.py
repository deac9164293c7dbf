"""A FLOP counter that also knows the CPU's flash kernel, recurrent cells, Fourier transforms and grouped convolutions.

Source: torch.utils.flop_counter, two FLOPs per multiply-add of every matmul, convolution and attention, and
5 n log2 n for a Fourier transform of n numbers (half of it for real ones), as FFTW reports it. Elementwise work is not
counted, and a causal sequence counts like a full one. Each gradient of a convolution takes as many as the convolution
itself, whatever its groups.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_flop_count

_aten = torch.ops.aten


def counter() -> FlopCounterMode:
    """torch's counter, with the CPU's flash kernel, fused recurrent cells and Fourier transforms, which its table
    lacks, and with the gradients of grouped convolutions, which it takes for those of plain ones.
    """
    return FlopCounterMode(display=False, custom_mapping=_CPU_FLASH | _RECURRENT | _FOURIER | _CONVOLUTION)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, *_repeated(query, key, value))


def _attention_backward(_grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    # Scores again, then the gradients of values, scores, queries and keys: five matmuls to the two of
    # the forward pass.
    return _attention(query, key, value) * 5 // 2


def _repeated(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    # Grouped keys are read by several heads each: the work is that of as many heads as the queries'.
    heads = query[1]
    return (key[0], heads, *key[2:]), (value[0], heads, *value[2:])


def _convolution_backward(
    grad: Any,
    given: Any,
    weight: Any,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: Any,
    wanted: Any,
    *_: Any,
    **__: Any,
) -> int:
    # Every product of an input and a weight is one of an output's gradient with either; the weight's own shape
    # says how few channels a group reads. Which gradients are asked for: of the input, the weight, the bias.
    return conv_flop_count(given, weight, grad, transposed=transposed) * sum(map(bool, wanted[:2]))


def _fourier(given: Any, dims: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    # Of a real transform one side has only half of the numbers: the other one says how long it is.
    full = max(given, out_shape, key=math.prod)
    return round(5 * math.prod(full) * math.log2(max(2, math.prod(full[dim] for dim in dims))))


def _real_fourier(*args: Any, **named: Any) -> int:
    return _fourier(*args, **named) // 2


def _recurrent(given: Any, weight: Any, other: Any = None, *_: Any, **__: Any) -> int:
    # The two matrices come one by one (CPU) or in a list with the biases (cuDNN); every token meets both.
    matrices = (weight, other) if isinstance(weight, torch.Size) else (each for each in weight if len(each) == 2)
    return 2 * math.prod(given[:-1]) * sum(map(math.prod, matrices))


def _recurrent_backward(*args: Any, **named: Any) -> int:
    return 2 * _recurrent(*args, **named)


_RECURRENT = {
    _aten.mkldnn_rnn_layer: _recurrent,
    _aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    _aten._cudnn_rnn: _recurrent,
    _aten._cudnn_rnn_backward: _recurrent_backward,
}
_CONVOLUTION = {_aten.convolution_backward: _convolution_backward}
_FOURIER = {_aten._fft_c2c: _fourier, _aten._fft_r2c: _real_fourier, _aten._fft_c2r: _real_fourier}
_CPU_FLASH = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
