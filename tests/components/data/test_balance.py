"""Class weights, balanced sampling, mixup and CutMix, against formulas and timm; and however a batch is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Batch, DataSpec, Splits, TokenSpec
from blockyard.data.splits.augment import Augment
from blockyard.data.splits.images import ImageSplit as Images
from blockyard.data.splits.images import LabelledImages, Moments, Preprocess
from blockyard.data.splits.order import balanced_order, step_indices
from blockyard.data.splits.split import classes_of
from blockyard.engine.loader import BatchDataset, Layout
from blockyard.errors import UserError
from blockyard.objective.classify import Classify, MixedClasses, Mixing, rectangle

CLASSES = torch.tensor([0] * 30 + [1] * 6 + [2] * 3)
IMAGE, TOKENS = DataSpec("image", (1, 6, 6), target="class", classes=3), TokenSpec((3, 3))


def images() -> Images:
    pixels = torch.randint(256, (len(CLASSES), 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Images(LabelledImages(pixels, CLASSES), Preprocess(Moments.of(pixels), Augment()))


def objective(**options: object) -> Classify:
    task = Classify(**options)  # type: ignore[arg-type]
    task.outputs(IMAGE, TOKENS)
    task.learn(images())
    return task


def test_balanced_weights_make_classes_count_the_same() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    logits = torch.randn(39, 3, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=CLASSES.numpy())).float()
    each = F.cross_entropy(logits, CLASSES, reduction="none")
    assert_close(objective(class_weights="balanced").loss(logits, CLASSES), (each * weights[CLASSES]).mean())
    halves = [
        objective(class_weights="balanced").loss(logits[part], CLASSES[part])
        for part in (slice(0, 39, 3), slice(1, 39, 3), slice(2, 39, 3))
    ]
    assert_close(torch.stack(halves).mean(), (each * weights[CLASSES]).mean())
    assert_close(
        objective(class_weights=(1.0, 2.0, 0.5)).loss(logits, CLASSES),
        (each * torch.tensor([1, 2, 0.5])[CLASSES]).mean(),
    )
    assert float(objective(class_weights="balanced").metrics()["loss"](logits, CLASSES)) == pytest.approx(
        float(each.mean())
    )


def test_wrong_numbers_of_weights_and_inputs_without_values_are_refused() -> None:
    with pytest.raises(ValueError, match="class_weights has 2 numbers, and the data 3 classes"):
        objective(class_weights=(1.0, 2.0))
    text = DataSpec("text", (8,), variable=True, target="class", classes=2)
    with pytest.raises(ValueError, match="mix the values of images, series and vectors of one size"):
        Classify(mixup=0.2).outputs(text, TokenSpec((8,), vocabulary=9))
    with pytest.raises(ValueError, match="cutmix pastes parts of images"):
        Classify(cutmix=1.0).outputs(DataSpec("vector", (8,), target="class", classes=2), TokenSpec((), count=8))


def test_imbalance_is_said_unless_weights_even_it() -> None:
    splits = Splits(*[images()] * 3)
    (remark,) = objective().remarks(splits)
    assert "30 of 39 samples are of class 0, 3 of 2" in remark
    assert list(objective(class_weights="balanced").remarks(splits)) == []  # type: ignore[arg-type]


def test_an_epoch_of_balanced_sampling_has_as_many_of_each_class() -> None:
    order = balanced_order(0, 1, CLASSES)
    assert CLASSES[order].bincount().tolist() == [13, 13, 13]
    counts = order.bincount(minlength=39)
    assert counts[:30].max() == 1  # frequent ones at most once
    assert counts[30:36].tolist().count(2) + counts[30:36].tolist().count(3) == 6  # 13 over 6
    assert set(counts[36:].tolist()) == {4, 5}
    assert not torch.equal(order, balanced_order(0, 2, CLASSES))
    facts = {"num_samples": 39, "batch_size": 12, "classes": CLASSES}
    whole = step_indices(3, 0, 1, **facts)  # type: ignore[arg-type]
    parts = [step_indices(3, 0, 1, **facts, rank=rank, world=2) for rank in (0, 1)]  # type: ignore[arg-type]
    assert torch.equal(torch.stack(parts, 1).flatten(), whole)
    assert torch.equal(classes_of(images()), CLASSES)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_batches_are_mixed_as_timm_mixes_them(kind: str) -> None:
    """With the same share and rectangle as timm's, and its soft targets."""
    from timm.data.mixup import Mixup

    pixels = torch.randn(6, 3, 8, 10)
    target = torch.tensor([0, 1, 2, 0, 1, 2])
    batch = Batch(pixels, target, sample=torch.arange(6))
    mixing = Mixing(0.8 if kind == "mixup" else 0.0, 1.0 if kind == "cutmix" else 0.0, 1.0, 0.5)
    flipped = batch.map(lambda tensor: tensor.flip(0))
    mixed = mixing(batch, flipped, 11)
    assert isinstance(mixed.target, MixedClasses)
    share = float(mixed.target.share[0])
    assert 0 < share < 1
    theirs = Mixup(mixup_alpha=0.8, cutmix_alpha=0.0, num_classes=3, label_smoothing=0.0)
    theirs._params_per_batch = lambda: (share, False)  # type: ignore[method-assign]
    inputs, soft = theirs(pixels.clone(), target)
    if kind == "mixup":
        assert_close(mixed.inputs, inputs)
    else:
        own = (mixed.inputs == pixels).all(1)  # (6, 8, 10)
        assert_close(own[0].float().mean(), torch.tensor(share))
        assert torch.equal(mixed.inputs[:, :, ~own[0]], pixels.flip(0)[:, :, ~own[0]])
    logits = torch.randn(6, 3)
    expected = -(soft * logits.log_softmax(-1)).sum(-1).mean()
    assert_close(objective().loss(logits, mixed.target), expected)


