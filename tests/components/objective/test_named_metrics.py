"""Metrics by name, against scikit-learn and formulas, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score, matthews_corrcoef, roc_auc_score, top_k_accuracy_score
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.objective._named_metrics import OBJECTIVE_COLUMNS
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from blockyard.objective.tag import Tag
from tests.support.tolerances import float32

CLASSES = 5
NAMES = {
    "f1": {"metric": "F1Score", "average": "macro"},
    "micro": {"metric": "f1_score", "average": "micro"},
    "area": {"metric": "AUROC"},
    "top2": {"metric": "Accuracy", "top_k": 2, "average": "micro"},
    "ece": {"metric": "CalibrationError", "n_bins": 10},
    "mcc": {"metric": "MatthewsCorrCoef"},
}


def samples(*shape: int) -> tuple[Tensor, Tensor]:
    """Logits and targets, every seventh of which does not count."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(*shape, CLASSES, generator=generator)
    target = (logits + 4 * torch.randn(logits.shape, generator=generator)).argmax(-1)
    return logits, torch.where(torch.arange(target.numel()).view(shape) % 7 == 0, Batch.ignore, target)


def calibration_error(scores: Tensor, target: Tensor, bins: int) -> float:
    """The mean distance of accuracy and confidence over bins of confidence, by their samples (Guo et al. 2017)."""
    confidence, guess = scores.max(1)
    index = (confidence * bins).ceil().long().clamp(1, bins)
    parts = [index == each for each in range(1, bins + 1) if (index == each).any()]
    gaps = [
        ((guess[part] == target[part]).double().mean() - confidence[part].mean()).abs() * part.sum() for part in parts
    ]
    return float(sum(gaps) / len(target))


@pytest.mark.parametrize("tokens", [False, True])
def test_values_are_those_of_scikit_learn(tokens: bool) -> None:
    shape = (60, 5) if tokens else (300,)
    logits, target = samples(*shape)
    metrics = (NextToken if tokens else Classify)(metrics=NAMES).metrics()
    for part in (slice(0, 7), slice(7, None)):  # uneven batches
        for metric in metrics.values():
            metric.update(logits[part], target[part])
    counted = target != Batch.ignore
    scores, true = logits[counted].double().softmax(-1), target[counted]
    guess, labels = scores.argmax(1).numpy(), list(range(CLASSES))
    expected = {
        "f1": f1_score(true, guess, average="macro"),
        "micro": f1_score(true, guess, average="micro"),
        "area": roc_auc_score(true, scores, multi_class="ovr", average="macro", labels=labels),
        "top2": top_k_accuracy_score(true, scores, k=2, labels=labels),
        "ece": calibration_error(scores, true, 10),
        "mcc": matthews_corrcoef(true, guess),
    }
    for name, value in expected.items():
        assert float(metrics[name].compute()) == pytest.approx(value, abs=float32(terms=300)["atol"]), name
    assert expected["f1"] != pytest.approx(expected["micro"], abs=1e-3)


@pytest.mark.parametrize("name", ["F1Score", "Specificity", "AUROC", "Accuracy"])
def test_a_batch_in_which_nothing_counts_changes_nothing(name: str) -> None:
    """Batches without targets, such as those that lack a slice, are skipped; without any target the value is NaN."""
    logits, target = samples(50)
    mine = {"metric": name, **({"top_k": 2} if name == "Accuracy" else {})}
    metrics = [Classify(metrics={"mine": mine}).metrics() for _ in range(3)]
    nothing = torch.full_like(target, Batch.ignore)
    one, other, empty = (each["mine"] for each in metrics)
    one.update(logits, nothing)
    one.update(logits, target)
    one.update(logits, nothing)
    other.update(logits, target)
    empty.update(logits, nothing)
    assert float(one.compute()) == pytest.approx(float(other.compute()))
    assert empty.compute().isnan()


@pytest.mark.parametrize("metrics", [["Precision"], {"recall": {"metric": "Recall"}}])
def test_a_column_that_the_objective_has_is_refused(metrics: Any) -> None:
    """Tagging has precision and recall of spans; those of words need another name."""
    data = DataSpec("text", (8,), target="tags", class_names=("B-x", "I-x", "O"), classes=3)
    objective = Tag(metrics=metrics)
    with pytest.raises(ValueError, match="is a column of this objective; name yours by another"):
        objective.check_outputs(objective.outputs(data, TokenSpec((8,), vocabulary=9)))
    assert "macro_f1" in OBJECTIVE_COLUMNS


def test_names_alone_are_columns_and_directions() -> None:
    objective = Classify(metrics=["F1Score", "AUROC", "CalibrationError"])
    assert list(objective.metrics()) == ["loss", "accuracy", "f1_score", "auroc", "calibration_error"]
    directions = objective.directions()
    assert (directions["f1_score"], directions["calibration_error"]) == ("max", "min")
    assert Classify().metrics().keys() == {"loss", "accuracy"}


def test_more_classes_than_there_are_are_refused_before_training() -> None:
    objective = Classify(metrics={"top5": {"metric": "Accuracy", "top_k": 5}})
    objective.check_outputs(7)
    with pytest.raises(ValueError, match=r"objective.metrics: top5 does not work with 3 classes"):
        objective.check_outputs(3)
    assert objective.outputs(DataSpec("image", (1, 8, 8), target="class", classes=7), TokenSpec((4, 4))) == 7


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["F1Scor"], "torchmetrics has no metric 'F1Scor' of classes; did you mean F1Score?"),
        ({"own": {"metric": "mine.Specificity"}}, r"a class of your own is {_target_: mine.Specificity}"),
        (
            ["Accuracy"],
            "Accuracy would be called 'accuracy', which objectives have themselves; name it: {macro_acc",
        ),
        (["ConfusionMatrix"], "ConfusionMatrix gives more than one number"),
        ({"f1": {"metric": "F1Score", "averag": "macro"}}, "F1Score has no such option; did you mean average?"),
        ({"f1": {"metric": "F1Score", "average": "mean"}}, "objective.metrics.f1: F1Score refuses its options"),
        ({"f1": {"average": "macro"}}, "objective.metrics.f1 names no metric; write {f1: {metric: F1Score}}"),
        ({"f@1": {"metric": "F1Score"}}, "which is not letters and digits"),
    ],
)
def test_what_does_not_exist_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Classify(metrics=metrics)
