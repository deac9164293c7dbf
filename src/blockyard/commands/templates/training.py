"""Templates of how a model is trained: optimizers, schedules, callbacks."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, PLAN_TEST_HEAD, PLAN_YAML, Template

OPTIMIZER = Template(
    HEAD
    + '''from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from blockyard.contracts import OptimizerBuilder, Positive


class SignDescent(torch.optim.Optimizer):
    """Steps of one size along the signs of the gradients."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute the loss by the closure, and take a step. The schedule sets the learning rate of each group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(weight.grad.sign(), alpha=group["lr"])
        return loss


class CLASS(OptimizerBuilder):
    """Sign descent.

    Options:
        lr: size of a step at the schedule's factor 1
    """

    def __init__(self, *, lr: Positive = 1e-3) -> None:
        self.lr = lr

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer over every trainable parameter of `model`."""
        return SignDescent([weight for weight in model.parameters() if weight.requires_grad], self.lr)
''',
    """import torch
from torch.testing import assert_close

from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[2.0, -0.5, 0.0]])
    CLASS(lr=0.25).build(model).step()
    assert_close(model.weight.detach() - before, torch.tensor([[-0.25, 0.25, 0.0]]))
""",
    bug=(".grad.sign()", ".grad"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
)

SCHEDULE = Template(
    HEAD
    + '''from blockyard.contracts import Positive, Schedule


class CLASS(Schedule):
    """Polynomial decay to zero.

    Options:
        power: 1 is linear; larger values fall faster at first
    """

    def __init__(self, *, power: Positive = 2.0) -> None:
        self.power = power

    def factor(self, step: int, total: int) -> float:
        """The factor on the learning rate at `step` (from 0) of `total`."""
        return (1 - step / total) ** self.power
''',
    """import pytest

from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    factors = [CLASS(power=2.0).factor(step, 4) for step in range(4)]
    assert factors == pytest.approx([1, 9 / 16, 4 / 16, 1 / 16])
""",
    bug=("** self.power", "* self.power"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
)

CALLBACK = Template(
    HEAD
    + '''from typing import Any, ClassVar

import torch

from blockyard.engine.callbacks.base import RunCallback, RunState


class CLASS(RunCallback):
    """Adds a column `weight_norm`: the norm of all weights together.

    Options:
        name: of the column
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes: no part of a run's identity

    def __init__(self, *, name: str = "weight_norm") -> None:
        self.name = name

    def metrics(self, state: RunState) -> dict[str, Any]:
        """Called when metrics are logged. A scalar on a device may be returned as it is."""
        squares = [weight.detach().double().square().sum() for weight in state.learner.model.parameters()]
        return {self.name: torch.stack(squares).sum().sqrt()}
''',
    """import math
from types import SimpleNamespace

import torch

from PACKAGE.NAME import CLASS


def test_the_formula() -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.data, model.bias.data = torch.tensor([[2.0, 3.0]]), torch.tensor([6.0])
    state = SimpleNamespace(learner=SimpleNamespace(model=model))
    assert math.isclose(CLASS().metrics(state)["weight_norm"], 7.0)
""",
    bug=(".square()", ".abs()"),
    yaml="""# The default callbacks, and this one.
defaults:
  - default
  - _self_
NAME:
  _target_: PACKAGE.NAME.CLASS
""",
    test_head=PLAN_TEST_HEAD,
)
