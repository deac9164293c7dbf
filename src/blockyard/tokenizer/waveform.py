"""Waveform stem: strided convolutions over the samples themselves, no spectrogram.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 2, feature encoder
Reference: transformers Wav2Vec2FeatureEncoder and Wav2Vec2FeatureProjection
Equation: for each stage GELU(norm(conv(x))), at the end W LayerNorm(x) + b
Cost: O(T channels^2 kernel / stride) time in the first layers, which are the longest

    samples  -> 10 wide, every 5th -> 3, 2 -> 3, 2 -> 3, 2 -> 2, 2 -> 2, 2 -> LayerNorm -> D       at 8 kHz: 50 tokens/s

norm=group takes out the mean and the size of each channel over the whole recording in the first stage, as the base
model does. Here padding does not count. In the reference it does; hence its advice to pass no mask.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Length, Role, Tokenizer, TokenSpec, Width
from blockyard.ops.linear import Linear
from blockyard.tokenizer._audio import AudioEmbedder, StridedConv, audio_tokens, mask, windows_of
from blockyard.weight_init import Init

Norm = Literal["group", "layer", "none"]
EPSILON = 1e-5


class Waveform(Tokenizer):
    """Wav2vec 2.0's feature encoder.

    Options:
        kernels: width of each convolution, in outputs of the convolution before
        strides: distance from one window to the next, in outputs of the convolution before
        channels: output channels of each convolution
        norm: group normalises each channel of the first convolution over time; layer normalises over the channels of
            each convolution; none does not normalise
        standardize: first take the mean and the size of the samples out of each recording
    """

    modality = "audio"
    axes = 1

    def __init__(
        self,
        *,
        kernels: tuple[Length, ...] = (10, 3, 3, 3, 2, 2),
        strides: tuple[Length, ...] = (5, 2, 2, 2, 2, 2),
        channels: Width = 64,
        norm: Norm = "group",
        standardize: bool = True,
    ) -> None:
        if len(kernels) != len(strides) or not kernels:
            raise ValueError(
                f"tokenizer.kernels={list(kernels)} and tokenizer.strides={list(strides)} need a number for each "
                "convolution"
            )
        self.kernels = kernels
        self.strides = strides
        self.channels = channels
        self.norm: Norm = norm
        self.standardize = standardize

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token for each window of the last convolution."""
        stages = tuple((kernel, stride, 0) for kernel, stride in zip(self.kernels, self.strides, strict=True))
        return audio_tokens(data, stages)

    def embedder(self, ctx: Context) -> WaveformEmbedder:
        """Build the convolutions."""
        return WaveformEmbedder(ctx, self)


class WaveformEmbedder(AudioEmbedder):
    """Convolutions over samples, then a projection."""

    roles: ClassVar[dict[str, Role]] = {"norms": "fixed", "final_norm": "fixed"}

    def __init__(self, ctx: Context, options: Waveform) -> None:
        super().__init__(ctx)
        channels = options.channels
        self.standardize = options.standardize
        convs: list[nn.Module] = []
        norms: list[nn.Module] = []
        for number, stage in enumerate(self.stages):
            # GELU makes unit normals about 0.6 in size; weights of sqrt(2) keep the signal alive (He et al. 2015).
            convs.append(StridedConv(channels if number else 1, channels, stage, role="fixed", bias=False, std=2**0.5))
            if options.norm == "layer":
                norms.append(ChannelNorm(channels))
            else:
                norms.append(nn.Identity() if number or options.norm == "none" else TimeNorm(channels))
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(norms)
        self.final_norm = nn.LayerNorm(channels, eps=EPSILON)
        self.proj = Linear(channels, ctx.dim, bias=True, std=ctx.input_std * channels**-0.5, role="input")

    def vectors(self, samples: Tensor, lengths: Tensor | None) -> Tensor:
        """Samples (B, T) -> (B, D, N)."""
        x = samples[:, None]  # (B, 1, T)
        if self.standardize:
            x = mask(over_time(x, lengths, 1e-7), lengths)
        for conv, norm, stage in zip(self.convs, self.norms, self.stages, strict=True):
            x = conv(x)
            lengths = windows_of(lengths, stage)
            x = norm(x, lengths) if isinstance(norm, TimeNorm) else norm(x)
            x = mask(F.gelu(x), lengths)
        return self.proj(self.final_norm(x.transpose(1, 2))).transpose(1, 2)  # (B, D, N)


def over_time(x: Tensor, lengths: Tensor | None, epsilon: float) -> Tensor:
    """Return x (B, C, T) without the mean and the size of each channel over the first `lengths` (B,) items."""
    if lengths is None:
        mean = x.mean(2, keepdim=True)  # (B, C, 1)
        variance = x.var(2, correction=0, keepdim=True)
    else:
        # Padding is left out of both sums, so that a recording has the same moments in every batch.
        count = lengths.clamp_min(1)[:, None, None]
        mean = mask(x, lengths).sum(2, keepdim=True) / count
        variance = mask((x - mean).square(), lengths).sum(2, keepdim=True) / count
    return (x - mean) * (variance + epsilon).rsqrt()


class TimeNorm(nn.Module):
    """A mean of zero and a size of one for each channel over a recording, then a gain and a bias for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def init_weights(self, init: Init) -> None:
        """Set gain one, bias zero."""
        init.ones("weight")
        init.zeros("bias")

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, C, T) with `lengths` (B,) real items -> (B, C, T)."""
        return over_time(x, lengths, EPSILON) * self.weight[:, None] + self.bias[:, None]


class ChannelNorm(nn.LayerNorm):
    """A layer norm of the channels of x (B, C, T)."""

    def init_weights(self, init: Init) -> None:
        """Set gain one, bias zero."""
        init.ones("weight")
        init.zeros("bias")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, T) -> (B, C, T)."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)
