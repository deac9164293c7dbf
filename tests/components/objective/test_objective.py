"""Objectives: targets, losses and metrics."""

from __future__ import annotations

import math

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from blockyard.config import schema
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from tests.support.paths import CONF

IMAGES = DataSpec("image", (1, 8, 8), target="class", classes=7)
GRID = TokenSpec((4, 4))


def test_classify_smooths_the_training_loss_only() -> None:
    prediction, target = torch.randn(9, 7), torch.randint(7, (9,))
    objective = Classify(label_smoothing=0.1)
    logs = prediction.log_softmax(-1)
    plain = -logs[torch.arange(9), target].mean()
    torch.testing.assert_close(objective.loss(prediction, target), 0.9 * plain - 0.1 * logs.mean())
    loss = objective.metrics()["loss"]
    loss.update(prediction, target)
    torch.testing.assert_close(loss.compute(), plain)


ON_CLASSES = sorted(
    path.stem
    for path in (CONF / "objective").glob("*.yaml")
    if "label_smoothing" in schema.options(locate(yaml.safe_load(path.read_text())["_target_"]))
)


def test_every_objective_on_classes_or_tokens_smooths_labels_and_limits_the_normaliser() -> None:
    """Those that do not: values, texts of any alignment (ctc), densities, bounds, what restores inputs, contrasts, and
    labels each of which is there or not."""
    others = {path.stem for path in (CONF / "objective").glob("*.yaml")} - set(ON_CLASSES)
    contrasts = {"masked_contrast", "quantized_contrast"}
    bounds_and_labels = {"masked_diffusion", "multilabel"}
    values = {"forecast", "next_patch", "regress", "restore"}
    assert others == {"ctc", "patch_density"} | values | bounds_and_labels | contrasts


@pytest.mark.parametrize("name", ON_CLASSES)
def test_label_smoothing_and_z_loss_are_their_formulas(name: str) -> None:
    node = yaml.safe_load((CONF / "objective" / f"{name}.yaml").read_text())
    kind = locate(node.pop("_target_"))
    shape = (9,) if kind.takes == "sequence" else (3, 3)
    prediction, target = 3 * torch.randn(*shape, 7), torch.randint(7, shape)
    target.flatten()[4] = Batch.ignore
    logits, counted = prediction.double().flatten(0, -2), target.flatten() != Batch.ignore
    log_z = logits.exp().sum(-1).log()
    chosen = logits.gather(1, target.flatten().clamp_min(0)[:, None])[:, 0]
    plain, smooth = (log_z - chosen)[counted].mean(), (log_z[:, None] - logits).mean(1)[counted].mean()
    torch.testing.assert_close(kind(**node).loss(prediction, target), plain.float())
    objective = kind(**{**node, "label_smoothing": 0.1, "z_loss": 0.01})
    expected = 0.9 * plain + 0.1 * smooth + 0.01 * log_z.square()[counted].mean()
    torch.testing.assert_close(objective.loss(prediction, target), expected.float())


def test_outputs_follow_from_the_data() -> None:
    assert Classify().outputs(IMAGES, GRID) == 7
    with pytest.raises(ValueError, match="needs data with classes"):
        Classify().outputs(DataSpec("image", (1, 8, 8)), GRID)
    text = DataSpec("text", (16,))
    assert NextToken().outputs(text, TokenSpec((16,), vocabulary=50)) == 50
    with pytest.raises(ValueError, match="needs token ids"):
        NextToken().outputs(IMAGES, GRID)


def assert_exact_mean(metrics: dict, sizes: tuple[int, ...]) -> None:
    """Batches are weighted by their number of targets; ignored targets do not count."""
    from torchmetrics.functional.classification import multiclass_accuracy

    predictions = [torch.randn(size, 5, 7) for size in sizes]
    targets = [torch.randint(7, (size, 5)) for size in sizes]
    targets[0][0] = Batch.ignore
    for prediction, target in zip(predictions, targets, strict=True):
        for metric in metrics.values():
            metric.update(prediction, target)
    logits, target = torch.cat(predictions).flatten(0, 1), torch.cat(targets).flatten()
    loss = F.cross_entropy(logits, target, ignore_index=Batch.ignore)
    torch.testing.assert_close(metrics["loss"].compute(), loss)
    accuracy = multiclass_accuracy(logits, target, 7, average="micro", ignore_index=Batch.ignore)
    torch.testing.assert_close(metrics["accuracy"].compute(), accuracy)


