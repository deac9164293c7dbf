"""Language modelling: cross entropy of the next token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2), sec. 2; for several targets
    of the same logits KellerJordan/modded-nanogpt; head=multi_token has a head for each target, after Gloeckle et al.
    2024 (arXiv 2404.19737)
Reference: torch.nn.functional.cross_entropy; transformers GPT2LMHeadModel
Equation: -log softmax(prediction_n)[token_{n+1}], mean over the targets that are not ignored; with shift=0
    -log softmax(prediction_n)[token_n], for a model with a prediction n that does not depend on token n; with ahead=K
    the sum over k = 1 .. K of ahead_weight^(k - 1) times the mean of -log softmax(prediction_n)[token_{n+k}]

    sequence   a b c d e     N + 1 token ids
    inputs     a b c d       N
    target     b c d e       ignored if it is padding, or the first token of the next document in a
                             packed sequence

    shift=0    inputs b c d e, the same targets: each token is predicted at its own position, and the model reads only
               the tokens in front of it (mask "A" of van den Oord et al. 2016, arXiv 1601.06759); b is predicted from
               nothing, with shift=1 from a

Baselines that need no training are computed beside every run. Of texts `unigram` knows the frequency of each token, and
`word_before` that of each pair of tokens. Images are sequences of token ids too, with a start token in front: `uniform`
gives all token ids one probability, `independent` the frequencies at each index alone.
"""

from __future__ import annotations

from copy import copy
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
from blockyard.objective._baselines import of_image_tokens, of_next_tokens
from blockyard.objective._distillation import DistilledObjective
from blockyard.ops.projection import Projection, RawLogits

if TYPE_CHECKING:
    import torchmetrics


# Errors between data and their codes, if the split knows them: of pixels, and of sounds in decibels.
RECONSTRUCTIONS = ("reconstruction_mse", "reconstruction_lsd")
Ahead = Annotated[int, Ge(1), Le(64), Because("each target is a loss of its own over all token ids")]


class NextToken(DistilledObjective):
    """Predicts each token of a text or image from the tokens before it; requires a causal model.

    Options:
        ahead: number of tokens that the logits of a token predict in training, from the next one on; metrics are of the
            next one alone
        ahead_weight: factor on the loss of a further token, relative to the loss of the token before it
        shift: distance of the predicted token from the last token that is read: 1, or 0 for a model in which no token
            sees itself, such as token_mixer=strict_attention with asks=learned in block=no_residual
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
        self.ahead = ahead
        self.ahead_weight = ahead_weight
        self.own_position = shift == 0

    @classmethod
    def needs_strict(cls, options: ChoiceOptions) -> bool:
        """Return whether `shift` is 0."""
        return options.get("shift", 1) == 0

    @property
    def takes_projection(self) -> bool:
        """True unless a subclass has another loss."""
        return type(self).loss is NextToken.loss

    def loss(self, prediction: Any, target: Tensor) -> Tensor:
        """Return the loss of `ClassObjective`, with ahead above 1 plus the losses of further targets of each logit."""
        total = super().loss(prediction, target)
        weight = 1.0
        # A target behind an ignored one is ignored too: it is of another document, or there is none.
        reached = target != Batch.ignore  # (B, N)
        for shift in range(1, min(self.ahead, target.shape[1])):
            weight *= self.ahead_weight
            reached = reached[:, :-1] & (target[:, shift:] != Batch.ignore)  # (B, N - shift)
            later = target[:, shift:].masked_fill(~reached, Batch.ignore)
            if isinstance(prediction, Projection | RawLogits):
                some: Any = prediction.without_last(shift)
            else:
                some = prediction[:, :-shift]
            further = super().loss(some, later)
            total = total + weight * torch.where(reached.any(), further, torch.zeros_like(further))
        return total

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per predicted token id. Raises ValueError for tokens without a vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=next_token needs token ids; this tokenizer has no vocabulary")
        return tokens.predicted or tokens.vocabulary

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of N + 1 token ids as inputs (B, N) and the ids that follow them (B, N).

        A target from the data is aligned with the inputs and shifted in the same way.
        """
        token_ids = batch.inputs if batch.target is None else batch.target
        target = token_ids[:, 1:]
        segment = batch.segment
        lengths = batch.lengths
        if segment is not None:
            target = target.masked_fill(segment[:, 1:] != segment[:, :-1], Batch.ignore)
            segment = segment[:, 1:] if self.own_position else segment[:, :-1]
        if lengths is not None:
            index = lengths.new_ones(target.shape[1]).cumsum(0)  # 1 .. N, the index of each target
            target = target.masked_fill(index >= lengths[:, None], Batch.ignore)
            lengths = (lengths - 1).clamp_min(1)
        inputs = batch.inputs[:, 1:] if self.own_position else batch.inputs[:, :-1]
        return replace(batch, inputs=inputs, target=target, lengths=lengths, segment=segment)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss, accuracy, perplexity, and bits per byte of a split with `bytes_per_token`.

        Images have loss and bits per value of a pixel (`bits_per_dim`), or per code. With codes there is also the error
        of the decoded codes, since bits per code alone say nothing of the images: the mean squared error from 0 to 1,
        for sounds a distance in decibels.
        """
        from blockyard.objective._metrics import Accuracy, Bits, BitsPerByte, Given, MeanCrossEntropy, Perplexity

        loss = MeanCrossEntropy()
        facts: Any = split
        units = getattr(facts, "units", ())
        bytes_per_token = getattr(facts, "bytes_per_token", None)
        metrics: dict[str, torchmetrics.Metric] = {"loss": loss}
        if not units or bytes_per_token:
            metrics |= {"accuracy": Accuracy(), "perplexity": Perplexity(loss)}
        metrics |= {f"bits_per_{unit}": Bits(loss) for unit in units}
        if "code" in units:
            for name in RECONSTRUCTIONS:
                value = getattr(facts, name, None)
                if value is not None:
                    metrics[name] = Given(value)
        if bytes_per_token:
            metrics["bits_per_byte"] = BitsPerByte(loss, bytes_per_token)
        return self.further(metrics)

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return two rules that need no training, for images or for texts."""
        if getattr(split, "units", ()):
            return of_image_tokens(split, self)
        # Both read the token before a target as its input, which with shift=0 is the target itself.
        shifted = copy(self)
        shifted.own_position = False
        return of_next_tokens(split, train, shifted)

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one."""
        return "loss", "min"
