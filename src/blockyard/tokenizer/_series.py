"""Shared parts of tokenizers of time series: missing values, and the scale of each history."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from blockyard.contracts import Context, DataSpec, Embedder, Seq
from blockyard.ops.linear import Linear

Normalise: TypeAlias = Literal["none", "instance", "last"]
EPSILON = 1e-5  # added to variances, as in RevIN and PatchTST


def resolved_normalise(normalise: str, data: DataSpec) -> str:
    """Return a normalisation for the data: in place of `auto`, `none` for series with a class each, else `instance`."""
    # The level and the size of a series may tell its class. In a forecast they are put back.
    if normalise != "auto":
        return normalise
    return "none" if data.target == "class" else "instance"


def remarks_on_classes(normalise: str, data: DataSpec) -> Iterator[str]:
    """Yield a sentence if a normalisation takes out the level or size of series with a class each."""
    taken = {"instance": "its mean and standard deviation", "last": "its last value", "first": "the mean of its start"}
    if data.target == "class" and normalise in taken:
        yield (
            f"tokenizer.normalise={normalise} takes {taken[normalise]} out of each series, and a class that shows in "
            "them is lost; tokenizer.normalise=none keeps them, standardized over the training series"
        )


def check_series(data: DataSpec) -> tuple[int, int]:
    """Return steps and channels. Raises ValueError for other data."""
    if data.modality != "series":
        raise ValueError(f"this tokenizer reads series, the data gives {data.things}")
    steps, channels = data.shape
    return steps, channels


def check_one_length(data: DataSpec) -> None:
    """Raise ValueError for series of different lengths."""
    if data.variable:
        raise ValueError("this tokenizer reads histories of one length; use tokenizer=series_patch")


def check_history(inputs: Tensor, steps: int, channels: int, *others: object, variable: bool = False) -> None:
    """Raise ValueError for inputs of another shape, and for arguments that only text has.

    variable: fewer steps are allowed
    """
    if any(others):
        raise ValueError("a history is one full sequence of tokens; omit lengths, segment and cache")
    if inputs.ndim != 3 or inputs.shape[2] != channels or not (inputs.shape[1] == steps or variable):
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)}: this model reads histories (batch, {steps}, {channels})"
        )


def standardize(x: Tensor, how: str, first: int = 1) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Return the values without the level and size of each history, and the level and size: `Seq.scale`.

    x: (B, steps, C) with NaN for missing values; they stay NaN
    how: instance takes out mean and standard deviation of each channel of a history (Kim et al. 2022, RevIN, without
        its affine weights); last its last value (NLinear, Zeng et al. 2023); first the mean of its `first` first steps;
        none nothing
    """
    if how == "none":
        return x, None
    if how == "last":
        offset = fill_forward(x)[:, -1:]  # (B, 1, C)
        size = torch.ones_like(x[:, :1])
    elif how == "first":
        offset = x[:, :first].nanmean(1, keepdim=True).nan_to_num()
        size = torch.ones_like(x[:, :1])
    else:
        offset = x.nanmean(1, keepdim=True).nan_to_num()  # (B, 1, C)
        size = ((x - offset).square().nanmean(1, keepdim=True).nan_to_num() + EPSILON).sqrt()
    return (x - offset) / size, (offset, size)


def fill_forward(x: Tensor) -> Tensor:
    """Return x (B, steps, C) with each missing value replaced by the value before it, or by zero without one."""
    observed = ~x.isnan()
    index = torch.arange(x.shape[1], device=x.device)[None, :, None]
    # The running maximum of the indices of observed steps is the last observed step so far.
    latest = torch.where(observed, index, -1).cummax(1).values  # (B, steps, C)
    filled = x.nan_to_num().gather(1, latest.clamp_min(0))
    return torch.where(latest < 0, torch.zeros_like(filled), filled)


class HistoryEmbedder(Embedder):
    """Embeds sets of whole histories. Subclasses return the histories in `parts`.

    Raises ValueError without a projection if the width of the model is not the length of a history.
    """

    index: Tensor
    coords: Tensor

    def __init__(self, ctx: Context, normalise: str, project: bool) -> None:
        super().__init__()
        self.normalise = resolved_normalise(normalise, ctx.data)
        self.steps, self.channels = ctx.data.shape
        if not project and ctx.dim != self.steps:
            raise ValueError(
                f"tokenizer.project=false passes histories of {self.steps} steps on, so model.dim={ctx.dim} must be "
                f"{self.steps}; use model.dim={self.steps} or tokenizer.project=true"
            )
        std = ctx.input_std * self.steps**-0.5
        self.proj = Linear(self.steps, ctx.dim, bias=True, std=std, role="input") if project else None
        self.register_buffer("index", torch.arange(ctx.tokens.max_len), persistent=False)
        self.register_buffer("coords", torch.zeros(1, ctx.tokens.max_len, 0), persistent=False)

    @abstractmethod
    def parts(self, history: Tensor) -> Tensor:
        """(B, steps, C) without missing values -> (B, N, steps)."""

    def embed(self, inputs: Tensor, lengths: Tensor | None, segment: Tensor | None, start: int) -> tuple[Tensor, Seq]:
        """Histories (B, steps, C), NaN for missing values -> x (B, N, D), Seq with the scale taken out."""
        check_history(inputs, self.steps, self.channels, lengths is not None, segment is not None, start)
        scaled, scale = standardize(inputs, self.normalise)
        x = self.parts(fill_forward(scaled))  # (B, N, steps)
        if self.proj is not None:
            x = self.proj(x)  # (B, N, D)
        return x, Seq(self.index, self.coords, scale=scale)
