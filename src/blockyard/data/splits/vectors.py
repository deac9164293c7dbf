"""Vectors of numbers with a class each: a split in memory, and simple models of the same task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from blockyard.contracts import SimpleModel, Split
from blockyard.data.splits.columns import ColumnSplit
from blockyard.data.splits.simple_models import equally_spaced, linear, majority_model, most_of_classes, sampled
from blockyard.data.splits.split import column_moments, input_deviation


class VectorSplit(ColumnSplit):
    """Vectors float32 (n, F), standardized, NaN where a value is missing, with classes int64 (n,).

    scale: mean and standard deviation (F,) of the training split, double
    """

    inputs: Tensor

    def __init__(self, values: Tensor, target: Tensor, scale: tuple[Tensor, Tensor]) -> None:
        super().__init__(values, target)
        self.scale = scale


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

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the model of the most frequent class, and a linear model of the numbers."""
        yield majority_model(self.class_counts)
        (values, target), classes = self.train, len(self.class_counts)
        some = equally_spaced(len(values), most_of_classes(classes))

        def fit() -> Callable[[Tensor], Tensor]:
            predict = linear(values[some], target[some], classes)
            return lambda order: predict(self.inputs[order])

        yield SimpleModel("linear", fit, sampled("fitted", len(some), len(values)))


def vector_splits(
    parts: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str], classes: int | None
) -> list[Split]:
    """Return a split of each part, standardized by the first. Raises UserError as `input_deviation` does.

    parts: (n, F) float64, NaN where a value is missing; targets: (n,) int64 classes; names: F, of the columns
    classes: V, None where the targets are not classes
    """
    mean, std = column_moments(parts[0])
    std = input_deviation(mean, std, names, "columns")
    values = [((part - mean) / std).float() for part in parts]
    pairs = list(zip(values, targets, strict=True))
    if classes is None:
        return [VectorSplit(*pair, (mean, std)) for pair in pairs]
    return [LabelledVectors(*pair, (mean, std), pairs[0], classes) for pair in pairs]
