"""Every experiment makes the forward pass and the loss of a step on a GPU that is not there.

Parameters, buffers and batch are fake tensors on `cuda`: they have shape, type and device and no values. A tensor that
is made on another device, and a value that is read back (`.item()`, a mask as an index), raise as they are met, where a
real GPU would fail, or wait for the host. The backward pass asks for a device, and so does the compilation of
FlexAttention, whose uncompiled form runs here. torch's CTC loss has no form for fake tensors; on a GPU it reads the
lengths on the host, which no argument of it avoids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

from blockyard.contracts import Batch
from blockyard.engine.module import Learner
from blockyard.ops import flex
from tests.support.experiment_data import experiments, own_data
from tests.support.learners import learner_and_batch
from tests.support.tiny import TINY


def faked(mode: FakeTensorMode) -> Callable[[Tensor], Tensor]:
    """A function that gives a fake tensor on `cuda` for a tensor, the same one for the same tensor."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            with mode:
                new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
            copies[id(tensor)] = tensor, new
        return copies[id(tensor)][1]

    return fake


def on_cuda(model: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters and buffers; tensors that are neither stay where they are, as `Module.to` leaves them."""
    fake = faked(mode)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake(buffer)


def loss_on_cuda(learner: Learner, batch: Batch) -> Tensor:
    """The loss of a training step in bf16."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    on_cuda(learner.model, mode)
    moved = batch.map(faked(mode))
    with mode, torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        return learner.train().training_step(moved, 0)


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, **_: Any) -> Tensor:
    """The shape of torch's, and its demand that all arguments are on one device."""
    return (log_probs.sum((0, 2)) + targets.sum(1) + input_lengths + target_lengths).float()


@pytest.fixture(autouse=True)
def _without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    monkeypatch.setattr(nn.functional, "ctc_loss", ctc_loss)


@pytest.mark.parametrize("name", list(experiments()))
@pytest.mark.sampled(6)
def test_an_experiment_on_a_fake_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    overrides = own_data(name, tmp_path / "own")
    learner, batch = learner_and_batch([f"experiment={name}", "logger=none", *overrides])
    loss = loss_on_cuda(learner, batch)
    assert loss.shape == ()
    assert loss.device.type == "cuda"


class Planted(nn.Module):
    """A block whose output goes through a function."""

    def __init__(self, inner: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return self.function(self.inner(*arguments, **settings))


KEPT = torch.ones(16)  # as a tensor that a module keeps without registering it


@pytest.mark.parametrize(
    ("function", "raised", "message"),
    [
        (lambda x: x + torch.arange(x.shape[1])[:, None], RuntimeError, "different devices|device.*cpu"),
        (lambda x: x * KEPT, (RuntimeError, AssertionError), "FakeTensor|different devices"),
        (lambda x: x / x.abs().max().item(), DataDependentOutputException, "_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, DataDependentOutputException, "_local_scalar_dense"),
        (lambda x: x + x[x > 0].mean(), DynamicOutputShapeException, "nonzero|index"),
    ],
    ids=["wrong device", "kept on the CPU", "item", "branch", "boolean index"],
)
def test_a_planted_wait_or_device_is_found(
    function: Callable[[Tensor], Tensor], raised: type[Exception], message: str
) -> None:
    learner, batch = learner_and_batch(list(TINY))
    assert loss_on_cuda(learner, batch).device.type == "cuda"
    learner, batch = learner_and_batch(list(TINY))
    learner.model.blocks[0] = Planted(learner.model.blocks[0], function)
    with pytest.raises(raised, match=message):
        loss_on_cuda(learner, batch)
