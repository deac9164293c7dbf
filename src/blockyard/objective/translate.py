"""Translation: cross entropy of the next token given a source sequence, with exact match of texts.

Source: Sutskever, Vinyals and Le 2014, Sequence to Sequence Learning with Neural Networks (arXiv 1409.3215);
    Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 5.4, for the smoothing.
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[token_{n+1}], given the source and the true tokens up to n

    inputs   START 2 1 .     N token ids, the true ones (teacher forcing)
    target   2     1 . END   exact: every one is the most likely, so greedy decoding gives this sequence

What is written may be codes of images or sounds. There a right output has many forms, so that exact match says nothing:
`blockyard eval write=true` lets a judge of the data read what is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from blockyard.contracts import Baselines, ReadsOutputs, Split
from blockyard.objective._baselines import of_image_tokens, of_written_outputs, of_written_texts
from blockyard.objective.next_token import NextToken

if TYPE_CHECKING:
    import torchmetrics


class Translate(NextToken):
    """Predicts each token from the source and the tokens before it."""

    modality: ClassVar[str | tuple[str, ...] | None] = ("text", "image", "audio")
    needs_source: ClassVar[bool] = True

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Those of next_token, and of texts `exact`, the share of sequences with every token correct."""
        from blockyard.objective._metrics import ExactMatch

        metrics = super().metrics(split)
        return {**metrics, "exact": ExactMatch()} if "accuracy" in metrics else metrics

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Of texts the word before alone, and from texts also a copy of the source and the nearest training source.

        Of codes those of next_token, and what a judge of the data reads in the true outputs and in the nearest one.
        """
        if isinstance(split, ReadsOutputs):
            return of_image_tokens(split, self) | of_written_outputs(split, train)
        return of_written_texts(split, train, self)
