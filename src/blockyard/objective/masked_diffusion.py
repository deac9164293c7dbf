"""Masked diffusion: a language model that fills in hidden tokens at every rate of hiding, with a bound on likelihood.

Source: Sahoo et al. 2024, Simple and Effective Masked Diffusion Language Models (arXiv 2406.07524), equation 11; Shi et
    al. 2024, Simplified and Generalized Masked Diffusion (arXiv 2406.04329), equation 4, with the linear schedule; for
    an exact number of hidden tokens Ou et al. 2024 (arXiv 2406.03736), equation 3.14
Reference: kuleshov-group/mdlm
Equation: -log p(x) <= E over t ~ U(0, 1) of 1/t sum over the hidden n of -log softmax(prediction_n)[x_n], where each
    token is hidden with probability t on its own; the mask token has probability zero. Integrated over t, this is the
    mean over k = 1 ... N, all equally likely, and over all choices of k hidden tokens, with the weight N/k in place of
    1/t. It is computed in this form, because 1/t has an infinite variance

    sequence    t  h  e     c  a  t        N = 7, k = 2, drawn anew for each sequence
    inputs      t  _  e     _  a  t        hidden tokens become the mask token
    weight      .  3.5 .  . 3.5 .  .       N/k of hidden tokens

The shares k/N of consecutive samples are spread evenly over (0, 1] (a sequence of low discrepancy), for a less noisy
bound. The hidden tokens are a hash of the step's key and the sample's index, so they do not depend on the number of
processes and micro-batches; in evaluation they are fixed for each sample.

The bound over bytes is comparable with the bits per byte of `next_token` on the same text. It is an upper bound on the
model's own bits per byte: a decoder of the same size usually has less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Objective, Split, TokenSpec
from blockyard.data.splits.hash import uniform

if TYPE_CHECKING:
    import torchmetrics

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, lie evenly in [0, 1)


class Diffused(NamedTuple):
    """The target of a batch.

    token_ids: (B, N) int64, all real tokens, `Batch.ignore` at padding
    weight: (B, N) float, N/k at hidden tokens, else zero
    """

    token_ids: Tensor
    weight: Tensor


class MaskedDiffusion(Objective):
    """Hides a share of the tokens, drawn anew for each sequence; requires a bidirectional model.

    The loss is a bound in nats on the cross entropy of a token, a mean over many shares.
    """

    needs_causal = False
    takes = "token"
    modality = "text"
    fills_gaps = True

    def __init__(self) -> None:
        self._tokens: TokenSpec | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens with a mask token as a further id of the vocabulary, unless they have one."""
        if tokens.vocabulary is None:
            return tokens
        if tokens.mask is None:
            tokens = replace(tokens, vocabulary=tokens.vocabulary + 1, mask=tokens.vocabulary)
        self._tokens = tokens
        return tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per token id. Raises ValueError for tokens without a vocabulary."""
        if tokens.vocabulary is None:
            raise ValueError("objective=masked_diffusion needs token ids; this tokenizer has no vocabulary")
        return tokens.vocabulary

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return inputs with hidden tokens (B, N) and a `Diffused` target."""
        mask, width = self._mask, self._max_len
        token_ids = batch.inputs[:, :width]  # (B, N)
        lengths = None if batch.lengths is None else batch.lengths.clamp_max(width)
        size, columns = token_ids.shape
        sample = batch.numbers()
        key = 0 if key is None else key
        index = torch.arange(columns, device=token_ids.device)
        real = torch.full((size, 1), columns, device=token_ids.device) if lengths is None else lengths[:, None]
        padding = index >= real  # (B, N)
        count = (self.shares(sample, key)[:, None] * real).ceil().clamp_min(1)  # (B, 1)
        # By the index of a position only: padding to another width changes nothing.
        order = uniform(key, sample, columns).T.masked_fill(padding, 2.0).argsort(1).argsort(1)
        hidden = (order < count) & ~padding
        return replace(
            batch,
            inputs=token_ids.masked_fill(hidden, mask),
            target=Diffused(token_ids.masked_fill(padding, Batch.ignore), (hidden * real / count).float()),
            lengths=lengths,
            segment=None if batch.segment is None else batch.segment[:, :width],
        )

    def shares(self, sample: Tensor, key: int) -> Tensor:
        """Return the share of tokens to hide in each sample (B,), in (0, 1]."""
        shift = uniform(key, torch.zeros_like(sample[:1]), 1)[0]  # (1,), the same for all samples of a step
        return 1 - (shift + sample.double() * GOLDEN) % 1

    @property
    def _mask(self) -> int:
        assert self._tokens is not None, "tokens() comes before prepare()"
        assert self._tokens.mask is not None
        return self._tokens.mask

    @property
    def _max_len(self) -> int:
        assert self._tokens is not None, "tokens() comes before prepare()"
        return self._tokens.max_len

    def nats(self, prediction: Tensor, target: Any) -> Tensor:
        """Return N/k times the cross entropy of each hidden token, zero at others: (B, N, V), `Diffused` -> (B, N)."""
        logits = prediction.float()
        column = torch.arange(logits.shape[-1], device=logits.device)
        logits = logits.masked_fill(column == self._mask, -torch.inf)  # the mask has probability zero
        losses = F.cross_entropy(
            logits.flatten(0, 1), target.token_ids.flatten(), ignore_index=Batch.ignore, reduction="none"
        )
        return losses.view_as(target.weight) * target.weight

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the bound in nats a token, a mean over all real tokens, hidden or not."""
        counted = Batch.counted(target.token_ids)
        return (self.nats(prediction, target) * counted).sum() / counted.sum().clamp_min(1)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return the bound in nats a token (loss), its perplexity, and bits per byte with `bytes_per_token`."""
        from blockyard.objective._metrics import BitsPerByte, MeanBound, Perplexity

        loss = MeanBound(self.nats)
        metrics: dict[str, torchmetrics.Metric] = {"loss": loss, "perplexity": Perplexity(loss)}
        bytes_per_token = getattr(split, "bytes_per_token", None)
        if bytes_per_token:
            metrics["bits_per_byte"] = BitsPerByte(loss, bytes_per_token)
        return metrics

    def best(self) -> tuple[str, str]:
        """Return the lowest bound as the best one."""
        return "loss", "min"
