"""Answer: cross entropy at the positions for which the data provides a target token.

Source: Arora et al. 2023, Zoology (arXiv 2312.04927), section 3: accuracy over the queries only
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[target_n], mean over the n that have a target

    inputs   a 3 b 7 . . b . a      the answer belongs to the query token and does not follow it in the inputs,
    target   . . . . . . 7 . 3      so causal and bidirectional models can be trained alike
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockyard.contracts import DataSpec, Split, TokenSpec
from blockyard.objective._classes import ClassObjective

if TYPE_CHECKING:
    import torchmetrics


class Answer(ClassObjective):
    """Loss and metrics over the positions with a target; all others are ignored."""

    takes = "token"
    target = "symbols"

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per token id. Raises ValueError for tokens without a vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=answer needs token ids; this tokenizer has no vocabulary")
        return tokens.vocabulary

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss and accuracy over the targets, and `exact`, the share of sequences with every target correct."""
        from blockyard.objective._metrics import Accuracy, ExactMatch, MeanCrossEntropy

        return self.further({"loss": MeanCrossEntropy(), "accuracy": Accuracy(), "exact": ExactMatch()})

    def best(self) -> tuple[str, str]:
        """Return the highest accuracy as the best one."""
        return "accuracy", "max"
