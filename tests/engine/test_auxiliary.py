"""Losses that modules have of their own: added to the loss of a step, logged, and no part of any metric."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Batch, Inputs
from blockyard.engine import cost_card
from blockyard.engine.module import Learner, LearnerSettings, LossMean
from blockyard.evaluate.loop import evaluate
from blockyard.objective.classify import Classify
from blockyard.optimizer.sgd import SGD
from blockyard.schedule.constant import Constant


class Norms(nn.Module):
    """Adds the mean square of what passes through."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.auxiliary = 0.5 * x.square().mean() if self.training else None
        return x


class Model(nn.Module):
    def __init__(self, norms: bool = True) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 4)
        self.norms = nn.Sequential(Norms(), Norms()) if norms else nn.Identity()

    def forward(self, inputs: Inputs) -> Tensor:
        return self.norms(self.proj(inputs.inputs))


class Points:
    def __len__(self) -> int:
        return 6

    def batch(self, order: Tensor, key: int | None) -> Batch:
        inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
        return Batch(inputs[order], order % 4)


def learner(model: nn.Module) -> Learner:
    return Learner(model, Classify(), SGD(lr=0.1), Constant(), LearnerSettings(total=2))


def test_auxiliary_losses_of_all_modules_are_added_to_the_loss_alone() -> None:
    torch.manual_seed(0)
    model, batch = Model(), Points().batch(torch.arange(6), None)
    lightning_module = learner(model)
    loss = lightning_module.training_step(batch, 0)
    logits = model.proj(batch.inputs)
    own = F.cross_entropy(logits, batch.target)  # type: ignore[arg-type]
    assert_close(loss, own + logits.square().mean())
    assert_close(lightning_module.losses.take(), own.detach())
    assert_close(lightning_module.auxiliaries.take(), logits.square().mean().detach())
    assert lightning_module.auxiliaries.take() is None
    assert [module.auxiliary for module in model.norms] == [None, None]  # type: ignore[union-attr]


@pytest.mark.parametrize("counted", [True, False])
def test_a_loss_whose_targets_are_looked_at_has_the_bits_of_one_that_is_chosen(counted: bool) -> None:
    """A batch of which no target counts has zero gradients in both ways, not NaN."""
    torch.manual_seed(0)
    module, batch = learner(Model(norms=False)), Points().batch(torch.arange(6), None)
    batch.target = batch.target if counted else torch.full_like(batch.target, Batch.ignore)  # type: ignore[arg-type]
    results = []
    for reads in (True, False):
        module.zero_grad()
        loss, _ = module.loss_and_auxiliary(batch, may_synchronize=reads)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert bool(results[0][1].any()) == counted


def test_evaluation_does_not_see_them_and_models_without_one_log_none() -> None:
    torch.manual_seed(0)
    model = Model()
    plain = Model(norms=False)
    plain.proj.load_state_dict(model.proj.state_dict())
    settings: dict[str, Any] = {"batch_size": 4}
    assert evaluate(model, Points(), Classify(), **settings) == evaluate(plain, Points(), Classify(), **settings)
    lightning_module = learner(plain)
    lightning_module.training_step(Points().batch(torch.arange(6), None), 0)
    assert lightning_module.auxiliaries.take() is None


def test_counting_flops_leaves_no_auxiliary_loss() -> None:
    """A remaining loss would prevent the deep copy that weight averaging makes."""
    model = Model().train()
    cost_card.flops_per_sample(model, Classify(), Points().batch(torch.arange(6), None))
    cost_card.kernels(model, Classify(), Points(), torch.device("cpu"))
    assert_close(copy.deepcopy(model).state_dict(), model.state_dict())


def test_a_resumed_mean_is_bitwise_equal() -> None:
    first, second = (torch.tensor(value, dtype=torch.bfloat16) for value in (0.0972, 0.0979))
    whole, resumed = LossMean(), LossMean()
    whole.add(first)
    resumed.load_state(*whole.state(), first.device)
    for mean in (whole, resumed):
        mean.add(second)
    one, other = whole.take(), resumed.take()
    assert one is not None
    assert other is not None
    assert float(one) == float(other) == (float(first) + float(second)) / 2
