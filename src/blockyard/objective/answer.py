"""The symbol that the data asks for, where it asks for one, by cross entropy.

Source: Arora et al. 2023, Zoology (arXiv 2312.04927), section 3: accuracy over the queries alone
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[target_n], mean over the asked n

    inputs   a 3 b 7 . . b . a      the answer lies on the token that asks for it and is not among the inputs
    target   . . . . . . 7 . 3      of the present or the past, so models of either kind may be asked
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Objective, Split, TokenSpec

if TYPE_CHECKING:
    import torchmetrics


class Answer(Objective):
    """Judges the asked places of a row and no others."""

    takes = "token"
    target = "symbols"

    def __init__(self) -> None:
        pass

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per symbol. Raises ValueError where the tokens are no symbols."""
        if tokens.vocabulary is None:
            raise ValueError("objective=answer needs symbols; this tokenizer gives vectors without a vocabulary")
        return tokens.vocabulary

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean over the asked tokens, nats. prediction: (B, N, V); target: (B, N)."""
        return F.cross_entropy(prediction.flatten(0, 1), target.flatten(), ignore_index=Batch.ignore)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss and accuracy of the asked symbols, and `exact`, the share of rows with all of them right."""
        from blockyard.objective._metrics import Accuracy, Exact, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy(), "exact": Exact()}

    def best(self) -> tuple[str, str]:
        """The highest accuracy."""
        return "accuracy", "max"
