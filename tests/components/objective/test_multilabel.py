"""objective=multilabel: its loss and metrics by formulas and libraries, and data with several labels a sample."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.data.canvas_labels import CanvasLabels
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.objective.multilabel import Multilabel
from blockyard.tokenizer.char import Char
from tests.support.engine_runs import run
from tests.support.tables import write_rows
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

SPEC = DataSpec("vector", (3,), target="labels", classes=4)
NAN = float("nan")


def objective(**options: str) -> Multilabel:
    built = Multilabel(**options)
    assert built.outputs(SPEC, TokenSpec((3,))) == 4
    return built


def test_a_single_label_is_refused_with_what_would_work() -> None:
    """F1 of one label alone would be of two classes."""
    with pytest.raises(ValueError, match=r"two labels or more, and this data has one; .* data.label=spam"):
        Multilabel().outputs(replace(SPEC, classes=1), TokenSpec((3,)))


def drawn(count: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    target = (torch.rand(count, 4, generator=generator) < 0.4).double()
    target[torch.rand(count, 4, generator=generator) < 0.2] = NAN
    return logits, target


def test_the_loss_is_the_mean_over_known_labels() -> None:
    """By the equation, label by label."""
    logits, target = drawn()
    terms = []
    for z, y in zip(logits.flatten().tolist(), target.flatten().tolist(), strict=True):
        if y == y:
            s = 1 / (1 + np.exp(-z))
            terms.append(-(y * np.log(s) + (1 - y) * np.log(1 - s)))
    value = objective().loss(logits.float(), target.float())
    assert_close(value, torch.tensor(np.mean(terms)).float(), rtol=1e-5, atol=1e-6)  # 120 terms in float32
    gradient = logits.float().requires_grad_()
    objective().loss(gradient, target.float()).backward()
    assert bool((gradient.grad[target.isnan()] == 0).all())
    assert bool(gradient.grad[~target.isnan()].abs().gt(0).all())


class Labels:
    """A split of labels alone."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(torch.zeros(len(order), 3), self.target[order])


class InBatches:
    """A split that has its labels in batches alone."""

    def __init__(self, target: torch.Tensor) -> None:
        self.labels = target

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(torch.zeros(len(order), 3), self.labels[order])


def test_balanced_weights_make_both_sides_count_the_same() -> None:
    """At a logit of zero the gradients of a label's samples with and without it cancel."""
    target = torch.tensor([[1.0, 0], [0, 0], [0, 1], [0, 1], [0, NAN]])
    weighted = Multilabel(positive_weights="balanced")
    weighted.outputs(DataSpec("vector", (3,), target="labels", classes=2), TokenSpec((3,)))
    weighted.learn(Labels(target))
    logits = torch.zeros(5, 2, requires_grad=True)
    weighted.loss(logits, target).backward()
    assert_close(logits.grad.sum(0), torch.zeros(2), rtol=0, atol=1e-6)


def test_balanced_weights_are_of_all_samples() -> None:
    """Of 10,000 every second one was read: a label of every second sample seemed to be in all."""
    target = torch.stack([torch.arange(10_000) % 2, torch.arange(10_000) % 500 == 0], 1).float()
    weighted = Multilabel(positive_weights="balanced")
    weighted.outputs(DataSpec("vector", (3,), target="labels", classes=2), TokenSpec((3,)))
    weighted.learn(Labels(target))
    assert_close(weighted._weights, torch.tensor([1.0, 499.0]))
    weighted.learn(InBatches(target))
    assert_close(weighted._weights, torch.tensor([1.0, 499.0]))


def test_metrics_are_those_of_the_library() -> None:
    """In two updates; F1 by scikit-learn where all labels are known."""
    logits, target = drawn()
    metrics = objective().metrics()
    for part in (slice(0, 11), slice(11, None)):
        for metric in metrics.values():
            metric.update(logits[part].float(), target[part].float())
    right = ((logits >= 0) == (target == 1)) & ~target.isnan()
    assert float(metrics["accuracy"].compute()) == pytest.approx(float(right.sum() / (~target.isnan()).sum()))
    exact = [all(r or n for r, n in zip(*row, strict=True)) for row in zip(right.tolist(), target.isnan(), strict=True)]
    assert float(metrics["exact"].compute()) == pytest.approx(np.mean(exact))
    assert float(metrics["loss"].compute()) == pytest.approx(float(objective().loss(logits, target)), rel=1e-5)
    labels = target.nan_to_num()
    for average in ("macro", "micro"):
        metric = objective().metrics()[f"{average}_f1"]
        metric.update(logits, labels)
        assert float(metric.compute()) == pytest.approx(f1_score(labels, logits >= 0, average=average), rel=1e-5)


