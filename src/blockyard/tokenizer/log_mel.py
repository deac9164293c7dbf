"""Log-mel spectrogram: the loudness of bands of frequencies in short windows, then two strided convolutions.

Source: Stevens, Volkmann and Newman 1937, A Scale for the Measurement of the Psychological Magnitude Pitch; with two
    convolutions as in Radford et al. 2022, Whisper (arXiv 2212.04356), section 2.2; masks in training as in Park et al.
    2019, SpecAugment (arXiv 1904.08779), section 2
Reference: transformers WhisperFeatureExtractor, WhisperEncoder.conv1 and conv2; torch.stft(center=False)
Equation: S_mt = log10 max(sum_f F_mf |rfft(hann samples_t)|_f^2, 1e-10), cut off 8 below the largest of the recording,
    then (S + 4) / 4
Cost: O(T log window) time for the spectrogram, O(frames D^2) for the convolutions

    samples   |--window--|            25 ms; only whole windows count
                 |--window--|         one every 10 ms
    frames    m m m m m m m m         a column of `mels` numbers each
    tokens    x   x   x   x           subsample 2: 20 ms each
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, CountOrZero, DataSpec, Tokenizer, TokenSpec
from blockyard.ops.autocast import full_precision
from blockyard.tokenizer._audio import AudioEmbedder, StridedConv, audio_tokens, check_audio, mask, windows_of

Milliseconds = Annotated[float, Gt(0), Le(1000)]
Bands = Annotated[int, Ge(1), Le(512)]


class LogMel(Tokenizer):
    """Whisper's features at any sampling rate.

    Options:
        mels: bands of frequencies, evenly spaced on the mel scale up to half the sampling rate
        window_ms: length of a window in milliseconds
        hop_ms: distance from one window to the next in milliseconds
        subsample: windows from one token to the next
        mask_bands: largest number of neighbouring bands that each of two masks hides in training
        mask_frames: largest number of windows that each of two masks hides in training
    """

    modality = "audio"
    axes = 1

    def __init__(
        self,
        *,
        mels: Bands = 40,
        window_ms: Milliseconds = 25.0,
        hop_ms: Milliseconds = 10.0,
        subsample: Literal[2, 4] = 4,
        mask_bands: CountOrZero = 0,
        mask_frames: CountOrZero = 0,
    ) -> None:
        if mask_bands > mels:
            raise ValueError(f"tokenizer.mask_bands={mask_bands} is more than all of tokenizer.mels={mels}")
        self.mels = mels
        self.window_ms = window_ms
        self.hop_ms = hop_ms
        self.subsample = subsample
        self.mask_bands = mask_bands
        self.mask_frames = mask_frames

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token every `subsample` windows. Raises ValueError for an empty window or band."""
        window, hop = self.window(data)
        _, rate = check_audio(data)
        check_bands(window, self.mels, rate)
        return audio_tokens(data, ((window, hop, 0), (3, self.subsample // 2, 2), (3, 2, 2)))

    def window(self, data: DataSpec) -> tuple[int, int]:
        """Return the samples of a window, and from one window to the next."""
        return window_samples(data, self.window_ms, self.hop_ms)

    def embedder(self, ctx: Context) -> LogMelEmbedder:
        """Build the convolutions."""
        return LogMelEmbedder(ctx, self)


def window_samples(data: DataSpec, window_ms: float, hop_ms: float) -> tuple[int, int]:
    """Return the samples of a window, and from one window to the next. Raises ValueError for too few."""
    _, rate = check_audio(data)
    window = round(rate * window_ms / 1000)
    hop = round(rate * hop_ms / 1000)
    if window < 2 or hop < 1:
        raise ValueError(
            f"tokenizer.window_ms={window_ms:g} and tokenizer.hop_ms={hop_ms:g} are {window} and {hop} "
            f"samples at {rate} Hz; a window needs two and a hop one"
        )
    return window, hop


class LogMelEmbedder(AudioEmbedder):
    """The spectrogram, and two convolutions with GELU."""

    hann: Tensor
    filters: Tensor

    def __init__(self, ctx: Context, options: LogMel) -> None:
        super().__init__(ctx)
        (self.window, self.hop, _), first, second = self.stages
        self.mask_bands = options.mask_bands
        self.mask_frames = options.mask_frames
        assert ctx.data.rate is not None
        self.register_buffer("hann", hann(self.window), persistent=False)
        self.register_buffer("filters", mel_filters(self.window, options.mels, ctx.data.rate), persistent=False)
        self.conv1 = StridedConv(options.mels, ctx.dim, first, role="input")
        std = 2 * ctx.input_std  # GELU halves small numbers
        self.conv2 = StridedConv(ctx.dim, ctx.dim, second, role="hidden", std=std)

    def vectors(self, samples: Tensor, lengths: Tensor | None) -> Tensor:
        """Samples (B, T) -> (B, D, N)."""
        lengths = windows_of(lengths, self.stages[0])
        x = log_mel(samples, self.hann, self.hop, self.filters, lengths)  # (B, mels, frames)
        if self.training:
            x = x * spared(x, 1, self.mask_bands) * spared(x, 2, self.mask_frames)
        # The second window of a stage may reach behind the end of a recording: each stage masks its outputs.
        for conv in (self.conv1, self.conv2):
            lengths = windows_of(lengths, conv.stage)
            x = mask(F.gelu(conv(x)), lengths)
        return x  # (B, D, N)


def spared(x: Tensor, axis: int, widest: int) -> Tensor | float:
    """Return zeros and ones that broadcast to x (B, mels, F), with two runs of up to `widest` zeros along an axis.

    They are drawn from torch's generator, like dropout. A `widest` of 0 returns 1.
    """
    if not widest:
        return 1.0
    width, start = torch.rand(2, len(x), 2, 1, device=x.device)  # (B, 2, 1) each
    width = (width * (widest + 1)).floor()
    start = start * (x.shape[axis] - width).clamp_min(0)
    index = torch.arange(x.shape[axis], device=x.device)
    hidden = ((index >= start) & (index < start + width)).any(1)  # (B, size)
    return (~hidden).to(x.dtype).unsqueeze(3 - axis)


def log_mel(samples: Tensor, window: Tensor, hop: int, filters: Tensor, frames: Tensor | None = None) -> Tensor:
    """Return Whisper's features (B, mels, F) of samples (B, T), zero behind the last of `frames` (B,).

    window: (W,)
    filters: (mels, W // 2 + 1)
    """
    # Powers have a range beyond half precision.
    with full_precision(samples):
        spectrum = torch.fft.rfft(samples.to(window.dtype).unfold(1, len(window), hop) * window)  # (B, F, W // 2 + 1)
        power = spectrum.real.square() + spectrum.imag.square()
        logs = (power @ filters.T).clamp_min(1e-10).log10().transpose(1, 2)  # (B, mels, F)
    if frames is not None:  # the largest value of the recording itself, without the silence behind it
        inside = torch.arange(logs.shape[2], device=logs.device) < frames[:, None]
        largest = logs.masked_fill(~inside[:, None], -10.0).amax((1, 2), keepdim=True)
    else:
        largest = logs.amax((1, 2), keepdim=True)
    return mask((torch.maximum(logs, largest - 8) + 4) / 4, frames)


def hann(size: int) -> Tensor:
    """Return the periodic Hann window (size,)."""
    return torch.sin(torch.pi * torch.arange(size, dtype=torch.float64) / size).square().float()


def mel_filters(window: int, mels: int, rate: int) -> Tensor:
    """Return triangles over the frequencies of a window, (mels, window // 2 + 1), on Slaney's mel scale.

    Source: Slaney 1998, Auditory Toolbox, linear up to 1 kHz and logarithmic above; each triangle has an area of one
    Reference: transformers.audio_utils.mel_filter_bank(norm="slaney", mel_scale="slaney")
    Raises ValueError if a triangle lies between two frequencies.
    """
    check_bands(window, mels, rate)
    edges = torch.tensor(_edges(mels, rate), dtype=torch.float64, device="cpu")
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]  # (mels, 1)
    frequency = torch.arange(window // 2 + 1, dtype=torch.float64, device="cpu") * rate / window
    filters = torch.minimum((frequency - low) / (middle - low), (high - frequency) / (high - middle)).clamp_min(0)
    return (filters * 2 / (high - low)).float()


def check_bands(window: int, mels: int, rate: int) -> None:
    """Raise ValueError if a triangle of `mel_filters` lies between two frequencies of a window."""
    edges = _edges(mels, rate)
    frequencies = [index * rate / window for index in range(window // 2 + 1)]
    empty = 0
    for low, high in zip(edges[:-2], edges[2:], strict=True):
        inside = bisect_left(frequencies, high) - bisect_right(frequencies, low)
        empty += inside < 1
    if empty:
        raise ValueError(
            f"tokenizer.mels={mels}: {empty} bands hold no frequency of a window of {window} samples at {rate} Hz; use "
            "fewer bands or a larger tokenizer.window_ms"
        )


def _edges(mels: int, rate: int) -> list[float]:
    """Return the edges of the triangles in Hz, evenly spaced on Slaney's mel scale up to half the sampling rate."""
    linear = 200 / 3  # Hz of a mel below 1 kHz
    log_step = math.log(6.4) / 27  # logarithm of the ratio of two mels above
    last = rate / 2 / linear
    if rate / 2 >= 1000:
        last = 15 + math.log(rate / 2 / 1000) / log_step
    edges = []
    for index in range(mels + 2):
        mel = last * index / (mels + 1)
        edges.append(mel * linear if mel < 15 else 1000 * math.exp((mel - 15) * log_step))
    return edges
