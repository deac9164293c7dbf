"""Shared parts of tokenizers of sound: convolutions over time that see nothing behind the end of a recording.

A batch pads short recordings on the right. Each stage takes windows of the stage before. A window counts if it lies
within the recording; some stages pad the ends of the recording with zeros. Outputs of a stage behind the end are set to
zero, so that the next stage reads the same as if the recording came alone.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Embedder, Role, Seq, TokenSpec
from blockyard.tokenizer._grid import grid_coordinates
from blockyard.weight_init import Init

Stage = tuple[int, int, int]  # items of a window, from one window to the next, items added to the ends together


def check_audio(data: DataSpec) -> tuple[int, int]:
    """Return samples and samples a second. Raises ValueError for other data."""
    if data.modality != "audio":
        raise ValueError(f"this tokenizer reads audio, the data gives {data.things}")
    if data.rate is None:
        raise ValueError("audio data must say how many samples make a second: DataSpec(rate=16000)")
    return data.shape[0], data.rate


def audio_tokens(data: DataSpec, stages: tuple[Stage, ...]) -> TokenSpec:
    """Return the tokens of these stages. Raises ValueError if the longest recording gives none."""
    samples, rate = check_audio(data)
    spec = TokenSpec((1,), variable=data.variable, shrink=stages, causal=False)
    count = spec.tokens_of(samples)
    if not count:
        raise ValueError(
            f"the longest recording has {samples} samples ({samples / rate:.3g} s), and the first token needs "
            f"{least(stages)}; use longer recordings or shorter windows"
        )
    return TokenSpec((count,), variable=data.variable, shrink=stages, causal=False)


def least(stages: tuple[Stage, ...]) -> int:
    """Return the number of items that make one token."""
    items = 1
    for window, stride, added in reversed(stages):
        items = (items - 1) * stride + window - added
    return max(items, 1)


class StridedConv(nn.Conv1d):
    """Windows over time.

    std: standard deviation of the initial weights times the square root of the inputs of a window; 1 keeps the scale of
        the inputs
    """

    def __init__(self, d_in: int, d_out: int, stage: Stage, *, role: Role, bias: bool = True, std: float = 1.0) -> None:
        window, stride, added = stage
        self.stage = stage
        self.std = std
        self.roles: dict[str, Role] = {"weight": role, "bias": "fixed" if role == "fixed" else "vector"}
        super().__init__(d_in, d_out, window, stride=stride, padding=added // 2, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Draw normal weights; zero bias."""
        init.normal("weight", std=self.std * self.weight[0].numel() ** -0.5)
        init.zeros("bias")


def mask(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, C, T) with zeros from `lengths` (B,) on; None keeps all."""
    if lengths is None:
        return x
    inside = torch.arange(x.shape[2], device=x.device) < lengths[:, None]  # (B, T)
    return torch.where(inside[:, None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def windows_of(lengths: Tensor | None, stage: Stage) -> Tensor | None:
    """Return the number of windows (B,) of sequences of `lengths` (B,) items."""
    if lengths is None:
        return None
    return TokenSpec((1,), shrink=(stage,)).tokens_of(lengths)


class AudioEmbedder(Embedder):
    """Embeds recordings. Subclasses compute the vectors.

    inputs: (B, samples), floats in [-1, 1], or whole numbers of 16 bits, to be divided by 32768
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.stages = ctx.tokens.shrink
        self.tokens = ctx.tokens

    @abstractmethod
    def vectors(self, samples: Tensor, lengths: Tensor | None) -> Tensor:
        """Samples (B, T), zero from `lengths` (B,) on -> (B, D, N)."""

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Recordings (B, T) of `lengths` (B,) samples -> x (B, N, D), Seq.

        Raises ValueError for inputs of another shape, and for arguments that only text has.
        """
        if segment is not None or start:
            raise ValueError("a recording is one full sequence of tokens; omit segment and cache")
        if inputs.ndim != 2:
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: this model reads recordings (batch, samples)")
        samples = inputs if inputs.is_floating_point() else inputs / 32768
        short = least(self.stages) - samples.shape[1]
        if short > 0:  # no recording of the batch gives a token: a token of padding takes their place
            lengths = torch.full_like(samples[:, 0], samples.shape[1]).long() if lengths is None else lengths
            samples = F.pad(samples, (0, short))
        samples = mask(samples[:, None], lengths)[:, 0]
        x = self.vectors(samples, lengths).transpose(1, 2)  # (B, N, D)
        index, coords = (part.to(x.device) for part in grid_coordinates((x.shape[1],)))
        valid = None if lengths is None else index < self.tokens.tokens_of(lengths)[:, None]  # (B, N)
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        return x, Seq(index, coords.to(samples.dtype), valid, grid=(x.shape[1],))
