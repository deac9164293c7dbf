"""Metrics of classes against scikit-learn's, with samples that do not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.objective._metrics import AUROC, Accuracy, ExactMatch, LabelF1, MacroF1
from blockyard.objective.classify import Classify


def metrics(classes: int) -> dict[str, Any]:
    return dict(Classify().metrics(SimpleNamespace(class_counts=torch.ones(classes))))  # type: ignore[arg-type]


def samples(classes: int) -> tuple[Tensor, Tensor]:
    """Logits (200, V) and classes (200,), every seventh of which does not count."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, classes, generator=generator)
    target = (logits + 2 * torch.randn(200, classes, generator=generator)).argmax(1)
    return logits, torch.where(torch.arange(200) % 7 == 0, Batch.ignore, target)


def test_very_confident_scores_keep_their_order() -> None:
    """The sigmoid of 50 and of 60 is 1; infinite differences have an order too."""
    for scores in ([50.0, 60.0], [-60.0, -50.0], [1e6, float("inf")], [-float("inf"), 0.0]):
        area = AUROC()
        area.update(torch.tensor([[0.0, scores[0]], [0.0, scores[1]]]), torch.tensor([0, 1]))
        assert float(area.compute()) == 1


def test_what_is_no_number_has_no_score() -> None:
    """A diverged model would else have the share of class 0."""
    target = torch.tensor([0, 1, 0, 0])
    for metric, shape in ((Accuracy(), (4, 2)), (AUROC(), (4, 2)), (ExactMatch(), (2, 2, 2))):
        logits = torch.zeros(shape)
        logits.view(-1)[-1] = torch.nan
        metric.update(logits, target.view(shape[:-1]))
        assert metric.compute().isnan(), metric
    ignored = Accuracy()
    ignored.update(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), torch.tensor([1, Batch.ignore]))
    assert float(ignored.compute()) == 1


def test_a_mean_over_classes_of_no_sample_is_none() -> None:
    assert MacroF1(3).compute().isnan()
    assert LabelF1(3, "macro").compute().isnan()
    some = MacroF1(3)
    some.update(torch.eye(3), torch.tensor([1, 2, 0]))
    assert float(some.compute()) == 0


@pytest.mark.parametrize("classes", [2, 5])
def test_macro_f1_and_auroc_are_those_of_scikit_learn(classes: int) -> None:
    logits, target = samples(classes)
    values = metrics(classes)
    assert ("auroc" in values) == (classes == 2)
    for part in (slice(0, 60), slice(60, 200)):  # uneven batches
        for metric in values.values():
            metric.update(logits[part], target[part])
    counted = target != Batch.ignore
    true, guess = target[counted].numpy(), logits[counted].argmax(1).numpy()
    assert float(values["macro_f1"].compute()) == pytest.approx(f1_score(true, guess, average="macro"))
    assert float(values["accuracy"].compute()) == pytest.approx((true == guess).mean())
    assert f1_score(true, guess, average="macro") != pytest.approx(f1_score(true, guess, average="micro"))
    if classes == 2:
        scores = (logits[:, 1] - logits[:, 0])[counted].numpy()
        assert float(values["auroc"].compute()) == pytest.approx(roc_auc_score(true, scores))


def test_confident_scores_keep_their_order() -> None:
    """A sigmoid in float32 is 1 for both, a tie."""
    auroc = metrics(2)["auroc"]
    auroc.update(torch.tensor([[0.0, 20.0], [0.0, 25.0]]), torch.tensor([0, 1]))
    assert float(auroc.compute()) == 1.0
    assert torch.tensor([20.0, 25.0]).sigmoid().unique().numel() == 1


def test_one_class_has_no_area() -> None:
    auroc = metrics(2)["auroc"]
    auroc.update(torch.randn(3, 2), torch.tensor([1, 1, Batch.ignore]))
    assert auroc.compute().isnan()


def test_images_have_the_metrics_that_they_had() -> None:
    assert list(Classify().metrics()) == ["loss", "accuracy"]
