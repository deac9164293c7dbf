"""Targets that do not count: integers, floats, several tensors; and the dummies that fill uneven batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError

from blockyard.contracts import Batch, DataSpec, Inputs, Objective, Split, TokenSpec
from blockyard.data.splits.order import eval_indices, eval_steps, take
from blockyard.evaluate.loop import evaluate

SAMPLES = 7  # by batches of 4 in two processes: the last one has a dummy


class Numbers:
    """Samples with a real-valued target each; the third has none."""

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, order: Tensor, key: int | None) -> Batch:
        values = torch.arange(SAMPLES, dtype=torch.float32) ** 2
        values[2] = torch.nan
        return Batch(order[:, None].float(), values[order])


class Counted(MeanSquaredError):
    """Mean squared error over the targets that count."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        counted = Batch.counted(target)
        super().update(prediction[counted], target[counted])


class Squares(Objective):
    """The smallest objective with a real-valued target."""

    takes = "sequence"

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        return 1

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        return (prediction - target).square().nanmean()

    def metrics(self, split: Split | None = None) -> dict[str, Any]:
        return {"mse": Counted()}

    def best(self) -> tuple[str, str]:
        return "mse", "min"


class Double(nn.Module):
    """Predicts twice the input."""

    def forward(self, inputs: Inputs) -> Tensor:
        return 2 * inputs.inputs[:, 0]


def by_two_processes(objective: Objective) -> float:
    """The metric as two processes compute it: each with its half of every batch, added up."""
    metric = objective.metrics()["mse"]
    for step in range(eval_steps(SAMPLES, 4)):
        for rank in (0, 1):
            order = eval_indices(step, num_samples=SAMPLES, batch_size=4, rank=rank, world=2)
            batch = objective.ready(take(Numbers(), order, None))
            metric.update(Double()(batch), batch.target)
    return float(metric.compute())


def by_one_process(objective: Objective) -> float:
    return evaluate(Double(), Numbers(), objective, batch_size=4)["mse"]


def test_two_processes_count_real_valued_targets_once() -> None:
    expected = torch.tensor([(2 * n - n * n) ** 2 for n in range(SAMPLES) if n != 2], dtype=torch.float32).mean()
    assert by_one_process(Squares()) == pytest.approx(float(expected))
    assert by_two_processes(Squares()) == pytest.approx(float(expected))


class WritesIntegers(Squares):
    """Planted: the value for integers is written into floats."""

    def ready(self, batch: Batch, key: int | None = None) -> Batch:
        assert batch.target is not None
        assert batch.sample is not None
        return replace(batch, target=batch.target.masked_fill(batch.sample < 0, float(Batch.ignore)))


def test_the_planted_integer_in_a_float_is_caught() -> None:
    assert by_one_process(WritesIntegers()) != pytest.approx(by_two_processes(WritesIntegers()))


class Pair(NamedTuple):
    tokens: Tensor
    frames: Tensor


class Several(Squares):
    """A target of two tensors, as connectionist temporal classification has."""

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        assert batch.target is not None
        return replace(batch, target=Pair(batch.target.nan_to_num().long(), torch.full((len(batch),), 5)))


def test_a_target_of_several_tensors_moves_and_is_ignored_in_its_first() -> None:
    batch = take(Numbers(), torch.tensor([3, -1]), None)
    ready = Several().ready(batch)
    assert isinstance(ready.target, Pair)
    assert ready.target.tokens.tolist() == [9, Batch.ignore]
    assert ready.target.frames.tolist() == [5, 5]
    assert Several().count(ready) == 1
    moved = ready.to(torch.float64)
    assert isinstance(moved.target, Pair)
    assert moved.target.frames.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_targets_without_a_value_for_ignored_are_refused(dtype: torch.dtype) -> None:
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, dtype=dtype), sample=torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="no value for a sample that does not count"):
        Squares().ready(batch)
    whole = replace(batch, sample=torch.tensor([0, 1]))
    assert Squares().ready(whole).target is whole.target


def test_what_counts_follows_the_type() -> None:
    assert Batch.counted(torch.tensor([1, Batch.ignore])).tolist() == [True, False]
    assert Batch.counted(torch.tensor([float(Batch.ignore), torch.nan])).tolist() == [True, False]
