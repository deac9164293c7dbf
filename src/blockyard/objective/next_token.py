"""Language modelling: cross entropy of the next token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2), sec. 2.
Reference: torch.nn.functional.cross_entropy; transformers GPT2LMHeadModel
Equation: -log softmax(prediction_n)[token_{n+1}], mean over the targets that are not ignored

    sequence   a b c d e     N + 1 token ids
    inputs     a b c d       N
    target     b c d e       ignored where it is padding, or the first token of the next document in a
                             packed sequence

Images are sequences of token ids too, with a start token in front. Baselines that need no training are computed beside
every run on them: `uniform` gives all token ids one probability, `independent` those of each index alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from blockyard.contracts import Baselines, Batch, DataSpec, Split, TokenSpec
from blockyard.objective._baselines import of_image_tokens
from blockyard.objective._classes import ClassObjective

if TYPE_CHECKING:
    import torchmetrics


class NextToken(ClassObjective):
    """Predicts each token from those before it, of texts and images; requires a causal model."""

    needs_causal = True
    takes = "token"
    modality: ClassVar[str | tuple[str, ...] | None] = ("text", "image")
    predicts_next = True

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per token id that is predicted. Raises ValueError where the tokens have no vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=next_token needs token ids; this tokenizer has no vocabulary")
        return tokens.predicted or tokens.vocabulary

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Sequences of N + 1 token ids -> inputs (B, N) and the ids that follow them (B, N).

        A target from the data is aligned with the inputs and shifted in the same way.
        """
        token_ids = batch.inputs if batch.target is None else batch.target
        target = token_ids[:, 1:]
        segment, lengths = batch.segment, batch.lengths
        if segment is not None:
            target = target.masked_fill(segment[:, 1:] != segment[:, :-1], Batch.ignore)
            segment = segment[:, :-1]
        if lengths is not None:
            index = lengths.new_ones(target.shape[1]).cumsum(0)  # 1 .. N, the index of each target
            target = target.masked_fill(index >= lengths[:, None], Batch.ignore)
            lengths = (lengths - 1).clamp_min(1)
        return replace(batch, inputs=batch.inputs[:, :-1], target=target, lengths=lengths, segment=segment)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss, accuracy, perplexity, and bits per byte where the split has `bytes_per_token`.

        Of images loss and bits per value of a pixel (`bits_per_dim`), or per code, and then also the mean squared
        error of what the codes stand for, from 0 to 1: bits per code alone say nothing of the images.
        """
        from blockyard.objective._metrics import Accuracy, Bits, BitsPerByte, Given, MeanCrossEntropy, Perplexity

        loss = MeanCrossEntropy()
        facts: Any = split
        units, bytes_per_token = getattr(facts, "units", ()), getattr(facts, "bytes_per_token", None)
        metrics: dict[str, torchmetrics.Metric] = {"loss": loss}
        if not units or bytes_per_token:
            metrics |= {"accuracy": Accuracy(), "perplexity": Perplexity(loss)}
        metrics |= {f"bits_per_{unit}": Bits(loss) for unit in units}
        if "code" in units:
            metrics["reconstruction_mse"] = Given(facts.reconstruction_mse)
        if bytes_per_token:
            metrics["bits_per_byte"] = BitsPerByte(loss, bytes_per_token)
        return self.further(metrics)

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Of images, two rules that need no training; nothing of texts."""
        return of_image_tokens(split, self)

    def best(self) -> tuple[str, str]:
        """The lowest loss."""
        return "loss", "min"
