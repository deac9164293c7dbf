"""FLOPs of convolutions, plain, grouped and transposed: of each gradient as many as of the convolution itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils import flop_counter

from blockyard.ops import flops


@pytest.mark.parametrize("wants_input", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Conv1d(12, 12, 3, padding=1),
        lambda: nn.Conv1d(12, 12, 3, padding=1, groups=12),
        lambda: nn.Conv2d(12, 24, 3, stride=2, groups=4),
        lambda: nn.ConvTranspose2d(12, 24, 3, stride=2, groups=4),
    ],
)
def test_each_gradient_of_a_convolution_costs_what_it_does(build: Callable[[], nn.Module], wants_input: bool) -> None:
    """torch's own counter takes the gradients of grouped convolutions for those of plain ones."""
    torch.manual_seed(0)
    for device in ("meta", "cpu"):
        layer = build().to(device)
        x = torch.zeros(2, 12, *(7,) * (layer.weight.ndim - 2), device=device, requires_grad=wants_input)
        with flops.counter() as forward:
            out = layer(x)
        with flops.counter() as backward:
            out.sum().backward()
        positions = x if isinstance(layer, nn.ConvTranspose2d) else out
        assert forward.get_total_flops() == 2 * 2 * layer.weight.numel() * positions[0, 0].numel()
        assert backward.get_total_flops() == (2 if wants_input else 1) * forward.get_total_flops()


def test_torchs_own_count_of_grouped_gradients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "_convolution_backward", inspect.unwrap(flop_counter.conv_backward_flop))
    with pytest.raises(AssertionError):
        test_each_gradient_of_a_convolution_costs_what_it_does(lambda: nn.Conv1d(12, 12, 3, groups=12), True)
