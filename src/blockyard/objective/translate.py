"""Translation: cross entropy of the next token given a source sequence, with exact match.

Source: Sutskever, Vinyals and Le 2014, Sequence to Sequence Learning with Neural Networks (arXiv 1409.3215);
    Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 5.4, for the smoothing.
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[token_{n+1}], given the source and the true tokens up to n

    inputs   START 2 1 .     N token ids, the true ones (teacher forcing)
    target   2     1 . END   exact: every one is the most likely, so greedy decoding gives this sequence
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from blockyard.contracts import Baselines, Split
from blockyard.objective._baselines import of_written_texts
from blockyard.objective.next_token import NextToken

if TYPE_CHECKING:
    import torchmetrics


class Translate(NextToken):
    """Predicts each token from the source and the tokens before it."""

    modality: ClassVar[str | tuple[str, ...] | None] = "text"
    needs_source: ClassVar[bool] = True

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Those of next_token, and `exact`, the share of sequences with every token correct."""
        from blockyard.objective._metrics import ExactMatch

        return {**super().metrics(split), "exact": ExactMatch()}

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """The word before alone; of texts from texts also a copy of the source, and the nearest training source."""
        return of_written_texts(split, train, self)
