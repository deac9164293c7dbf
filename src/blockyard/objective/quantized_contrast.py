"""Quantized contrast: which learned code of the same recording stands at a hidden token?

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 3.2, equation 3; for `information`
    van den Oord et al. 2018, Contrastive Predictive Coding (arXiv 1807.03748), equation 5
Reference: transformers Wav2Vec2ForPreTraining
Equation: mean over hidden n of -log (exp(sim(c_n, q_n) / T) / sum_{q in Q_n} exp(sim(c_n, q) / T)), sim the cosine,
    c_n the prediction, q_n the code at token n, Q_n this code and the codes of K other hidden tokens of the recording

    source   ~ ~ ~ ~ ~ ~ ~ ~ ~ ~     N tokens, of any source_tokenizer of sound
    codes    7 7 7 2 2 9 9 9 4 4     of the vectors of these tokens, learned by head=contrast
    model    ~ ~ . . . . ~ ~ . .     reads the mask token in spans of `span` tokens
    at       2: is it the 7 of 2, or one of 2, 2, 9, 4, 4?

The authors' code leaves out distractors that are the true code (`distinct=true`). Then the loss is 0 if all tokens have
one code, and with the authors' head.diversity=0.1 a small model found this solution before anything else; so the
default is the equation. Checkpoints are selected by `information`, log (1 + K) less the cross entropy among all
candidates: a lower bound on the information of the surroundings about the code, in nats, and 0 if the codes have
collapsed. In `accuracy`, candidates that are equally similar share the point. The baseline `uniform` prefers none.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baseline, Baselines, Batch, DataSpec, Split, TokenSpec, Width
from blockyard.contracts.inherited_options import with_options_of
from blockyard.objective._contrast_metrics import ContrastLoss, Information, SharedAccuracy, choose, similarities
from blockyard.objective._hidden_sound import SoundContrast

if TYPE_CHECKING:
    import torchmetrics


class Candidates(NamedTuple):
    """truth: (B, N) int64, 0 at hidden tokens, else `Batch.ignore`; negatives: (B, N, K), the tokens of the others."""

    truth: Tensor
    negatives: Tensor


class QuantizedContrast(SoundContrast):
    """Tells the code of hidden tokens from others of the same recording; requires a bidirectional model, head=contrast.

    A recording with a single hidden token has no distractors, and does not count.

    Options:

        width: channels in which predictions and codes are compared, F
        distinct: leave out distractors that are the true code
    """

    name = "quantized_contrast"
    takes: ClassVar[str] = "contrast"

    @with_options_of(SoundContrast)
    def __init__(self, *, width: Width = 64, distinct: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.distinct = distinct

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return F. Raises ValueError for data without sounds as a source."""
        self.check_source(data)
        return self.width

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of recordings (B, T) with hidden tokens (B, N), and `Candidates` as its target."""
        count, tokens = self.tokens_of(batch.inputs, batch.lengths)
        hidden = self.hidden(batch, key, count, tokens)
        return replace(batch, hidden=hidden, target=Candidates(*choose(batch, hidden, key, self.negatives)))

    def logits(self, prediction: Tensor, target: Any, *, distinct: bool) -> Tensor:
        """Return (B, N, 1 + K), the true code first. distinct: -inf for distractors that are the true code.

        prediction: (B, N, 2 F + G), of head=contrast
        """
        predicted = prediction[..., : self.width]  # (B, N, F)
        codes = prediction[..., self.width : 2 * self.width]  # (B, N, F)
        ids = prediction[..., 2 * self.width :]  # (B, N, G)
        equal = (ids[:, :, None] == ids[:, None]).all(-1) if distinct else None  # (B, N, N)
        return similarities(predicted, codes, target.negatives, equal) / self.temperature

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the mean cross entropy over hidden tokens, in nats.

        prediction: (B, N, 2 F + G); target: `Candidates`
        """
        logits = self.logits(prediction, target, distinct=self.distinct)
        return F.cross_entropy(logits.flatten(0, 1), target.truth.flatten(), ignore_index=Batch.ignore)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return the loss, and accuracy and information over all candidates."""

        def all_candidates(prediction: Tensor, target: Any) -> Tensor:
            return self.logits(prediction, target, distinct=False)

        def counted(prediction: Tensor, target: Any) -> Tensor:
            return self.logits(prediction, target, distinct=self.distinct)

        return {
            "loss": ContrastLoss(counted),
            "accuracy": SharedAccuracy(all_candidates),
            "information": Information(all_candidates, math.log(1 + self.negatives)),
        }

    def best(self) -> tuple[str, str]:
        """Return the highest information as the best one."""
        return "information", "max"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the values of preferring no candidate."""
        uniform = {"accuracy": 1 / (1 + self.negatives), "information": 0.0}
        return Baselines([Baseline("uniform", lambda: uniform)])