@pytest.mark.parametrize("centre", [(0.1, 0.9), (0.5, 0.5)])
def test_a_rectangle_is_that_of_timm(centre: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data.mixup import rand_bbox

    draws = iter((int(centre[0] * 8), int(centre[1] * 10)))
    monkeypatch.setattr(np.random, "randint", lambda *_, **__: next(draws))
    assert rectangle(0.4, (8, 10), np.array(centre)) == rand_bbox((6, 3, 8, 10), 0.4)


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}], ids=str)
def test_processes_and_micro_batches_mix_the_same_pairs(options: dict[str, float]) -> None:
    split, task = images(), objective(**options)
    for number in range(3):
        whole = BatchDataset(split, Layout(0, 39, 12), task)[number]
        parts = [BatchDataset(split, Layout(0, 39, 12, rank=rank, world=2), task)[number] for rank in (0, 1)]
        assert isinstance(whole.target, MixedClasses)
        for rank, part in enumerate(parts):
            assert_close(part.inputs, whole.inputs[rank::2])
            assert_close(part.target.partner, whole.target.partner[rank::2])  # type: ignore[union-attr]
            assert_close(part.target.share, whole.target.share[rank::2])  # type: ignore[union-attr]
    assert not isinstance(task.ready(Batch(torch.zeros(1, 1, 6, 6), torch.zeros(1).long())).target, MixedClasses)


def test_balanced_sampling_needs_classes() -> None:
    from tests.support.tiny import configured

    for overrides, message in (
        (("experiment=gpt_code_small", "trainer.sampling=balanced"), "needs a class for each sample"),
        (("experiment=vit_digits", "objective.class_weights=[1,2]"), "has 2 numbers, and the data 10 classes"),
    ):
        with pytest.raises((AssertionError, UserError), match=message):
            configured(*overrides, "logger=none")


def test_the_area_under_the_curve_is_computed_over_what_processes_put_together() -> None:
    """Between processes torchmetrics joins the batches of a metric to one tensor."""
    from blockyard.objective._metrics import AUROC

    metric = AUROC()
    for part in (slice(0, 20), slice(20, 40)):
        metric.update(
            torch.linspace(-1, 1, 40)[part, None] * torch.tensor([0.0, 1.0]), (torch.arange(40) > 17)[part].long()
        )
    alone = float(metric.compute())
    metric._computed = None
    metric.preds, metric.target = torch.cat(metric.preds), torch.cat(metric.target)  # type: ignore[arg-type]
    assert float(metric.compute()) == alone == 1.0


def test_images_of_bytes_are_mixed_as_a_model_reads_them() -> None:
    """Tokenizers divide bytes by 255, and numbers not."""
    images = torch.tensor([200, 100], dtype=torch.uint8).view(2, 1, 1, 1)
    batch = Batch(images, torch.tensor([0, 1]))
    mixed = Mixing(1.0, 0.0, 1.0, 0.5)(batch, Batch(images.flip(0), torch.tensor([1, 0])), 0)
    share = mixed.target.share
    wanted = (images.flatten() / 255) * share + (images.flip(0).flatten() / 255) * (1 - share)
    assert_close(mixed.inputs.flatten(), wanted)
