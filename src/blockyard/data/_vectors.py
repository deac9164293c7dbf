"""Vectors of numbers with a class each: a split in memory, and simple models of the same task."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from blockyard.contracts import Batch, Split
from blockyard.data._class_baselines import LARGEST, majority
from blockyard.errors import UserError


class VectorSplit:
    """One split. values: (n, F) float32, standardized, NaN where one is missing; target: (n,) int64 classes.

    scale: mean and standard deviation (F,) of the training split, double
    """

    def __init__(self, values: Tensor, target: Tensor, scale: tuple[Tensor, Tensor]) -> None:
        self.values, self.target, self.scale = values, target, scale

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns inputs (B, F) and classes (B,). Nothing is augmented."""
        return Batch(self.values[order], self.target[order])


class LabelledVectors(VectorSplit):
    """A split with baselines. train: the training split; class_counts: (V,) int64, of the training split."""

    def __init__(
        self,
        values: Tensor,
        target: Tensor,
        scale: tuple[Tensor, Tensor],
        train: tuple[Tensor, Tensor],
        classes: int,
    ) -> None:
        super().__init__(values, target, scale)
        self.train = train
        self.class_counts = train[1].bincount(minlength=classes)

    def baselines(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the logits (n, V) of the most frequent class, and of a linear model of the numbers."""
        yield "majority", majority(self.class_counts, len(self))
        yield "linear", linear(*self.train, self.values, len(self.class_counts))


def linear(fit: Tensor, target: Tensor, values: Tensor, classes: int) -> Tensor:
    """Returns logits (n, V) of a logistic regression fitted on values (m, F), in which a missing one is the mean."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    chosen = torch.linspace(0, len(fit) - 1, min(len(fit), LARGEST)).long()
    logits = torch.full((len(values), classes), -torch.inf)
    present = target[chosen].unique()
    if len(present) == 1:
        logits[:, present] = 0.0
        return logits
    model = LogisticRegression(max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a baseline do not matter
        model.fit(fit[chosen].nan_to_num().numpy(), target[chosen].numpy())
    predicted = model.predict_log_proba(values.nan_to_num().numpy())
    logits[:, torch.from_numpy(model.classes_)] = torch.from_numpy(predicted).float()
    return logits


def vector_splits(
    parts: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str], classes: int | None
) -> list[Split]:
    """Returns a split of each part, standardized by the first. Raises UserError for a column that does not vary.

    parts: (n, F) float64, NaN where a value is missing; targets: (n,) int64 classes; names: F, of the columns
    classes: V, None where the targets are not classes
    """
    mean = parts[0].nanmean(0)  # (F,)
    std = (parts[0] - mean).square().nanmean(0).sqrt()
    constant = [
        name
        for name, size, level in zip(names, std.tolist(), mean.tolist(), strict=True)
        if not size > 1e-12 * max(1.0, abs(level))
    ]
    if constant:
        raise UserError(f"{', '.join(constant[:20])}: one value or none in the training split; leave the columns out")
    values = [((part - mean) / std).float() for part in parts]
    pairs = list(zip(values, targets, strict=True))
    if classes is None:
        return [VectorSplit(*pair, (mean, std)) for pair in pairs]
    return [LabelledVectors(*pair, (mean, std), pairs[0], classes) for pair in pairs]
