"""Language modelling: cross entropy of the next token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2), sec. 2; for several targets
    of the same logits KellerJordan/modded-nanogpt; with a head for each target Gloeckle et al. 2024 (arXiv 2404.19737),
    which is head=multi_token
Reference: torch.nn.functional.cross_entropy; transformers GPT2LMHeadModel
Equation: -log softmax(prediction_n)[token_{n+1}], mean over the targets that are not ignored; with shift=0
    -log softmax(prediction_n)[token_n], of a model whose prediction n does not depend on token n; with ahead=K the sum
    over k = 1 .. K of ahead_weight^(k - 1) times the mean of -log softmax(prediction_n)[token_{n+k}]

    sequence   a b c d e     N + 1 token ids
    inputs     a b c d       N
    target     b c d e       ignored where it is padding, or the first token of the next document in a
                             packed sequence

    shift=0    inputs b c d e, the same targets: what is predicted stands at its own position, and the model reads only
               what is in front of it (mask "A" of van den Oord et al. 2016, arXiv 1601.06759); b is predicted from
               nothing, where shift=1 has read a

Images are sequences of token ids too, with a start token in front. Baselines that need no training are computed beside
every run on them: `uniform` gives all token ids one probability, `independent` those of each index alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import (
    Baselines,
    Batch,
    Because,
    ChoiceOptions,
    DataSpec,
    Positive,
    Split,
    TokenSpec,
)
from blockyard.contracts.inherited_options import with_options_of
from blockyard.objective._baselines import of_image_tokens
from blockyard.objective._distillation import DistilledObjective
from blockyard.ops.projection import Projection

if TYPE_CHECKING:
    import torchmetrics


# What is lost between data and its codes, where the split has it: of pixels, and in decibels of sounds.
RECONSTRUCTIONS = ("reconstruction_mse", "reconstruction_lsd")
Ahead = Annotated[int, Ge(1), Le(64), Because("each target is a loss of its own over all token ids")]


class NextToken(DistilledObjective):
    """Predicts each token from those before it, of texts and images; requires a causal model.

    Options:
        ahead: tokens whose loss the logits of a token have in training, the next one and those after it; metrics are of
            the next one alone
        ahead_weight: factor on the loss of each further token, relative to that of the one before it
        shift: by how many places the predicted token is behind the last one that is read: 1, or 0 for a model in which
            no token sees itself, such as token_mixer=strict_attention with asks=learned in block=no_residual
    """

    needs_causal = True
    takes = "token"
    modality: ClassVar[str | tuple[str, ...] | None] = ("text", "image")
    predicts_next = True

    @with_options_of(DistilledObjective)
    def __init__(
        self, *, ahead: Ahead = 1, ahead_weight: Positive = 0.5, shift: Literal[0, 1] = 1, **options: Any
    ) -> None:
        super().__init__(**options)
        self.ahead, self.ahead_weight = ahead, ahead_weight
        self.own_position = shift == 0

    @classmethod
    def needs_strict(cls, options: ChoiceOptions) -> bool:
        """Whether `shift` is 0."""
        return options.get("shift", 1) == 0

    @property
    def takes_projection(self) -> bool:
        """True where the loss is the one of this class."""
        return type(self).loss is NextToken.loss

    def loss(self, prediction: Any, target: Tensor) -> Tensor:
        """As `ClassObjective.loss`, and with ahead above 1 the losses of further targets of the same logits.

        A target after one that is ignored is ignored too: it is of another document, or there is none.
        """
        total = super().loss(prediction, target)
        weight, reached = 1.0, target != Batch.ignore
        for shift in range(1, min(self.ahead, target.shape[1])):
            weight *= self.ahead_weight
            reached = reached[:, :-1] & (target[:, shift:] != Batch.ignore)  # (B, N - shift)
            later = target[:, shift:].masked_fill(~reached, Batch.ignore)
            if isinstance(prediction, Projection):
                some: Any = prediction._replace(x=prediction.x[:, :-shift])
            else:
                some = prediction[:, :-shift]
            further = super().loss(some, later)
            total = total + weight * torch.where(reached.any(), further, torch.zeros_like(further))
        return total

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
            segment = segment[:, :-1] if not self.own_position else segment[:, 1:]
        if lengths is not None:
            index = lengths.new_ones(target.shape[1]).cumsum(0)  # 1 .. N, the index of each target
            target = target.masked_fill(index >= lengths[:, None], Batch.ignore)
            lengths = (lengths - 1).clamp_min(1)
        inputs = batch.inputs[:, :-1] if not self.own_position else batch.inputs[:, 1:]
        return replace(batch, inputs=inputs, target=target, lengths=lengths, segment=segment)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss, accuracy, perplexity, and bits per byte where the split has `bytes_per_token`.

        Of images loss and bits per value of a pixel (`bits_per_dim`), or per code, and then also the mean squared
        error of what the codes stand for, from 0 to 1, or of sounds their distance from it in decibels: bits per code
        alone say nothing of the images.
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
            lost = ((name, getattr(facts, name, None)) for name in RECONSTRUCTIONS)
            metrics |= {name: Given(value) for name, value in lost if value is not None}
        if bytes_per_token:
            metrics["bits_per_byte"] = BitsPerByte(loss, bytes_per_token)
        return self.further(metrics)

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Of images, two rules that need no training; nothing of texts."""
        return of_image_tokens(split, self)

    def best(self) -> tuple[str, str]:
        """The lowest loss."""
        return "loss", "min"
