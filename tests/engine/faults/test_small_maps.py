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
    expected, tolerance = _gradient_and_bound(conv, image)
    for fill in (float("nan"), 1e4, float("inf")):
        _dirty_memory(conv.weight.numel(), fill)
        guarded.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = guarded(image)
        assert output.dtype == torch.bfloat16
        output.sum().backward()
        gradient = guarded[0].weight.grad
        assert isinstance(gradient, torch.Tensor)
        assert _within(gradient, expected, tolerance)


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 1e4, "3 %"])
def test_the_bound_catches_a_planted_error(fault: float | str) -> None:
    """A value out of memory, and a relative error of 3 % of the largest gradient of a small map."""
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, 2, 1)
    expected, tolerance = _gradient_and_bound(conv, torch.randn(32, 64, 1, 1).bfloat16().float())
    gradient = expected.float()
    assert _within(gradient, expected, tolerance)
    largest = int(gradient.abs().argmax())
    gradient.view(-1)[largest] = gradient.view(-1)[largest] * 1.03 if isinstance(fault, str) else fault
    assert not _within(gradient, expected, tolerance)


def test_the_bound_catches_a_planted_share_where_nothing_is_guarded() -> None:
    """A gradient that is 2 % too large everywhere, which is within the bound of each value alone."""
    torch.manual_seed(0)
    expected, tolerance = _gradient_and_bound(
        nn.Conv2d(64, 64, 3, 1, "same"), torch.randn(32, 64, 9, 9).bfloat16().float()
    )
    assert bool(((0.02 * expected).abs() <= tolerance).all())
    assert not _within((1.02 * expected).float(), expected, tolerance)


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


def _gradient_and_bound(conv: nn.Conv2d, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of the sum of a convolution's output by its weights in float64, and the error allowed.

    The gradient is a sum of inputs, exact in bf16, times ones: no product rounds. Sums of n terms in float32 err by at
    most n * 2**-24 of the sum of sizes. A convolution of maps that are not small runs in bf16, whose unit roundoff is
    2**-8: the result is rounded to bf16 once, and CPUs without bf16 of their own may round partial sums once before
    that. Together this is at most twice 2**-8 of the sum of sizes. What the guard computes is not rounded to bf16.
    """
    gradients = []
    for values in (image.double(), image.double().abs()):
        exact = copy.deepcopy(conv).double().bfloat16().double()
        output = exact(values)
        output.sum().backward()
        assert exact.weight.grad is not None
        gradients.append(exact.weight.grad)
    terms = output.numel() / output.shape[1]
    in_bf16 = _meets_all(conv, image.shape[-1])
    return gradients[0], gradients[1] * (terms * 2**-24 + (2 * 2**-8 if in_bf16 else 0))


def _meets_all(conv: nn.Conv2d, size: int) -> bool:
    kernel, padding = conv.kernel_size[0], conv.padding
    before = (kernel - 1) // 2 if isinstance(padding, str) else padding[0]
    return _reads_all(size, kernel, conv.stride[0], before, 1)


def _within(gradient: torch.Tensor, expected: torch.Tensor, tolerance: torch.Tensor) -> bool:
    """Whether each value is within its bound, and all of them together within that of two roundings to bf16.

    The bound of a single value is for the worst case, in which all roundings have one sign. Over thousands of values
    they do not: each of the two roundings moves the gradient by at most 2**-8 of its length, as partial sums of
    independent inputs are together as long as their sum.
    """
    error = gradient.double() - expected
    return bool((error.abs() <= tolerance).all()) and bool(error.norm() <= 2 * 2**-8 * expected.norm())
