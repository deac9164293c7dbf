"""The next symbol of a row that is written from a source, with the share of rows that are wholly right.

Source: Sutskever, Vinyals and Le 2014, Sequence to Sequence Learning with Neural Networks (arXiv 1409.3215);
    Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 5.4, for the smoothing.
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[symbol_{n+1}], given the source and the true symbols up to n

    inputs   START 2 1 .     N symbols, the true ones (teacher forcing)
    target   2     1 . END   exact: every one of them is the likeliest, so greedy writing gives this row
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, Rate, Split
from blockyard.objective.next_token import NextToken

if TYPE_CHECKING:
    import torchmetrics


class Translate(NextToken):
    """Next symbols given a source; validation and test losses are without smoothing.

    Options:
        label_smoothing: share of the target that is spread over all symbols, in training only
    """

    needs_source: ClassVar[bool] = True

    def __init__(self, *, label_smoothing: Rate = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean over the asked tokens, nats. prediction: (B, N, V); target: (B, N)."""
        logits, wanted = prediction.flatten(0, 1), target.flatten()
        return F.cross_entropy(logits, wanted, ignore_index=Batch.ignore, label_smoothing=self.label_smoothing)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Those of next_token, and `exact`, the share of rows whose every symbol is right."""
        from blockyard.objective._metrics import Exact

        return {**super().metrics(split), "exact": Exact()}
