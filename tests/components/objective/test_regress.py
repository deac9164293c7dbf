"""The objective regress: its metrics against scikit-learn, its optimum against linear and ridge regression, gaps."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec, Inputs, Split, Standardized, TokenSpec
from blockyard.data.splits.order import eval_indices, eval_steps, take
from blockyard.evaluate.loop import evaluate
from blockyard.objective.classify import Classify
from blockyard.objective.regress import Regress, _sizes
from tests.support.tolerances import float32

SAMPLES, TASKS = 11, 3
MEAN = float32(terms=SAMPLES * TASKS)["rtol"]


@dataclass
class Tasks:
    """Samples with three targets, some of them missing, in units of their own."""

    mean: Tensor = field(default_factory=lambda: torch.tensor([5.0, 0.0, -100.0], dtype=torch.float64))
    std: Tensor = field(default_factory=lambda: torch.tensor([2.0, 1.0, 30.0], dtype=torch.float64))

    def __len__(self) -> int:
        return SAMPLES

    @property
    def target(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        target = torch.randn(SAMPLES, TASKS, generator=generator)
        target[::2, 1] = torch.nan
        target[3] = torch.nan
        return target

    def batch(self, order: Tensor, key: int | None) -> Batch:
        inputs = torch.randn(SAMPLES, TASKS, generator=torch.Generator().manual_seed(1))
        return Batch(inputs[order], self.target[order])


class Same(nn.Module):
    """Predicts its inputs."""

    def forward(self, inputs: Inputs) -> Tensor:
        return inputs.inputs


def by_scikit() -> dict[str, float]:
    """The metrics in the units of the data: errors over all targets that are there, R^2 averaged over the tasks."""
    split = Tasks()
    target = (split.target * split.std + split.mean).numpy()
    features = (split.batch(torch.arange(SAMPLES), None).inputs * split.std + split.mean).numpy()
    there = ~np.isnan(target)
    r2 = [r2_score(target[there[:, task], task], features[there[:, task], task]) for task in range(TASKS)]
    return {
        "rmse": root_mean_squared_error(target[there], features[there]),
        "mae": mean_absolute_error(target[there], features[there]),
        "r2": float(np.mean(r2)),
    }


def by_two_processes(objective: Regress) -> dict[str, float]:
    """The metrics as two processes compute them: each with its half of every batch, added up."""
    metrics = objective.metrics(Tasks())
    for step in range(eval_steps(SAMPLES, 4)):
        for rank in (0, 1):
            order = eval_indices(step, num_samples=SAMPLES, batch_size=4, rank=rank, world=2)
            batch = objective.ready(take(Tasks(), order, None))
            for metric in metrics.values():
                metric.update(batch.inputs, batch.target)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def test_metrics_are_those_of_scikit_learn() -> None:
    assert isinstance(Tasks(), Standardized)
    result = evaluate(Same(), Tasks(), Regress(), batch_size=4)
    assert result == pytest.approx(by_scikit(), rel=MEAN)
    assert by_two_processes(Regress()) == pytest.approx(result, rel=MEAN)


class WithoutUnits(Regress):
    """Planted: metrics in standard deviations."""

    def metrics(self, split: Split | None = None) -> dict[str, object]:  # type: ignore[override]
        return dict(super().metrics(None))


def test_planted_units_are_caught() -> None:
    assert evaluate(Same(), Tasks(), WithoutUnits(), batch_size=4) != pytest.approx(by_scikit(), rel=1e-2)


def test_the_baseline_predicts_the_mean_of_training() -> None:
    split = Tasks()
    there = ~split.target.isnan()
    target = (split.target * split.std)[there]
    (values,) = Regress().baselines(split).values()
    assert values["rmse"] == pytest.approx(float(target.square().mean().sqrt()), rel=MEAN)
    assert values["mae"] == pytest.approx(float(target.abs().mean()), rel=MEAN)
    assert values["r2"] <= 0
    assert Regress().best() == ("rmse", "min")
    assert Regress().directions() == {"rmse": "min", "mae": "min", "r2": "max"}


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_the_loss_leaves_missing_targets_out(loss: str) -> None:
    objective = Regress(loss=loss, delta=0.7)  # type: ignore[arg-type]
    batch = Tasks().batch(torch.arange(SAMPLES), None)
    prediction = batch.inputs.clone().requires_grad_()
    there = ~batch.target.isnan()
    functions = {"mse": nn.MSELoss(), "mae": nn.L1Loss(), "huber": nn.HuberLoss(delta=0.7)}
    value = objective.loss(prediction, batch.target)
    assert_close(value, functions[loss](prediction[there], batch.target[there]))
    value.backward()
    assert torch.equal(prediction.grad == 0, ~there)
    assert objective.count(batch) == int(there.sum())


def test_a_prediction_that_is_not_a_number_stays_one() -> None:
    metrics = Regress().metrics(Tasks())
    for metric in metrics.values():
        metric.update(torch.full((2, TASKS), torch.nan), torch.zeros(2, TASKS) + torch.arange(2)[:, None])
        assert not torch.isfinite(metric.compute())


@pytest.mark.parametrize("penalty", [0.0, 5.0])
def test_a_bare_model_has_the_optimum_of_linear_and_ridge_regression(penalty: float) -> None:
    """On counts of degrees, which a sum of one-hot vectors gives: the same test metrics, in the data's own units."""
    overrides = ["data=atlas", "tokenizer=nodes", "tokenizer.max_degree=6", "head=sum_pool", "objective=regress"]
    bare = ["model=bare", "block=none", "token_mixer=none", "channel_mixer=none", "norm=none", "position=none"]
    composed = compose([*overrides, *bare, "model.dim=7", "logger=none"])
    assert check(composed) == []
    parts = Components(composed.config)
    train, _, test = parts.data.load(parts.tokenizer)
    model = parts.model(0).double()
    with torch.no_grad():
        model.embedder.codes.zero_()
        model.embedder.degrees.copy_(torch.eye(7))
    head = model.head.proj
    whole = train.batch(torch.arange(len(train)), None)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        shrinkage = penalty * head.weight.square().sum() / len(train)
        loss = parts.objective.loss(model(whole), whole.target.double()) + shrinkage
        loss.backward()
        return loss

    optimizer.step(closure)

    def counts(batch: Batch) -> np.ndarray:
        real = torch.arange(batch.inputs.shape[1]) < batch.lengths[:, None]
        return torch.stack([((batch.inputs[..., 0] == d) & real).sum(1) for d in range(7)], 1).numpy()

    rival = Ridge(alpha=penalty) if penalty else LinearRegression()
    rival.fit(counts(whole), whole.target[:, 0].double().numpy())
    last = test.batch(torch.arange(len(test)), None)
    expected = rival.predict(counts(last))
    assert_close(model(last)[:, 0], torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
    units = [value * float(test.std) + float(test.mean) for value in (last.target[:, 0].double().numpy(), expected)]
    result = evaluate(model.float(), test, parts.objective, batch_size=100)
    assert result["rmse"] == pytest.approx(root_mean_squared_error(*units), rel=1e-4)
    assert result["r2"] == pytest.approx(r2_score(*units), rel=1e-4)


def test_series_are_regressed_too() -> None:
    overrides = ["data=co2", "tokenizer=series_patch", "tokenizer.normalise=none", "head=flatten", "objective=regress"]
    composed = compose([*overrides, "position=learned", "logger=none"])
    assert check(composed) == []
    parts = Components(composed.config)
    test = parts.data.load(parts.tokenizer).test
    result = parts.objective.baselines(test)["mean"]
    assert result["rmse"] > 10  # parts per million: the test years lie far above those of training


def test_channels_that_are_samples_have_standardized_units() -> None:
    """Each has a deviation of its own, which was taken for that of a value: an error of shapes at the first metric."""

    batch = Batch(torch.zeros(1, 32, 1), torch.zeros(1, 8, 1))
    apart, alone = (
        SimpleNamespace(mean=std, std=std, batch=lambda order, key: batch) for std in (torch.rand(7), torch.ones(1))
    )
    assert isinstance(apart, Standardized)
    assert _sizes(apart) is None
    assert _sizes(alone).tolist() == [1.0] * 8


def test_data_without_real_values_is_refused() -> None:
    tokens = TokenSpec((4,))
    with pytest.raises(ValueError, match="objective=regress needs data with real-valued targets; this image data has"):
        Regress().outputs(DataSpec("image", (1, 2, 2), target="class", classes=3), tokens)
    with pytest.raises(ValueError, match="objective=classify needs data with classes"):
        Classify().outputs(DataSpec("graph", (3, 1), target="values", values=(1,)), tokens)
