"""Masked units: which of a few kinds of sound is hidden here? Learns from recordings without their texts.

Source: Hsu et al. 2021, HuBERT (arXiv 2106.07447), sections II.A and II.B: its first iteration, with log-mel frames
    in place of cepstral coefficients
Reference: transformers Wav2Vec2 _compute_mask_indices for spans; sklearn.cluster.KMeans
Equation: mean over hidden n of -log softmax(prediction_n)[u_n], u_n the nearest of K centres to the log-mel frame at
    token n

    source   ~ ~ ~ ~ ~ ~ ~ ~ ~ ~     N tokens, of any source_tokenizer of sound
    units    7 7 7 2 2 9 9 9 4 4     of the sound itself, by k-means of frames of the training split
    model    ~ ~ . . . . ~ ~ ~ ~     reads the mask token in spans of `span` tokens
    target       7 2 2 9

Which spans is a hash of the step's key and the sample's index; in evaluation they are fixed for each sample. The
baseline `frequency` predicts how often each unit occurs in training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, Count, DataSpec, NonNegative, Objective, Rate, Split, TokenSpec
from blockyard.contracts.objective import source_as_input
from blockyard.data._hash import uniform
from blockyard.data._split import Fraction
from blockyard.objective._cross_entropy import cross_entropy
from blockyard.tokenizer._kmeans import kmeans, nearest
from blockyard.tokenizer.log_mel import hann, log_mel, mel_filters

if TYPE_CHECKING:
    import torchmetrics

Units = Annotated[int, Ge(2), Le(4096)]
MELS, WINDOW = 23, 0.025  # bands of a frame; seconds of a window, or those from one token to the next if more
RECORDINGS, FRAMES = 512, 20_000  # of the training split that centres are learned from, at most
PART = 64  # recordings at a time


class MaskedUnits(Objective):
    """Predicts the kind of sound in hidden spans from what is around them; requires a bidirectional model.

    Options:
        units: kinds of sound, K
        rate: share of the tokens of a recording that is hidden, less where spans overlap
        span: tokens that are hidden together
        label_smoothing: share of the target spread evenly over the units, in the training loss
        z_loss: factor of the squared logarithm of the softmax's normaliser, added to the training loss; 1e-4 in PaLM
    """

    needs_causal = False
    takes = "token"
    needs_source: ClassVar[bool] = True
    source_modality: ClassVar[str | None] = "audio"
    reads: ClassVar[Literal["row", "source"]] = "source"

    def __init__(
        self,
        *,
        units: Units = 64,
        rate: Fraction = 0.5,
        span: Count = 10,
        label_smoothing: Rate = 0.0,
        z_loss: NonNegative = 0.0,
    ) -> None:
        self.units, self.rate, self.span = units, rate, span
        self.label_smoothing, self.z_loss = label_smoothing, z_loss
        self._source: TokenSpec | None = None
        self._rate = 0
        self._centres: Tensor | None = None
        self._shares: Tensor | None = None

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """One logit per unit. Raises ValueError for data without sounds as a source."""
        if data.source is None or data.source.rate is None:
            raise ValueError("objective=masked_units reads sounds, and the data has none as a source")
        self._rate = data.source.rate
        return self.units

    def source_tokens(self, tokens: TokenSpec) -> TokenSpec:
        """The same tokens of the source, some of which are hidden."""
        self._source = replace(tokens, hides=True)
        return self._source

    def learn(self, train: Split) -> None:
        """Cluster frames of the training split. The same for every run over the same data."""
        chosen = torch.linspace(0, len(train) - 1, min(RECORDINGS, len(train))).round().long()
        points = torch.cat([self._frames_of(train, order) for order in chosen.split(PART)])
        points = points[torch.linspace(0, len(points) - 1, min(FRAMES, len(points))).round().long()]
        self._centres = kmeans(points, self.units, torch.Generator().manual_seed(0))
        counts = nearest(points, self._centres).bincount(minlength=self.units)
        self._shares = (counts + 1) / (counts + 1).sum()

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Recordings (B, T) -> hidden tokens (B, N), and the units of those (B, N)."""
        assert self._centres is not None, "learn() comes before prepare()"
        frames, tokens = self.frames(batch.inputs, batch.lengths)  # (B, N, mels)
        units = nearest(frames.flatten(0, 1), self._centres.to(frames.device)).view(frames.shape[:2])
        sample = torch.arange(len(frames), device=frames.device) if batch.sample is None else batch.sample
        scores = uniform(0 if key is None else key, sample, frames.shape[1]).T  # (B, N)
        hidden = self.spans(scores, tokens)
        return replace(batch, hidden=hidden, target=units.masked_fill(~hidden, Batch.ignore))

    def spans(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Returns which tokens are hidden, (B, N): spans that begin at the lowest scores (B, N) of each recording.

        tokens: (B,), those that are real; a recording that has any has one span at least
        """
        index = torch.arange(scores.shape[1], device=scores.device)
        real = index < tokens[:, None]
        count = (tokens * self.rate / self.span).round().clamp_min(1)
        begins = (scores.masked_fill(~real, 2.0).argsort(1).argsort(1) < count[:, None]) & real  # (B, N)
        latest = torch.where(begins, index, -self.span).cummax(1).values  # the last span that began
        return (index - latest < self.span) & real

    def frames(self, samples: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns log-mel frames (B, N, mels), one where each token begins, and the number of tokens of each (B,)."""
        assert self._source is not None, "source_tokens() comes before frames()"
        samples = samples.float() if samples.is_floating_point() else samples / 32768
        if lengths is None:
            lengths = torch.full((len(samples),), samples.shape[1], device=samples.device)
        stride = 1
        for _, step, _ in self._source.shrink:
            stride *= step
        window = max(stride, round(WINDOW * self._rate))
        most = max(int(self._source.tokens_of(torch.tensor(samples.shape[1]))), 1)
        tokens = self._source.tokens_of(lengths)
        samples = F.pad(samples, (0, max((most - 1) * stride + window - samples.shape[1], 0)))
        filters = mel_filters(window, MELS, self._rate)
        parts = (each.to(samples.device) for each in (hann(window), filters))
        shape, bands = parts
        return log_mel(samples, shape, stride, bands, tokens)[..., :most].transpose(1, 2), tokens

    def _frames_of(self, split: Split, order: Tensor) -> Tensor:
        batch = source_as_input(split.batch(order, None))
        frames, tokens = self.frames(batch.inputs, batch.lengths)
        return frames[torch.arange(frames.shape[1]) < tokens[:, None]]  # (frames, mels)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy over the hidden tokens, in nats. prediction: (B, N, K); target: (B, N)."""
        return cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Loss and accuracy over the hidden tokens."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}

    def best(self) -> tuple[str, str]:
        """The lowest loss."""
        return "loss", "min"

    def baselines(self, split: Split) -> dict[str, dict[str, float]]:
        """Of predicting each unit as often as it occurs in training."""
        assert self._shares is not None, "learn() comes before baselines()"
        metrics = self.metrics()
        for order in torch.arange(len(split)).split(PART):
            batch = self.ready(replace(split.batch(order, None), sample=order))
            assert isinstance(batch.target, Tensor)
            for metric in metrics.values():
                metric.update(self._shares.log().expand(*batch.target.shape, -1), batch.target)
        return {"frequency": {name: float(metric.compute()) for name, metric in metrics.items()}}
