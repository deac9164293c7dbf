"""Answer: cross entropy at the positions where the data provides a target token.

Source: Arora et al. 2023, Zoology (arXiv 2312.04927), section 3: accuracy over the queries only
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[target_n], mean over the n that have a target

    inputs   a 3 b 7 . . b . a      the answer belongs to the query token and does not follow it in the inputs,
    target   . . . . . . 7 . 3      so causal and bidirectional models can be trained alike
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from blockyard.contracts import DataSpec, NonNegative, Objective, Rate, Split, TokenSpec
from blockyard.objective._cross_entropy import cross_entropy

if TYPE_CHECKING:
    import torchmetrics


class Answer(Objective):
    """Loss and metrics over the positions with a target; all others are ignored.

    Options:
        label_smoothing: share of the target spread evenly over the vocabulary, in the training loss
        z_loss: factor of the squared logarithm of the softmax's normaliser, added to the training loss; 1e-4 in PaLM
    """

    takes = "token"
    target = "symbols"

    def __init__(self, *, label_smoothing: Rate = 0.0, z_loss: NonNegative = 0.0) -> None:
        self.label_smoothing, self.z_loss = label_smoothing, z_loss

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per token id. Raises ValueError where the tokens have no vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=answer needs token ids; this tokenizer has no vocabulary")
        return tokens.vocabulary

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy over the targets, in nats. prediction: (B, N, V); target: (B, N)."""
        return cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss and accuracy over the targets, and `exact`, the share of sequences with every target correct."""
        from blockyard.objective._metrics import Accuracy, ExactMatch, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy(), "exact": ExactMatch()}

    def best(self) -> tuple[str, str]:
        """The highest accuracy."""
        return "accuracy", "max"
