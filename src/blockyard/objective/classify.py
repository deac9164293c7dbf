"""Classification: cross entropy of one class per sample.

Source: Szegedy et al. 2016, Rethinking the Inception Architecture (arXiv 1512.00567), section 7.
Reference: torch.nn.functional.cross_entropy
Equation: -sum_v q_v log softmax(prediction)_v, q = (1 - s) onehot(target) + s / V
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Objective, Rate, Split, TokenSpec

if TYPE_CHECKING:
    import torchmetrics


class Classify(Objective):
    """Cross entropy of the class. Label smoothing applies to the training loss only.

    Options:
        label_smoothing: share of the target spread evenly over all classes
    """

    takes = "sequence"
    target = "class"

    def __init__(self, *, label_smoothing: Rate = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per class. Raises ValueError where the data has no classes."""
        if data.classes is None:
            raise ValueError(f"objective=classify needs data with classes; this {data.modality} data has none")
        return data.classes

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy over the batch, in nats. prediction: (B, V); target: (B,)."""
        return F.cross_entropy(prediction, target, ignore_index=Batch.ignore, label_smoothing=self.label_smoothing)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss without label smoothing, and accuracy."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}

    def best(self) -> tuple[str, str]:
        """The highest accuracy."""
        return "accuracy", "max"
