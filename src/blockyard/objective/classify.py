"""Classification: cross entropy of one class per sample.

Source: Szegedy et al. 2016, Rethinking the Inception Architecture (arXiv 1512.00567), section 7.
Reference: torch.nn.functional.cross_entropy
Equation: -sum_v q_v log softmax(prediction)_v, q = (1 - s) onehot(target) + s / V

Beside the runs on a data set stand simple models of it: the most frequent class; for texts a linear model of their
words; for images, series, vectors and graphs the nearest centroid of each class and a linear model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Baselines, Batch, DataSpec, NonNegative, Positive, Split, Splits, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.split import classes_of, known_classes
from blockyard.errors import shortened
from blockyard.objective._baselines import of_classes
from blockyard.objective._cross_entropy import cross_entropy
from blockyard.objective._distillation import DistilledObjective
from blockyard.objective._patches import floats

if TYPE_CHECKING:
    import torchmetrics

Share = Annotated[float, Ge(0), Le(1)]
MIXED = ("image", "series", "vector")  # modalities with inputs of one size
IMBALANCE = 3  # a split is called imbalanced from so many times the samples of the rarest class on


class Classify(DistilledObjective):
    """Cross entropy of the class.

    Options:
        class_weights: factors of the training loss of each class, in the order of the classes; balanced makes every
            class count the same in the training split; null weights nothing
        mixup: alpha of mixup, 0 is off: inputs and targets are mixed with another sample of the batch
        cutmix: alpha of CutMix for images, 0 is off: a rectangle of another image of the batch is pasted
        mix_probability: share of the batches that are mixed
        mix_switch: with mixup and cutmix both on, the share of cutmix among mixed batches
    """

    takes = "sequence"
    target = "class"

    @with_options_of(DistilledObjective)
    def __init__(
        self,
        *,
        class_weights: Literal["balanced"] | tuple[Positive, ...] | None = None,
        mixup: NonNegative = 0.0,
        cutmix: NonNegative = 0.0,
        mix_probability: Share = 1.0,
        mix_switch: Share = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.class_weights = class_weights
        self.mixing = Mixing(mixup, cutmix, mix_probability, mix_switch)
        self.mixes = bool(mixup or cutmix)
        self._weights: Tensor | None = None  # (V,)
        self._names: tuple[str, ...] = ()

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per class. Raises ValueError for data without classes, or options that do not fit it."""
        if data.classes is None:
            raise ValueError(f"objective=classify needs data with classes; this {data.modality} data has none")
        if self.mixes and (data.modality not in MIXED or data.variable or tokens.vocabulary is not None):
            raise ValueError(
                "objective.mixup and objective.cutmix mix the values of images, series and vectors of one size, and "
                f"this model reads {data.things}; use 0"
            )
        if self.mixing.cutmix and data.modality != "image":
            raise ValueError(f"objective.cutmix pastes parts of images, and this model reads {data.things}; use 0")
        if isinstance(self.class_weights, tuple):
            if len(self.class_weights) != data.classes:
                count = len(self.class_weights)
                raise ValueError(f"objective.class_weights has {count} numbers, and the data {data.classes} classes")
            self._weights = torch.tensor(self.class_weights, device="cpu")
        self._names = data.class_names or tuple(map(str, range(data.classes)))
        return data.classes

    def learn(self, train: Split) -> None:
        """Count the classes, if weights shall balance them."""
        if self.class_weights == "balanced":
            counts = classes_of(train).bincount(minlength=len(self._names)).double()
            # A mean of one over the samples keeps the size of the loss.
            self._weights = (counts.sum() / (counts.count_nonzero() * counts.clamp_min(1))).float()

    def remarks(self, splits: Splits) -> Iterator[str]:
        """Yield a sentence if some classes are much rarer than others, and no weights even them."""
        classes = known_classes(splits.train)
        if classes is None or self.class_weights is not None:
            return
        counts = classes.bincount(minlength=len(self._names))
        most, least = int(counts.argmax()), int(counts.argmin())
        if counts[most] >= IMBALANCE * counts[least]:
            yield (
                f"the training split is imbalanced: {int(counts[most])} of {len(classes)} samples are of class "
                f"{shortened(self._names[most])}, {int(counts[least])} of {shortened(self._names[least])}; "
                "objective.class_weights=balanced or trainer.sampling=balanced evens them"
            )

    def mix(self, batch: Batch, partner: Batch, key: int) -> Batch:
        """Return the batch mixed with its partners, its target a `MixedClasses`."""
        return self.mixing(batch, partner, key)

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the mean cross entropy in nats. prediction: (B, V); target: (B,), or `MixedClasses`."""
        if isinstance(target, MixedClasses):
            share = target.share[0]  # one for the whole batch
            own_loss = self.loss(prediction, target.target)
            partner_loss = self.loss(prediction, target.partner)
            return share * own_loss + (1 - share) * partner_loss
        return cross_entropy(
            prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss, weights=self._weights
        )

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss without label smoothing, and accuracy.

        A split with `class_counts` also gives macro F1, and with two classes the area under the ROC curve.
        """
        from blockyard.objective._metrics import AUROC, Accuracy, MacroF1, MeanCrossEntropy

        metrics: dict[str, torchmetrics.Metric] = {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}
        counts = getattr(split, "class_counts", None)
        if counts is not None:
            metrics["macro_f1"] = MacroF1(len(counts))
            if len(counts) == 2:
                metrics["auroc"] = AUROC()
        return self.further(metrics)

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the split's own models, the most frequent class, the nearest centroid and a linear model."""
        return of_classes(split, train, self, len(self._names) or None)

    def best(self) -> tuple[str, str]:
        """Return the highest accuracy as the best one."""
        return "accuracy", "max"


