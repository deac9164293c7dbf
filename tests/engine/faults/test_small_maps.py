"""Gradients of convolutions whose map is smaller than their kernel, on a CPU in bf16."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from blockyard.engine.faults.small_maps import _reads_all, guard_small_maps


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_weights_that_only_meet_padding_have_no_gradient(size: int, padding: int | str) -> None:
    kernel, stride = (1 if padding == "valid" else 3), (1 if isinstance(padding, str) else 2)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, kernel, stride, padding)
    guarded = copy.deepcopy(nn.Sequential(conv))
    guard_small_maps(guarded)
    guarded = copy.deepcopy(guarded)  # as averages of weights do
    image = torch.randn(32, 64, size, size).bfloat16().float()
    conv(image).sum().backward()
    for fill in (float("nan"), 1e4, float("inf")):
        _dirty_memory(conv.weight.numel(), fill)
        guarded.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = guarded(image)
        assert output.dtype == torch.bfloat16
        output.sum().backward()
        gradient = guarded[0].weight.grad
        assert gradient is not None
        assert conv.weight.grad is not None
        # A sum of n products of size 1 is about sqrt(n); CPUs without bf16 of their own round its parts to bf16 too.
        terms = output.numel() / output.shape[1]
        torch.testing.assert_close(gradient, conv.weight.grad, rtol=0.02, atol=8 * 2**-8 * terms**0.5)


def test_the_offsets_that_meet_an_input() -> None:
    """Against a convolution of ones with each kernel of a single one."""
    for size, kernel, stride, padding, dilation in [
        (s, k, t, p, d) for s in range(1, 8) for k in (1, 2, 3, 5) for t in (1, 2, 3) for p in range(k) for d in (1, 2)
    ]:
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        kernels, ones = torch.eye(kernel)[:, None], torch.ones(1, 1, size)
        sums = nn.functional.conv1d(ones, kernels, stride=stride, padding=padding, dilation=dilation).sum(-1)
        assert _reads_all(size, kernel, stride, padding, dilation) == bool((sums > 0).all())


def test_without_autocast_nothing_is_computed_again() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    guard_small_maps(conv)
    image = torch.randn(2, 4, 1, 1)
    output = conv(image)
    torch.testing.assert_close(output, conv._conv_forward(image, conv.weight, conv.bias), rtol=0, atol=0)


def _dirty_memory(count: int, fill: float) -> None:
    """Leave a value in the memory that the allocator gives next."""
    blocks = [torch.full((count,), fill, dtype=dtype) for dtype in (torch.bfloat16, torch.float32) for _ in range(8)]
    del blocks
