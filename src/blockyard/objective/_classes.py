"""The base of objectives on classes or tokens: their loss, and further metrics by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from blockyard.contracts import NonNegative, Objective, Rate, TorchMetric
from blockyard.objective._cross_entropy import chunked_cross_entropy, cross_entropy
from blockyard.ops.projection import Projection

if TYPE_CHECKING:
    import torchmetrics

MetricNames = list[str] | dict[str, dict[str, Any] | Callable[[], TorchMetric]]


class ClassObjective(Objective):
    """Cross entropy of a class for each target.

    Options:
        label_smoothing: share of the target spread evenly over all classes or token ids, in the training loss
        z_loss: factor of the squared logarithm of the softmax's normaliser, added to the training loss; 1e-4 in PaLM
        metrics: further metrics of torchmetrics, such as [F1Score, AUROC, CalibrationError], or by names of your own
            with options, {top5: {metric: Accuracy, top_k: 5, average: micro}}; a class of your own, derived from
            torchmetrics.Metric, is {mine: {_target_: mypackage.MyMetric}} with allow=[mypackage]
    """

    def __init__(
        self,
        *,
        label_smoothing: Rate = 0.0,
        z_loss: NonNegative = 0.0,
        metrics: MetricNames | None = None,
    ) -> None:
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self._named: dict[str, Any] = {}
        if metrics:
            from blockyard.objective._named_metrics import named_metrics

            self._named = named_metrics(metrics)

    def check_outputs(self, outputs: int) -> None:
        """Raise ValueError for metrics that do not work with so many classes, or take a column of the objective."""
        if self._named:
            from blockyard.objective._named_metrics import check_classes

            check_classes(self._named, outputs)
            self.metrics()

    @property
    def takes_projection(self) -> bool:
        """True unless a subclass has another loss."""
        return type(self).loss is ClassObjective.loss

    def loss(self, prediction: Any, target: Tensor) -> Tensor:
        """Mean cross entropy over the targets, in nats.

        prediction: (B, V) or (B, N, V), or a `Projection` that computes it, or `RawLogits`
        target: (B,) or (B, N)
        """
        if isinstance(prediction, Projection):
            return chunked_cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)
        return cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)

    def further(self, own: dict[str, torchmetrics.Metric]) -> dict[str, torchmetrics.Metric]:
        """Return the objective's own metrics, and the further ones of the option `metrics` behind them."""
        if not self._named:
            return own
        from blockyard.objective._named_metrics import NamedMetric

        for name, (_, options) in self._named.items():
            # A metric of the user's takes the column; torchmetrics' AUROC without options is the objective's own.
            if name in own and options is not None and (name != "auroc" or options):
                raise ValueError(
                    f"objective.metrics: {name} is a column of this objective; name yours by another, as in "
                    "objective.metrics={mine: {metric: F1Score}}"
                )
        further = {name: NamedMetric(*arguments) for name, arguments in self._named.items()}
        return own | {name: metric for name, metric in further.items() if name not in own or metric.options is None}
