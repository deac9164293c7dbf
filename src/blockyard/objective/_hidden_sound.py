"""The base of objectives that hide spans of a sound: the spans, and frames of log-mel energies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, Count, DataSpec, Objective, Positive, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.contracts.objective import source_as_input
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.split import Fraction
from blockyard.tokenizer.log_mel import hann, log_mel, mel_filters

MELS = 23  # bands of a frame
WINDOW = 0.025  # seconds of a window, unless a token spans more
RECORDINGS = 512  # recordings of the training split that are learned from, at most
FRAMES = 20_000  # frames that are learned from, at most
PART = 64  # recordings at a time


class HiddenSound(Objective):
    """Reads the source alone, with hidden spans; requires a bidirectional model.

    Options:
        rate: share of hidden tokens of a recording; less if spans overlap
        span: tokens that are hidden together
    """

    needs_causal = False
    takes = "token"
    needs_source: ClassVar[bool] = True
    source_modality: ClassVar[str | None] = "audio"
    reads: ClassVar[Literal["row", "source"]] = "source"
    name: ClassVar[str]

    def __init__(self, *, rate: Fraction = 0.5, span: Count = 10) -> None:
        self.rate = rate
        self.span = span
        self._source: TokenSpec | None = None
        self._rate = 0

    def check_source(self, data: DataSpec) -> None:
        """Keep the sampling rate. Raises ValueError for data without sounds as a source."""
        if data.source is None or data.source.rate is None:
            raise ValueError(f"objective={self.name} reads sounds, and the data has none as a source")
        self._rate = data.source.rate

    def source_tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens of the source, marked as hideable."""
        self._source = replace(tokens, hides=True)
        return self._source

    def training_frames(self, train: Split) -> Tensor:
        """Return frames (n, mels) of the training split. The same for every run over the same data."""
        chosen = torch.linspace(0, len(train) - 1, min(RECORDINGS, len(train))).round().long()
        points = torch.cat([self._frames_of(train, order) for order in chosen.split(PART)])
        return points[torch.linspace(0, len(points) - 1, min(FRAMES, len(points))).round().long()]

    def hidden(self, batch: Batch, key: int | None, count: int, tokens: Tensor) -> Tensor:
        """Return a mask of hidden tokens (B, N) out of `count`, a hash of (key, sample). tokens: (B,), real ones."""
        scores = uniform(0 if key is None else key, samples_of(batch), count).T  # (B, N)
        return self.spans(scores, tokens)

    def spans(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Return a mask of spans that begin at the lowest scores (B, N) of each recording: (B, N).

        tokens: (B,), the real tokens; a recording with any has at least one span
        """
        index = torch.arange(scores.shape[1], device=scores.device)
        real = index < tokens[:, None]
        count = (tokens * self.rate / self.span).round().clamp_min(1)
        begins = (scores.masked_fill(~real, 2.0).argsort(1).argsort(1) < count[:, None]) & real  # (B, N)
        latest = torch.where(begins, index, -self.span).cummax(1).values  # the last span that began
        return (index - latest < self.span) & real

    def tokens_of(self, samples: Tensor, lengths: Tensor | None) -> tuple[int, Tensor]:
        """Return the number N of tokens of samples (B, T), at least 1, and the number for each recording (B,)."""
        assert self._source is not None, "source_tokens() comes before tokens_of()"
        if lengths is None:
            lengths = torch.full((len(samples),), samples.shape[1], device=samples.device)
        return max(int(self._source.tokens_of(torch.tensor(samples.shape[1]))), 1), self._source.tokens_of(lengths)

    def frames(self, samples: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-mel frames (B, N, mels), one at the start of each token, and the tokens of each recording (B,)."""
        assert self._source is not None, "source_tokens() comes before frames()"
        samples = samples.float() if samples.is_floating_point() else samples / 32768
        stride = 1
        for _, step, _ in self._source.shrink:
            stride *= step
        window = max(stride, round(WINDOW * self._rate))
        most, tokens = self.tokens_of(samples, lengths)
        samples = F.pad(samples, (0, max((most - 1) * stride + window - samples.shape[1], 0)))
        filters = mel_filters(window, MELS, self._rate)
        shape = hann(window).to(samples.device)
        bands = filters.to(samples.device)
        return log_mel(samples, shape, stride, bands, tokens)[..., :most].transpose(1, 2), tokens

    def prepared(self, split: Split) -> Iterator[Batch]:
        """Yield a split's batches as evaluation sees them."""
        for order in torch.arange(len(split)).split(PART):
            yield self.ready(replace(split.batch(order, None), sample=order))

    def _frames_of(self, split: Split, order: Tensor) -> Tensor:
        batch = source_as_input(split.batch(order, None))
        frames, tokens = self.frames(batch.inputs, batch.lengths)
        return frames[torch.arange(frames.shape[1]) < tokens[:, None]]  # (frames, mels)


class SoundContrast(HiddenSound):
    """Tells the sound of a hidden token from other tokens of the same recording.

    Options:
        negatives: distractors for each hidden token, K; with repetitions
        temperature: divisor of similarities, T
    """

    @with_options_of(HiddenSound)
    def __init__(self, *, negatives: Count = 100, temperature: Positive = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.negatives = negatives
        self.temperature = temperature


def samples_of(batch: Batch) -> Tensor:
    """Return the index of each sample in its split (B,)."""
    return batch.numbers()