def test_means_are_exact_over_uneven_batches() -> None:
    assert_exact_mean(Classify().metrics(), (8, 8, 3, 1))
    assert_exact_mean(NextToken().metrics(), (8, 3))


def test_a_mean_of_batch_means_is_caught() -> None:
    from blockyard.objective._metrics import MeanCrossEntropy

    class MeanOfMeans(MeanCrossEntropy):
        def update(self, prediction: Tensor, target: Tensor) -> None:
            self.total += F.cross_entropy(prediction.flatten(0, -2), target.flatten(), ignore_index=Batch.ignore)
            self.count += 1

    with pytest.raises(AssertionError):
        assert_exact_mean({**NextToken().metrics(), "loss": MeanOfMeans()}, (8, 8, 3, 1))


def test_metrics_of_shards_add_up() -> None:
    prediction, target = torch.randn(10, 7), torch.randint(7, (10,))
    whole, *parts = (Classify().metrics() for _ in range(3))
    for name in whole:
        whole[name].update(prediction, target)
        for metric, span in zip((part[name] for part in parts), (slice(0, 7), slice(7, 10)), strict=True):
            metric.update(prediction[span], target[span])
        # As a process group reduces states with dist_reduce_fx="sum".
        total = sum(part[name].total for part in parts)
        count = sum(part[name].count for part in parts)
        torch.testing.assert_close((total / count).float(), whole[name].compute())


def test_metrics_are_fresh_and_reset() -> None:
    objective = Classify()
    one, two = objective.metrics(), objective.metrics()
    one["loss"].update(torch.zeros(1, 7), torch.tensor([0]))
    assert two["loss"].count == 0
    one["loss"].reset()
    assert one["loss"].count == 0


class Text:
    bytes_per_token = 2.5

    def __len__(self) -> int:
        return 1

    def batch(self, order: Tensor, key: int | None) -> Batch:
        raise AssertionError


def test_text_metrics_derive_from_the_loss() -> None:
    metrics = NextToken().metrics(Text())
    assert list(metrics) == ["loss", "accuracy", "perplexity", "bits_per_byte"]
    assert "bits_per_byte" not in NextToken().metrics()
    for _ in range(3):
        prediction, target = torch.randn(4, 6, 11), torch.randint(11, (4, 6))
        for metric in metrics.values():
            metric.update(prediction, target)
    loss = metrics["loss"].compute()
    torch.testing.assert_close(metrics["perplexity"].compute(), loss.exp())
    torch.testing.assert_close(metrics["bits_per_byte"].compute(), loss / math.log(2) / 2.5)


def test_next_token_shifts_by_one() -> None:
    token_ids = torch.arange(10).view(2, 5)
    batch = NextToken().prepare(Batch(token_ids))
    torch.testing.assert_close(batch.inputs, token_ids[:, :4])
    torch.testing.assert_close(batch.target, token_ids[:, 1:])
    assert (batch.lengths, batch.segment) == (None, None)


def test_padding_has_no_target() -> None:
    token_ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]])
    batch = NextToken().prepare(Batch(token_ids, lengths=torch.tensor([4, 2, 1])))
    assert batch.target is not None
    assert batch.target.tolist() == [[2, 3, 4], [6, -100, -100], [-100, -100, -100]]
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [3, 1, 1]


def test_targets_do_not_cross_documents() -> None:
    token_ids = torch.tensor([[1, 2, 3, 4, 5]])
    segment = torch.tensor([[0, 0, 1, 2, 2]])
    batch = NextToken().prepare(Batch(token_ids, segment=segment))
    assert batch.target is not None
    assert batch.target.tolist() == [[2, -100, -100, 5]]
    torch.testing.assert_close(batch.segment, segment[:, :4])


def test_a_target_from_the_data_is_shifted() -> None:
    token_ids, target = torch.tensor([[1, 2, 3]]), torch.tensor([[-100, -100, 9]])
    batch = NextToken().prepare(Batch(token_ids, target=target))
    assert batch.target is not None
    assert batch.target.tolist() == [[-100, 9]]


def test_the_loss_leaves_ignored_targets_out() -> None:
    prediction, target = torch.randn(2, 3, 11), torch.tensor([[1, 2, -100], [-100, -100, 4]])
    logs = prediction.log_softmax(-1)
    expected = -(logs[0, 0, 1] + logs[0, 1, 2] + logs[1, 2, 4]) / 3
    torch.testing.assert_close(NextToken().loss(prediction, target), expected)


def test_best_names_a_metric() -> None:
    for objective in (Classify(), NextToken()):
        name, direction = objective.best()
        assert name in objective.metrics()
        assert direction in ("min", "max")