class MixedClasses(NamedTuple):
    """Classes of mixed samples. target, partner: (B,) int64; share: (B,) float, the share of `target`."""

    target: Tensor
    partner: Tensor
    share: Tensor


@dataclass(frozen=True)
class Mixing:
    """Mixup and CutMix: every sample of a batch is mixed with another one of it.

    mixup, cutmix: alpha of each, 0 is off; with both on, one is drawn for each batch, CutMix with probability `switch`
    probability: probability of mixing a batch

    Source: Zhang et al. 2018, mixup (arXiv 1710.09412), section 2; Yun et al. 2019, CutMix (arXiv 1905.04899), section
        3.1
    Reference: timm.data.mixup.Mixup with mode="batch"
    Equation: x = l x_i + (1 - l) x_j, l ~ Beta(alpha, alpha); CutMix pastes a rectangle of x_j of area 1 - l instead

    The draws are a function of (seed, epoch, step): one l and one rectangle a batch. The partner of sample number n of
    B is sample B - 1 - n. So they do not depend on the number of processes and micro-batches.
    """

    mixup: float
    cutmix: float
    probability: float
    switch: float

    def __call__(self, batch: Batch, partner: Batch, key: int) -> Batch:
        """Return the batch mixed with its partners: the same inputs and classes in another order.

        key: the same for all parts of a batch
        """
        draws = np.random.Generator(np.random.PCG64(key))
        # All draws are made in any case, so that one option does not shift the others.
        chosen = draws.random()
        cut = draws.random()
        place = draws.random(2)
        use_cutmix = self.cutmix > 0 and (not self.mixup or cut < self.switch)
        alpha = self.cutmix if use_cutmix else self.mixup
        share = float(draws.beta(alpha, alpha)) if chosen < self.probability else 1.0
        inputs = batch.inputs
        if use_cutmix and share < 1:
            top, bottom, left, right = rectangle(share, inputs.shape[-2:], place)
            inputs = inputs.clone()
            inputs[..., top:bottom, left:right] = partner.inputs[..., top:bottom, left:right]
            # The rectangle is cut off at the borders, so that its area may be less than drawn.
            share = 1 - (bottom - top) * (right - left) / (inputs.shape[-2] * inputs.shape[-1])
        elif share < 1:
            inputs = floats(inputs) * share + floats(partner.inputs) * (1 - share)
        target = MixedClasses(_classes(batch), _classes(partner), torch.full((len(batch),), share))
        return replace(batch, inputs=inputs, target=target)


def rectangle(share: float, size: Any, place: np.ndarray) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right of a rectangle of area 1 - share around a point, cut off at the borders.

    size: height and width; place: (2,) in [0, 1), the centre
    """
    bounds = []
    for side, centre in zip(size, place, strict=True):
        cut = int(side * (1 - share) ** 0.5)
        middle = int(centre * side)
        bounds += [max(middle - cut // 2, 0), min(middle + (cut + 1) // 2, side)]
    return bounds[0], bounds[1], bounds[2], bounds[3]


def _classes(batch: Batch) -> Tensor:
    assert isinstance(batch.target, Tensor)
    return batch.target
