"""Classification: cross entropy of one class per sample.

Source: Szegedy et al. 2016, Rethinking the Inception Architecture (arXiv 1512.00567), section 7.
Reference: torch.nn.functional.cross_entropy
Equation: -sum_v q_v log softmax(prediction)_v, q = (1 - s) onehot(target) + s / V

Data with simple models of its own, such as texts, have their metrics computed beside every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from blockyard.contracts import DataSpec, NonNegative, Objective, Rate, Split, TokenSpec
from blockyard.objective._cross_entropy import cross_entropy
from blockyard.objective._split_baselines import of_split

if TYPE_CHECKING:
    import torchmetrics


class Classify(Objective):
    """Cross entropy of the class.

    Options:
        label_smoothing: share of the target spread evenly over all classes, in the training loss
        z_loss: factor of the squared logarithm of the softmax's normaliser, added to the training loss; 1e-4 in PaLM
    """

    takes = "sequence"
    target = "class"

    def __init__(self, *, label_smoothing: Rate = 0.0, z_loss: NonNegative = 0.0) -> None:
        self.label_smoothing, self.z_loss = label_smoothing, z_loss

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per class. Raises ValueError where the data has no classes."""
        if data.classes is None:
            raise ValueError(f"objective=classify needs data with classes; this {data.modality} data has none")
        return data.classes

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy over the batch, in nats. prediction: (B, V); target: (B,)."""
        return cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss without label smoothing, and accuracy.

        Where the split has `class_counts`, also macro F1, and with two classes the area under the ROC curve.
        """
        from blockyard.objective._metrics import AUROC, Accuracy, MacroF1, MeanCrossEntropy

        metrics: dict[str, torchmetrics.Metric] = {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}
        counts = getattr(split, "class_counts", None)
        if counts is not None:
            metrics["macro_f1"] = MacroF1(len(counts))
            if len(counts) == 2:
                metrics["auroc"] = AUROC()
        return metrics

    def baselines(self, split: Split) -> dict[str, dict[str, float]]:
        """The metrics of the split's own models, by their names."""
        return of_split(split, self)

    def best(self) -> tuple[str, str]:
        """The highest accuracy."""
        return "accuracy", "max"