def test_the_labels_of_a_canvas_are_its_digits() -> None:
    """Those of the pixels that are written on it, and as many as its cells show at most."""
    data = CanvasLabels(digits=3, samples=40, eval_samples=40)
    split = data.load(None).test
    batch = split.batch(torch.arange(40), None)
    _, pixels = split.split.compose(torch.arange(40), 0)
    for row, classes in zip(batch.target, pixels, strict=True):
        assert {int(c) - 1 for c in classes.unique() if c} == set(row.nonzero()[:, 0].tolist())
    assert batch.target.sum(1).max() == 3
    assert (data.spec.target, data.spec.classes) == ("labels", 10)


def rows_of(count: int = 60) -> list[dict[str, object]]:
    animals = ("cats", "dogs", "birds")
    samples = []
    for n in range(count):
        there = [n % 2, (n // 2) % 2, (n // 4) % 2]
        text = " and ".join(animal for animal, yes in zip(animals, there, strict=True) if yes) or "nothing"
        samples.append({"text": f"{text} {n}", **dict(zip(animals, there, strict=True))})
    return samples


def test_a_table_of_labels_from_training_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_rows(tmp_path / "x.csv", rows_of(120))
    overrides = ("data=table", f"data.path={table}", "data.label=[cats,dogs,birds]", "tokenizer=word")
    shape = ("head=mean_pool", "position=none", "objective=multilabel", *ON_CPU, *ONE_LAYER, "optimizer.lr=0.03")
    run_folder = run(tmp_path, *overrides, *shape, "data.batch_size=16", *steps(80, 80), base=())
    summary = run_folder.summary()
    assert summary["metrics"]["test/exact"] >= 0.9
    assert summary["baselines"]["rates"]["exact"] <= 0.6
    capsys.readouterr()
    assert main(["predict", f"run={run_folder.path}", "cats and birds 99", "nothing 99"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["input", "prediction", "p(cats)", "p(dogs)", "p(birds)"]
    assert [row["prediction"] for row in rows] == ["cats, birds", ""]
    assert float(rows[0]["p(cats)"]) > 0.5 > float(rows[0]["p(dogs)"])
    with np.load(run_folder.path / "predictions-test.npz") as kept:
        assert kept["prediction"].shape[1] == 3
        assert ((kept["prediction"] >= 0) & (kept["prediction"] <= 1)).all()


def test_wrong_labels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of()
    rows[1]["cats"], rows[2] = 2, {"text": "x", "cats": "", "dogs": "", "birds": ""}
    table = write_rows(tmp_path / "x.csv", rows)
    data = Table(path=str(table), label=("cats", "dogs", "birds"))
    with pytest.raises(UserError, match=r"line 4: no cats nor dogs nor birds.*line 3: cats is neither 0 nor 1"):
        data.load(Char())
    alone = write_rows(tmp_path / "y.csv", [{"text": f"t{n}", "a": n % 2, "b": 1} for n in range(40)])
    with pytest.raises(UserError, match="the label b is there in all training samples or in none"):
        Table(path=str(alone), label=("a", "b")).load(Char())
    with pytest.raises(ValueError, match="expected a column, or several different ones"):
        Table(path=str(alone), label=("a", "a"))
    assert main(["check", "data=digits", "objective=multilabel"]) == 2
    assert "objective=multilabel needs several labels for each sample; data=digits has none" in capsys.readouterr().err
    assert main(["check", "experiment=canvas_labels", "objective=classify"]) == 2
    assert "needs a class for each sample" in capsys.readouterr().err


def test_a_sample_without_any_known_label_does_not_count() -> None:
    """Such are also the rows that fill up the batch of another process."""
    exact = objective().metrics()["exact"]
    target = torch.tensor([[1.0, 0, 1, 1], [1, NAN, NAN, NAN], [NAN] * 4])
    exact.update(torch.tensor([[1.0, 1, 1, 1], [1, -1, -1, -1], [-1, -1, -1, -1]]), target)
    assert float(exact.compute()) == 0.5
