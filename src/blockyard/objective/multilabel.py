"""Several labels a sample, each there or not: binary cross entropy of every label.

Source: Boutell et al. 2004, Learning multi-label scene classification; Zhang and Zhou 2006, Multilabel Neural Networks
    (BP-MLL), for one output a label
Reference: torch.nn.functional.binary_cross_entropy_with_logits; torchmetrics MultilabelF1Score
Equation: - mean over known labels of w y log s(z) + (1 - y) log(1 - s(z)), s the logistic function

Beside the runs on a data set stand two baselines: `rates` gives each label its share in the training split; `linear`
is a logistic regression for each label, on images, series, vectors or graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baselines, Batch, DataSpec, Objective, SimpleModel, Split, TokenSpec
from blockyard.data.splits.simple_models import linear, sampled
from blockyard.objective._baselines import BATCH, Features, has_features, models, rules

if TYPE_CHECKING:
    import torchmetrics


class Multilabel(Objective):
    """A label is predicted where its probability is 0.5 or more.

    A target of NaN does not count, so that some labels of a sample may be unknown.

    Options:
        positive_weights: balanced makes the samples with and without a label count the same in the training loss of the
            label; null weights nothing
    """

    takes = "sequence"
    target = "labels"

    def __init__(self, *, positive_weights: Literal["balanced"] | None = None) -> None:
        self.positive_weights = positive_weights
        self._weights: Tensor | None = None  # (V,)
        self._count = 0

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output for each label. Raises ValueError for data without labels."""
        if data.target != "labels" or not data.classes:
            raise ValueError(f"objective=multilabel needs data with several labels; this {data.modality} data has none")
        if data.classes < 2:
            raise ValueError(
                "objective=multilabel needs two labels or more, and this data has one; a column of two classes is for "
                "objective=classify, with data.label=spam in place of data.label=[spam]"
            )
        self._count = data.classes
        return data.classes

    def learn(self, train: Split) -> None:
        """Count the samples with each label, if weights shall balance them."""
        if self.positive_weights is not None:
            share = _rates(train)
            self._weights = (1 - share) / share  # positives then weigh as much as negatives

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean over known labels, in nats. prediction: (B, V); target: (B, V) of 0 and 1, or NaN."""
        counted = Batch.counted(target)
        weights = None if self._weights is None else self._weights.to(prediction.device)
        losses = F.binary_cross_entropy_with_logits(
            prediction.float(), target.nan_to_num(), pos_weight=weights, reduction="none"
        )
        return (losses * counted).sum() / counted.sum().clamp_min(1)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss without weights, label accuracy, macro and micro F1, and the share of samples without errors."""
        from blockyard.objective._metrics import AllLabels, LabelAccuracy, LabelF1, MeanBinaryCrossEntropy

        return {
            "loss": MeanBinaryCrossEntropy(),
            "accuracy": LabelAccuracy(),
            "macro_f1": LabelF1(self._count, "macro"),
            "micro_f1": LabelF1(self._count, "micro"),
            "exact": AllLabels(),
        }

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one: F1 does not change while probabilities stay on one side of 0.5."""
        return "loss", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the share of each label in the training split, and a logistic regression for each."""
        if train is None:
            return Baselines()

        logits = cache(lambda: _rates(train).logit())

        def rates(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            yield "rates", logits().expand(len(batch), -1)

        baselines = list(rules(split, self, ["rates"], rates))
        if has_features(split):
            features = Features(train, split)

            def fit() -> Callable[[Tensor], Tensor]:
                values, target = features.fitted
                fitted = [_one_label(values, label) for label in target.unbind(1)]

                def predict(order: Tensor) -> Tensor:
                    tested = features.of(split, order)
                    return torch.stack([logits_of(tested) for logits_of in fitted], 1)  # (B, V)

                return predict

            note = sampled("fitted", len(features.chosen), len(train))
            baselines += models(split, self, [SimpleModel("linear", fit, note)])
        return Baselines(baselines)


def _one_label(values: Tensor, target: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a logistic regression of a label (m,) on values (m, F), a function of values (n, F) to logits (n,)."""
    counted = Batch.counted(target)
    predict = linear(values[counted], target[counted].long(), 2, iterations=50)

    def logits(values: Tensor) -> Tensor:
        both = predict(values)
        return (both[:, 1] - both[:, 0]).clamp(-30, 30)  # finite if the training split has one class only

    return logits


def _rates(train: Split) -> Tensor:
    """Return the share of training samples with each label (V,), at least one sample away from 0 and 1."""
    target = getattr(train, "target", None)
    if not isinstance(target, Tensor):
        parts = [train.batch(order, None).target for order in torch.arange(len(train)).split(BATCH)]
        target = torch.cat([part for part in parts if isinstance(part, Tensor)])
    counted = Batch.counted(target)
    positive = (target.nan_to_num() * counted).sum(0)  # (V,)
    total = counted.sum(0)
    return positive.clamp_min(1).minimum((total - 1).clamp_min(1)) / total.clamp_min(2)
