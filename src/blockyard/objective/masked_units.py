"""Masked units: the hidden kinds of sound are predicted. Learns from recordings without their texts.

Source: Hsu et al. 2021, HuBERT (arXiv 2106.07447), sections II.A and II.B: its first iteration, with log-mel frames
    in place of cepstral coefficients
Reference: transformers Wav2Vec2 _compute_mask_indices for spans; sklearn.cluster.KMeans
Equation: mean over hidden n of -log softmax(prediction_n)[u_n], u_n the nearest of K centres to the log-mel frame at
    token n

    source   ~ ~ ~ ~ ~ ~ ~ ~ ~ ~     N tokens, of any source_tokenizer of sound
    units    7 7 7 2 2 9 9 9 4 4     of the sound itself, by k-means of frames of the training split
    model    ~ ~ . . . . ~ ~ ~ ~     reads the mask token in spans of `span` tokens
    target       7 2 2 9

Spans are a hash of the step's key and the sample's index; in evaluation they are fixed for each sample. The baseline
`frequency` predicts the frequency of each unit in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Baselines, Batch, DataSpec, NonNegative, Rate, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.objective._baselines import rules
from blockyard.objective._cross_entropy import cross_entropy
from blockyard.objective._hidden_sound import HiddenSound
from blockyard.tokenizer._vq import kmeans, nearest

if TYPE_CHECKING:
    import torchmetrics

Units = Annotated[int, Ge(2), Le(4096)]


class MaskedUnits(HiddenSound):
    """Predicts the kind of sound in hidden spans from their surroundings; requires a bidirectional model.

    Options:
        units: kinds of sound, K
        label_smoothing: share of the target spread evenly over the units, in the training loss
        z_loss: factor of the squared logarithm of the softmax's normaliser, added to the training loss; 1e-4 in PaLM
    """

    name = "masked_units"

    @with_options_of(HiddenSound)
    def __init__(
        self, *, units: Units = 64, label_smoothing: Rate = 0.0, z_loss: NonNegative = 0.0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.units = units
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self._centres: Tensor | None = None
        self._shares: Tensor | None = None

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per unit. Raises ValueError for data without sounds as a source."""
        self.check_source(data)
        return self.units

    def learn(self, train: Split) -> None:
        """Cluster frames of the training split, the same for every run over the same data."""
        points = self.training_frames(train)
        self._centres = kmeans(points, self.units, torch.Generator().manual_seed(0))
        counts = nearest(points, self._centres).bincount(minlength=self.units)
        self._shares = (counts + 1) / (counts + 1).sum()  # one more each: no unit has an infinite loss

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of recordings (B, T) with hidden tokens (B, N), and their units (B, N) as its target."""
        assert self._centres is not None, "learn() comes before prepare()"
        frames, tokens = self.frames(batch.inputs, batch.lengths)  # (B, N, mels)
        units = nearest(frames.flatten(0, 1), self._centres.to(frames.device)).view(frames.shape[:2])
        hidden = self.hidden(batch, key, frames.shape[1], tokens)
        return replace(batch, hidden=hidden, target=units.masked_fill(~hidden, Batch.ignore))

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross entropy over hidden tokens, in nats. prediction: (B, N, K); target: (B, N)."""
        return cross_entropy(prediction, target, label_smoothing=self.label_smoothing, z_loss=self.z_loss)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss and accuracy over the hidden tokens."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

        return {"loss": MeanCrossEntropy(), "accuracy": Accuracy()}

    def best(self) -> tuple[str, str]:
        """Return the lowest loss as the best one."""
        return "loss", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the values of predicting the frequency of each unit in training."""
        assert self._shares is not None, "learn() comes before baselines()"
        shares = self._shares.log()

        def frequency(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            assert isinstance(batch.target, Tensor)
            yield "frequency", shares.expand(*batch.target.shape, -1)

        return Baselines(rules(split, self, ["frequency"], frequency))
