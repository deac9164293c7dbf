"""Translation: cross entropy of the next token given a source sequence, with exact match of texts.

Source: Sutskever, Vinyals and Le 2014, Sequence to Sequence Learning with Neural Networks (arXiv 1409.3215);
    Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 5.4, for the smoothing.
Reference: torch.nn.functional.cross_entropy
Equation: -log softmax(prediction_n)[token_{n+1}], given the source and the true tokens up to n

    inputs   START 2 1 .     N token ids, the true ones (teacher forcing)
    target   2     1 . END   exact: every one is the most likely, so greedy decoding gives this sequence

The target may be codes of images or sounds. A right output then has many forms, so that exact match says nothing:
`blockyard eval write=true` lets a judge of the data read the outputs.
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
        """Return the metrics of next_token; for texts also `exact`, the share of sequences without an error."""
        from blockyard.objective._metrics import ExactMatch

        metrics = super().metrics(split)
        if "accuracy" in metrics:  # texts, not codes
            metrics["exact"] = ExactMatch()
        return metrics

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the baselines of written texts, or of codes.

        Texts have the word before alone, and from texts also a copy of the source and the nearest training source.
        Codes have the baselines of next_token, and a judge's scores of the output of the nearest training source.
        """
        if isinstance(split, ReadsOutputs):
            return of_image_tokens(split, self) | of_written_outputs(split, train)
        return of_written_texts(split, train, self)
