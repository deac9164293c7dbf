"""Convolutions of maps that are smaller than their kernel, in float32 where a CPU would compute them in bf16.

The gradient of a weight that only ever meets the padding is zero. For a 3 x 3 convolution of a 1 x 1 map in bf16, as
the last stage of a residual network sees in small images, oneDNN leaves that part of the gradient unwritten: old
content of the memory comes out, often inf or nan, another value in each run. Seen with torch 2.14.1 and AVX-512, at a
stride of 2. A stride of 1, as in the convolution of blockyard.token_mixer, was right in every case tried.

Goes with the first release after torch 2.14 (written for 2.14.1, November 2026) with which
tests/engine/faults/test_small_maps.py passes without the hook.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LOW = (torch.bfloat16, torch.float16)


def guard_small_maps(model: nn.Module) -> None:
    """Have the convolutions of a model that trains on a CPU compute such maps in float32."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.padding_mode == "zeros":
            module.register_forward_hook(_computed_again)


def _computed_again(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """(B, C, *sizes) -> (B, D, *sizes): the output, of a small map through float32."""
    image = inputs[0]
    # Without a gradient there is nothing to spoil: outputs are right, also in bf16.
    if output.dtype not in _LOW or output.device.type != "cpu" or not torch.is_grad_enabled():
        return output
    if all(map(_reads_all, image.shape[2:], module.kernel_size, module.stride, _padding(module), module.dilation)):
        return output
    with torch.autocast("cpu", enabled=False):
        bias = None if module.bias is None else module.bias.float()
        return module._conv_forward(image.float(), module.weight.float(), bias).to(output.dtype)


def _padding(module: Any) -> tuple[int, ...]:
    """Zeros before each axis, where padding may be the word "same" or "valid"."""
    if module.padding == "valid":
        return (0,) * len(module.kernel_size)
    if module.padding == "same":
        axes = zip(module.dilation, module.kernel_size, strict=True)
        return tuple(dilation * (kernel - 1) // 2 for dilation, kernel in axes)
    return tuple(module.padding)


def _reads_all(size: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Return whether every offset of a kernel meets the input at some output."""
    reach = dilation * (kernel - 1) + 1
    if size >= reach + stride - 1:  # one output reads nothing but the input
        return True
    starts = range(-padding, size + padding - reach + 1, stride)
    return all(any(0 <= start + dilation * index < size for start in starts) for index in range(kernel))
