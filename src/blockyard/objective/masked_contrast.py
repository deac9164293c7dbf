"""Masked contrast: which of many sounds of the same recording is hidden here? Learns without texts.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 3.2, equation 3. Its targets are learned and
    quantized, and a second loss keeps the codebook in use (equation 4): this is `quantized_contrast`. Table 4 has
    continuous targets. Here targets are log-mel frames: they are not learned, so they cannot collapse
Reference: transformers Wav2Vec2ForPreTraining.compute_contrastive_logits; _sample_negative_indices for distractors
Equation: mean over hidden n of -log (exp(sim(c_n, q_n) / T) / sum_{q in Q_n} exp(sim(c_n, q) / T)), sim the cosine,
    c_n the prediction, q_n the frame at token n, Q_n it and K frames of other hidden tokens of the recording

    source   ~ ~ ~ ~ ~ ~ ~ ~ ~ ~     N tokens, of any source_tokenizer of sound
    model    ~ ~ . . . . ~ ~ . .     reads the mask token in spans of `span` tokens
    at       2: is it the frame of 2, or one of 3, 4, 5, 8, 9?

Spans and distractors are a hash of the step's key and the sample's index; in evaluation they are fixed for each
sample. A distractor that equals the true frame, as in digital silence, does not count. The baseline `uniform`
prefers none, `nearest` predicts the frame of the nearest token that is not hidden.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baseline, Baselines, Batch, DataSpec, Split, TokenSpec
from blockyard.objective._contrast_metrics import ContrastLoss, SharedAccuracy, choose, similarities
from blockyard.objective._hidden_sound import MELS, SoundContrast

if TYPE_CHECKING:
    import torchmetrics


class HiddenContrast(NamedTuple):
    """The target of a batch.

    truth: (B, N) int64, 0 at hidden tokens, the index of the true one among the candidates; else `Batch.ignore`
    negatives: (B, N, K) int64, the tokens with the frames of the distractors
    frames: (B, N, F), standardized
    """

    truth: Tensor
    negatives: Tensor
    frames: Tensor


class MaskedContrast(SoundContrast):
    """Tells the sound of hidden tokens from others of the same recording; requires a bidirectional model.

    A recording with a single hidden token has no distractors, and does not count.
    """

    name = "masked_contrast"
    _scale: tuple[Tensor, Tensor] | None = None

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per band of a frame. Raises ValueError for data without sounds as a source."""
        self.check_source(data)
        return MELS

    def learn(self, train: Split) -> None:
        """Take the mean and the standard deviation of each band over frames of the training split."""
        frames = self.training_frames(train)
        self._scale = frames.mean(0), frames.std(0).clamp_min(1e-3)

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of recordings (B, T) with hidden tokens (B, N), and frames as its target."""
        assert self._scale is not None, "learn() comes before prepare()"
        frames, tokens = self.frames(batch.inputs, batch.lengths)  # (B, N, F)
        mean, size = (part.to(frames.device) for part in self._scale)
        hidden = self.hidden(batch, key, frames.shape[1], tokens)
        truth, negatives = choose(batch, hidden, key, self.negatives)
        return replace(batch, hidden=hidden, target=HiddenContrast(truth, negatives, (frames - mean) / size))

    def logits(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the similarities (B, N, 1 + K) of predictions (B, N, F) to the true frame and to the distractors."""
        frames = target.frames
        equal = (frames[:, :, None] == frames[:, None]).all(-1)  # (B, N, N)
        return similarities(prediction, frames, target.negatives, equal) / self.temperature

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the mean cross entropy over hidden tokens, in nats.

        prediction: (B, N, F); target: `HiddenContrast`
        """
        logits = self.logits(prediction, target)
        return F.cross_entropy(logits.flatten(0, 1), target.truth.flatten(), ignore_index=Batch.ignore)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss, and the share of hidden tokens with the true frame as the most similar one."""
        return {"loss": ContrastLoss(self.logits), "accuracy": SharedAccuracy(self.logits)}

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one."""
        return "loss", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the values of preferring no candidate, and of the frame of the nearest token that is not hidden."""
        values = cache(lambda: self._baseline_values(split))
        return Baselines(Baseline(name, partial(lambda name: values()[name], name)) for name in ("uniform", "nearest"))

    def _baseline_values(self, split: Split) -> dict[str, dict[str, float]]:
        metrics = self.metrics()
        total = torch.zeros(3, dtype=torch.float64)  # hidden tokens, and the loss and the accuracy of preferring none
        for batch in self.prepared(split):
            target: Any = batch.target
            for metric in metrics.values():
                metric.update(self._nearest(batch), target)
            counts = target.truth != Batch.ignore
            candidates = self.logits(target.frames, target).isfinite().sum(2)[counts].double()
            total += torch.stack([counts.sum(), candidates.log().sum(), candidates.reciprocal().sum()])
        uniform = {"loss": float(total[1] / total[0]), "accuracy": float(total[2] / total[0])}
        return {"uniform": uniform, "nearest": {name: float(metric.compute()) for name, metric in metrics.items()}}

    def _nearest(self, batch: Batch) -> Tensor:
        """Return the frame (B, N, F) of the nearest token that is not hidden, zeros where all are."""
        target: Any = batch.target
        assert self._source is not None
        assert batch.hidden is not None
        index = torch.arange(batch.hidden.shape[1])
        lengths = torch.full((len(batch),), batch.inputs.shape[1]) if batch.lengths is None else batch.lengths
        visible = ~batch.hidden & (index < self._source.tokens_of(lengths)[:, None])  # (B, N)
        distance = (index[:, None] - index).abs().expand(len(batch), -1, -1)  # (B, N, N)
        nearest = distance.masked_fill(~visible[:, None], len(index)).argmin(2)  # (B, N)
        frames: Tensor = target.frames
        frames = frames.gather(1, nearest[..., None].expand_as(frames))
        return frames * visible.any(1)[:, None, None]
