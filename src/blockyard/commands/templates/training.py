"""Templates of how a model is trained: parametrizations, optimizers, schedules, callbacks."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, PLAN_TEST_HEAD, PLAN_YAML, Template

PARAMETRIZATION = Template(
    HEAD
    + '''from typing import ClassVar

from blockyard.contracts import Context, Parametrization, Place, Role, UpdateRule, Width

SHRINKING: frozenset[Role] = frozenset({"hidden", "residual", "output"})  # their inputs grow with the width


class CLASS(Parametrization):
    """The maximal update parametrization without a factor on the logits, for optimizers that step as Adam does.

    Options:
        base_dim: model.dim at which everything is as without a parametrization
    """

    scales: ClassVar[bool] = True

    def __init__(self, *, base_dim: Width = 64) -> None:
        self.base_dim = base_dim

    def width_ratio(self, ctx: Context) -> float:
        """The width of the model over that of the base."""
        return (ctx.stream or ctx.dim) / self.base_dim

    def head_ratio(self, ctx: Context) -> float:
        """The width of a head over that of the base, at equal model.heads."""
        return self.width_ratio(ctx)

    def std(self, role: Role, ctx: Context) -> float:
        """The factor on the initial standard deviation of hidden weights, which is 1 / sqrt(D)."""
        if role in ("hidden", "residual"):
            return 1.0
        return self.width_ratio(ctx) ** (-0.5 if role == "output" else 0.5)

    def factor(self, place: Place, ctx: Context) -> float:
        """The factor on scores, beside 1 / sqrt(K); nothing else has one."""
        return self.head_ratio(ctx) ** -0.5 if place == "scores" else 1.0

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """The factor on the learning rate. Raises ValueError for other optimizers."""
        if rule != "adam":
            raise ValueError(f"parametrization NAME has no rates for the updates of {rule}; use optimizer=adamw")
        return 1 / self.width_ratio(ctx) if role in SHRINKING else 1.0
''',
    """import pytest
from blockyard.config.build import Components
from blockyard.config.compose import compose

CHOICE = ["parametrization=NAME", "allow=[PACKAGE]", "logger=none"]


def test_the_formula() -> None:
    rates, sizes = [], []
    for dim in (64, 256):
        components = Components(compose([*CHOICE, f"model.dim={dim}"], ["CONF"]).config)
        model = components.model(0)
        for name in ("head.proj.weight", "blocks.0.token_mixer.proj_in.weight", "position.table"):
            weight = model.get_parameter(name)
            groups = components.optimizer.build(model).param_groups
            rates.append(next(group["lr"] for group in groups if any(weight is p for p in group["params"])))
            sizes.append(float(weight.detach().std()))
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 0.25e-3, 0.25e-3, 1e-3])
    assert sizes == pytest.approx([1 / 8, 1 / 8, 1 / 8, 1 / 32, 1 / 16, 1 / 8], rel=0.1)
""",
    bug=("return 1 / self.width_ratio(ctx) if", "return 2 / self.width_ratio(ctx) if"),
    yaml=PLAN_YAML,
    test_head=PLAN_TEST_HEAD,
    verified=True,
)

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

    def metrics(self, state: RunState) -> dict[str, torch.Tensor]:
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
