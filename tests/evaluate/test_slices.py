"""The metric that selects weights, over the samples of each slice of a split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Inputs, Objective, Split
from blockyard.data.splits.order import eval_indices, eval_steps, take
from blockyard.evaluate.api import evaluate as evaluate_run
from blockyard.evaluate.by_position import BySlice
from blockyard.evaluate.loop import evaluate
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from tests.support.engine_runs import run
from tests.support.tiny import steps

NAMES = ("red", "green", "never", "blue")
SAMPLES = 11  # by batches of 4 in two processes: the last one has a dummy
CLASSES = 3


class Colours:
    """Samples of three classes; most are of one slice, one slice has none."""

    slice = torch.tensor([0, 1, 1, 3, 0, 1, 1, 1, 3, 1, 1])
    target = torch.arange(SAMPLES) % CLASSES

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return Batch(order[:, None].float(), self.target[order], slice=self.slice[order])


class Fixed(nn.Module):
    """Logits (B, V) that depend on the sample."""

    def forward(self, inputs: Inputs) -> Tensor:
        return torch.stack([(inputs.inputs[:, 0] * (k + 2.3)).sin() for k in range(CLASSES)], 1)


def by_loops() -> dict[str, float]:
    split = Colours()
    guess = Fixed()(Inputs(torch.arange(SAMPLES)[:, None].float())).argmax(1)
    right: dict[str, list[float]] = {}
    for sample in range(SAMPLES):
        name = NAMES[int(split.slice[sample])]
        right.setdefault(f"accuracy@{name}", []).append(float(guess[sample] == split.target[sample]))
    return {name: sum(values) / len(values) for name, values in right.items()}


def by_two_processes(names: tuple[str, ...] = NAMES) -> dict[str, float]:
    """As two processes compute it: each with its half of every batch, added up."""
    objective, split = Classify(), Colours()
    by_slice = BySlice(objective, split, names, torch.device("cpu"))
    for step in range(eval_steps(SAMPLES, 4)):
        for rank in (0, 1):
            order = eval_indices(step, num_samples=SAMPLES, batch_size=4, rank=rank, world=2)
            batch = objective.ready(take(split, order, None))
            by_slice.update(Fixed()(batch), batch)
    return by_slice.compute()


def test_every_slice_has_the_metric_of_its_samples() -> None:
    values = evaluate(Fixed(), Colours(), Classify(), batch_size=4, slices=NAMES)
    slices = {name: value for name, value in values.items() if "@" in name}
    assert slices == pytest.approx(by_loops())
    assert "accuracy@never" not in values
    assert values.keys() - slices.keys() == {"loss", "accuracy"}
    assert by_two_processes() == pytest.approx(slices)


def test_a_slice_that_is_one_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: slices counted from one."""
    monkeypatch.setattr(Colours, "slice", (Colours.slice + 1) % len(NAMES))
    assert evaluate(Fixed(), Colours(), Classify(), batch_size=4, slices=NAMES) != pytest.approx(by_loops())


def test_a_batch_without_its_slice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Colours.batch
    monkeypatch.setattr(Colours, "batch", lambda *arguments: replace(whole(*arguments), slice=None))
    with pytest.raises(ValueError, match=r"has the slices red, green, never, blue and a batch without Batch\.slice"):
        evaluate(Fixed(), Colours(), Classify(), batch_size=4, slices=NAMES)


class Letters(Colours):
    """Sequences of token ids, for an objective whose metrics are functions of others."""

    bytes_per_token = 2.0

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return Batch((order[:, None] + torch.arange(5)) % CLASSES, slice=self.slice[order])


class Next(nn.Module):
    def forward(self, inputs: Inputs) -> Tensor:
        return torch.stack([(inputs.inputs.float() * (k + 1.7)).cos() for k in range(CLASSES)], 2)


class Perplexed(NextToken):
    """Selects by a metric that is a function of another one."""

    def best(self) -> tuple[str, str]:
        return "perplexity", "min"


@pytest.mark.parametrize("objective", [NextToken(), Perplexed()])
def test_metrics_of_tokens_are_sliced_by_their_sequence(objective: Objective) -> None:
    values = evaluate(Next(), Letters(), objective, batch_size=4, slices=NAMES)
    metric = objective.best()[0]
    for number, name in ((0, "red"), (1, "green"), (3, "blue")):
        own: Any = OnlySlice(number)
        expected = evaluate(Next(), own, objective, batch_size=4)
        assert values[f"{metric}@{name}"] == pytest.approx(expected[metric])


class OnlySlice(Letters):
    """The samples of one slice alone."""

    def __init__(self, number: int) -> None:
        self.samples = (Letters.slice == number).nonzero()[:, 0]

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        return super().batch(self.samples[order], key)


def test_a_split_is_a_split() -> None:
    split: Split = Colours()
    assert len(split) == SAMPLES


@pytest.mark.full
def test_eval_gives_the_slices_of_the_run(tmp_path: Path) -> None:
    overrides = ("data=code_topics", "data.context=256", "tokenizer=byte", "head=mean_pool", *steps(3, 3))
    run_folder = run(tmp_path, *overrides, "trainer.log_every=3", "trainer.limit_test=null")
    recorded = {key: value for key, value in run_folder.summary()["metrics"].items() if key.startswith("test/")}
    assert {"test/accuracy@head", "test/accuracy@body"} <= recorded.keys()
    assert evaluate_run(run_folder.path) == recorded
    assert run_folder.summary()["directions"]["test/accuracy@head"] == "max"
    assert run_folder.summary()["data"]["classes"][0] == "asyncio"
