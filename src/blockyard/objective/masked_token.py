"""Hidden symbols of a text from those around them, by cross entropy: masked language modelling.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3.1, Task 1 (15 % asked; 80/10/10).
Reference: transformers DataCollatorForLanguageModeling
Equation: mean over the asked n of -log softmax(prediction_n)[symbol_n], the asked drawn anew at each step

    row of the data   t  h  e     c  a  t
    asked                e        c            a share `rate` of each row's symbols, at least one
    inputs            t  _  h     c  a  t      `hidden` of them read as the mask symbol, `random` as any other,
    target            .  e  .  .  c  .  .      the rest as they are; nothing is asked of padding or the prefix

Which symbols are asked is a hash of the step's key and the sample's number, so it is the same in any
number of processes and pieces; in evaluation it is fixed for each sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, NonNegative, Objective, Split, TokenSpec
from blockyard.data._hash import uniform
from blockyard.data._split import Fraction

if TYPE_CHECKING:
    import torchmetrics


class MaskedToken(Objective):
    """Hides symbols and asks for them; needs a model that looks both ways.

    Options:
        rate: share of a row's symbols that is asked
        hidden: share of the asked that the model reads as the mask symbol
        random: share of the asked that it reads as a random symbol; the rest it reads as they are
    """

    needs_causal = False
    takes = "token"
    modality = "text"

    def __init__(self, *, rate: Fraction = 0.15, hidden: NonNegative = 0.8, random: NonNegative = 0.1) -> None:
        if hidden + random > 1 + 1e-9:
            raise ValueError(
                f"objective.hidden={hidden} and objective.random={random} are shares of the asked symbols; "
                "together they must not exceed 1"
            )
        self.rate, self.hidden, self.random = rate, hidden, random
        self._tokens: TokenSpec | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """One symbol more, the mask."""
        if tokens.vocabulary is None:
            return tokens
        self._tokens = replace(tokens, vocabulary=tokens.vocabulary + 1, mask=tokens.vocabulary)
        return self._tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per symbol. Raises ValueError where the tokens are no symbols."""
        if tokens.vocabulary is None:
            raise ValueError("objective=masked_token needs symbols; this tokenizer gives vectors without a vocabulary")
        return tokens.vocabulary

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Rows of N + 1 symbols -> inputs (B, N), some hidden, and their true symbols (B, N), the others ignored."""
        assert self._tokens is not None, "tokens() comes before prepare()"
        assert self._tokens.mask is not None
        width, mask = self._tokens.max_len, self._tokens.mask
        symbols = batch.inputs[:, :width]  # (B, N)
        wanted = symbols if batch.target is None else batch.target[:, :width]
        lengths = None if batch.lengths is None else batch.lengths.clamp_max(width)
        segment = None if batch.segment is None else batch.segment[:, :width]
        rows, columns = symbols.shape
        sample = torch.arange(rows, device=symbols.device) if batch.sample is None else batch.sample
        # Three numbers a place, numbered by the place alone: padding to another width draws no others.
        draws = uniform(0 if key is None else key, sample, 3 * columns).T.reshape(rows, columns, 3)  # (B, N, 3)
        asked = self._asked(draws[..., 0], lengths)
        kind = draws[..., 1]
        # The mask is the last symbol, so it is not among those drawn.
        other = (draws[..., 2] * mask).long()  # (B, N)
        read = torch.where(kind < self.hidden, mask, torch.where(kind < self.hidden + self.random, other, symbols))
        return replace(
            batch,
            inputs=torch.where(asked, read, symbols),
            target=wanted.masked_fill(~asked, Batch.ignore),
            lengths=lengths,
            segment=segment,
        )

    def _asked(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """Of each row the lowest scores (B, N), as many as `rate` says: an exact share, so that rows weigh alike."""
        columns = scores.shape[1]
        if lengths is None:
            lengths = torch.full((len(scores),), columns, device=scores.device)
        place = torch.arange(columns, device=scores.device)
        behind = place >= lengths[:, None]  # (B, N), the padding
        count = (lengths * self.rate).round().clamp_min(1)  # (B,)
        rank = scores.masked_fill(behind, 2.0).argsort(1).argsort(1)
        return (rank < count[:, None]) & ~behind

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean over the asked tokens, nats. prediction: (B, N, V); target: (B, N)."""
        return F.cross_entropy(prediction.flatten(0, 1), target.flatten(), ignore_index=Batch.ignore)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss, accuracy and perplexity of the asked symbols."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy, Perplexity

        loss = MeanCrossEntropy()
        return {"loss": loss, "accuracy": Accuracy(), "perplexity": Perplexity(loss)}

    def best(self) -> tuple[str, str]:
        """The lowest loss."""
        return "loss", "min"
