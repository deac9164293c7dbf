"""Masked language modelling: cross entropy of randomly selected tokens, most of them hidden from the model.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3.1, Task 1 (15 % selected; 80/10/10).
Reference: transformers DataCollatorForLanguageModeling
Equation: mean over the selected n of -log softmax(prediction_n)[token_n], selected again at each step

    sequence    t  h  e     c  a  t
    selected       h        c            a share `rate` of the tokens of each sequence, at least one
    inputs      t  _  e     c  a  t      a share `hidden` of them become the mask token, `random` a random token,
    target      .  h  .  .  c  .  .      the rest stay; padding and the prefix are never selected

The selection is a hash of the step's key and the sample's index, so it does not depend on the number of processes and
micro-batches; in evaluation it is fixed for each sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, NonNegative, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.split import Fraction
from blockyard.objective._distillation import DistilledObjective

if TYPE_CHECKING:
    import torchmetrics


class MaskedToken(DistilledObjective):
    """Predicts selected tokens from both sides; requires a bidirectional model.

    Options:
        rate: share of the tokens of a sequence to select
        hidden: share of the selected tokens replaced by the mask token
        random: share of the selected tokens replaced by a random token; the rest stay
    """

    needs_causal = False
    takes = "token"
    modality = "text"

    @with_options_of(DistilledObjective)
    def __init__(
        self, *, rate: Fraction = 0.15, hidden: NonNegative = 0.8, random: NonNegative = 0.1, **options: Any
    ) -> None:
        if hidden + random > 1 + 1e-9:
            raise ValueError(
                f"objective.hidden={hidden} and objective.random={random} are shares of the selected tokens; "
                "their sum must not exceed 1"
            )
        self.rate = rate
        self.hidden = hidden
        self.random = random
        super().__init__(**options)
        self._tokens: TokenSpec | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens with a mask token as a further id of the vocabulary, unless they have one."""
        if tokens.vocabulary is None:
            return tokens
        if tokens.mask is not None:
            self._tokens = tokens
            return tokens
        self._tokens = replace(tokens, vocabulary=tokens.vocabulary + 1, mask=tokens.vocabulary)
        return self._tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per token id. Raises ValueError for tokens without a vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=masked_token needs token ids; this tokenizer has no vocabulary")
        return tokens.vocabulary

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of N + 1 token ids as inputs (B, N), some masked, and the ids of selected tokens (B, N)."""
        assert self._tokens is not None, "tokens() comes before prepare()"
        assert self._tokens.mask is not None
        width = self._tokens.max_len
        mask = self._tokens.mask
        token_ids = batch.inputs[:, :width]  # (B, N)
        target = token_ids if batch.target is None else batch.target[:, :width]
        lengths = None if batch.lengths is None else batch.lengths.clamp_max(width)
        segment = None if batch.segment is None else batch.segment[:, :width]
        size, columns = token_ids.shape
        sample = batch.numbers()
        # Three numbers per position, which depend on its index only: padding to another width does not change them.
        random = uniform(0 if key is None else key, sample, 3 * columns).T.reshape(size, columns, 3)  # (B, N, 3)
        selected = self._select(random[..., 0], lengths)
        kind = random[..., 1]  # decides between mask, random and unchanged token
        assert self._tokens.vocabulary is not None
        # Random tokens exclude the mask: the ids from it on move up by one.
        other = (random[..., 2] * (self._tokens.vocabulary - 1)).long()  # (B, N)
        other = other + (other >= mask).long()
        replaced = torch.where(kind < self.hidden + self.random, other, token_ids)
        replaced = torch.where(kind < self.hidden, mask, replaced)
        return replace(
            batch,
            inputs=torch.where(selected, replaced, token_ids),
            target=target.masked_fill(~selected, Batch.ignore),
            lengths=lengths,
            segment=segment,
        )

    def _select(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """Return a mask of the tokens with the lowest scores (B, N): an exact share `rate` of each sequence."""
        columns = scores.shape[1]
        if lengths is None:
            lengths = torch.full((len(scores),), columns, device=scores.device)
        index = torch.arange(columns, device=scores.device)
        padding = index >= lengths[:, None]  # (B, N)
        count = (lengths * self.rate).round().clamp_min(1)  # (B,), so that all sequences weigh alike
        rank = scores.masked_fill(padding, 2.0).argsort(1).argsort(1)
        return (rank < count[:, None]) & ~padding

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss, accuracy and perplexity over the selected tokens."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy, Perplexity

        loss = MeanCrossEntropy()
        return self.further({"loss": loss, "accuracy": Accuracy(), "perplexity": Perplexity(loss)})

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one."""
        return "loss", "min"
