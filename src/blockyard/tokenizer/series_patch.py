"""Patches of a time series: overlapping windows of steps, flattened and projected.

Source: Nie et al. 2023, A Time Series is Worth 64 Words (PatchTST, arXiv 2211.14730), section 3.1
Reference: transformers PatchTSTForPrediction
Equation: x_n = W flatten(steps n stride .. n stride + size) + b
Cost: O(N size C D) time

    steps   a b c d e f g h      size 4, stride 2
    token 0 [a b c d]
    token 1     [c d e f]
    token 2         [e f g h]
    token 3             [g h h h]    with pad_end
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Embedder, FittingValue, Length, Seq, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer._grid import grid_coordinates
from blockyard.tokenizer._series import (
    Normalise,
    check_history,
    check_series,
    remarks_on_classes,
    resolved_normalise,
    standardize,
)

TOKENS = 48  # of a long series, by a recipe
SHORT_TOKENS = 7  # of a series of a few steps
STRIDE = 4  # steps, of the series between
Missing = Literal["zero", "flag"]


class SeriesPatch(Tokenizer):
    """Cuts histories into patches. With several channels a patch holds all of them.

    Options:
        size: steps of a patch
        stride: steps from one patch to the next
        pad_end: repeat the last step so that one more patch fits; false leaves out first steps that fill no patch
        normalise: level and size of each history, taken out of it and put back into its prediction: its mean and
            standard deviation (instance), its last value (last), the mean of its first patch (first), with which a
            token does not depend on later values, or nothing (none); auto is none for series with a class each, else
            instance
        missing: numbers in place of a missing value: zero, or zero and a second number that marks it (flag)
    """

    modality = "series"
    axes = 1
    own_patches = "tokenizer.stride=SIZE tokenizer.pad_end=false, with SIZE that of tokenizer.size"
    causal_patches = "tokenizer.normalise=first"
    # Runs from before `auto` have `instance`, which was the default, and keep their identities.
    same_values: ClassVar[dict[str, dict[str, str]]] = {"normalise": {"instance": "auto"}}

    def __init__(
        self,
        *,
        size: Length = 16,
        stride: Length = 8,
        pad_end: bool = True,
        normalise: Normalise | Literal["auto", "first"] = "auto",
        missing: Missing = "zero",
    ) -> None:
        self.size = size
        self.stride = stride
        self.pad_end = pad_end
        self.normalise = normalise
        self.missing = missing

    def resolved(self, data: DataSpec) -> dict[str, Any]:
        """Return the normalisation of this data, in place of `auto`."""
        return {"normalise": resolved_normalise(self.normalise, data)}

    def fitting(self, data: DataSpec) -> list[FittingValue]:
        """Return the size and the stride of patches, each of which shares half of its steps with the next one."""
        steps = data.shape[0]
        continued = data.values is not None and len(data.values) > 1
        if continued and steps >= 2 * self.size:
            return []
        stride = max(min(STRIDE, steps // SHORT_TOKENS), round(steps / TOKENS), 1)
        size = min(2 * stride, steps)
        reason = f"{steps:,} steps in about {math.ceil(steps / stride)} patches"
        return [FittingValue("size", size, reason), FittingValue("stride", stride, "patches overlap by half")]

    def remarks(self, data: DataSpec) -> Iterator[str]:
        """Yield a sentence if the normalisation may hide the classes of series."""
        return remarks_on_classes(self.normalise, data)

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per patch, on a line. Raises ValueError for histories shorter than a patch."""
        steps, channels = check_series(data)
        if steps < self.size:
            raise ValueError(f"tokenizer.size={self.size} is longer than the history of {steps} steps")
        return TokenSpec(
            (self.count(steps),),
            variable=data.variable,
            shrink=((self.size, self.stride, self.stride if self.pad_end else 0),),
            patch=None if self.pad_end or self.stride != self.size else (self.size, channels),
            causal=resolved_normalise(self.normalise, data) in ("none", "first"),
        )

    def count(self, steps: int) -> int:
        """Return the number of patches of `steps` steps."""
        added = self.stride if self.pad_end else 0
        return max((steps + added - self.size) // self.stride + 1, 0)

    def embedder(self, ctx: Context) -> SeriesPatchEmbedder:
        """Build the projection of patches."""
        return SeriesPatchEmbedder(ctx, self)


class SeriesPatchEmbedder(Embedder):
    """Scales histories, cuts them into patches and projects them to D."""

    index: Tensor
    coords: Tensor

    def __init__(self, ctx: Context, options: SeriesPatch) -> None:
        super().__init__()
        self.options = options
        self.normalise = resolved_normalise(options.normalise, ctx.data)
        self.steps, self.channels = ctx.data.shape
        self.tokens = ctx.tokens
        self.variable = ctx.tokens.variable
        numbers = options.size * self.channels * (2 if options.missing == "flag" else 1)
        self.proj = Linear(numbers, ctx.dim, bias=True, std=ctx.input_std * numbers**-0.5, role="input")
        self.grid = ctx.tokens.grid
        index, coords = grid_coordinates(self.grid)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("coords", coords, persistent=False)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Histories (B, steps, C), NaN for missing values -> x (B, N, D), Seq with the scale taken out."""
        padded = lengths is not None and not self.variable
        check_history(inputs, self.steps, self.channels, padded, segment is not None, start, variable=self.variable)
        if self.variable:
            return self._variable(inputs, lengths)
        options = self.options
        scaled, scale = standardize(inputs, self.normalise, options.size)
        values = self._filled(scaled).transpose(1, 2)  # (B, C, steps)
        if options.pad_end:
            values = F.pad(values, (0, options.stride), mode="replicate")
        else:  # the latest steps matter most
            values = values[:, :, (self.steps - options.size) % options.stride :]
        patches = values.unfold(2, options.size, options.stride)  # (B, C, N, size)
        x = self.proj(patches.transpose(1, 2).flatten(2))  # (B, N, D)
        return x, Seq(self.index, self.coords, grid=self.grid, scale=scale)

    def _filled(self, scaled: Tensor) -> Tensor:
        """Return scaled values (B, steps, C) without NaN; with missing=flag also marks of NaN: (B, steps, 2 C)."""
        values = scaled.nan_to_num()
        if self.options.missing == "zero":
            return values
        return torch.cat([values, scaled.isnan().to(values.dtype)], dim=2)

    def _variable(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Seq]:
        """Embed histories of `lengths` (B,) steps, each as if it came alone."""
        options = self.options
        batch, steps = inputs.shape[:2]
        all_real = lengths is None
        if lengths is None:
            lengths = torch.full((batch,), steps, device=inputs.device)
        step = torch.arange(steps, device=inputs.device)
        # Steps behind the end count as missing for the scale, and no patch holds one.
        inputs = inputs.masked_fill((step >= lengths[:, None])[..., None], float("nan"))
        scaled, scale = standardize(inputs, self.normalise, options.size)
        values = self._filled(scaled)
        index, coords = (part.to(inputs.device) for part in grid_coordinates((max(options.count(steps), 1),)))
        start = index * options.stride  # (N,)
        first = torch.zeros_like(lengths) if options.pad_end else (lengths - options.size) % options.stride
        inside = start[:, None] + torch.arange(options.size, device=inputs.device)  # (N, size)
        where = torch.minimum(first[:, None, None] + inside, (lengths - 1).clamp_min(0)[:, None, None])  # (B, N, size)
        patches = values[torch.arange(batch, device=inputs.device)[:, None, None], where]  # (B, N, size, C)
        valid = index < self.tokens.tokens_of(lengths)[:, None]  # (B, N)
        x = self.proj(patches.transpose(2, 3).flatten(2)).masked_fill(~valid[..., None], 0.0)  # (B, N, D)
        mask = None if all_real and steps >= options.size else valid
        return x, Seq(index, coords.to(self.coords.dtype), mask, grid=(len(index),), scale=scale)
