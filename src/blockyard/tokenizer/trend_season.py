"""Trend and season: a moving average of each channel, and the remainder, as a token each.

Source: Zeng et al. 2023, Are Transformers Effective for Time Series Forecasting? (arXiv 2205.13504), DLinear
Reference: cure-lab/LTSF-Linear, models/DLinear.py
Equation: trend = mean of `kernel` steps around each step, the ends repeated; season = history - trend
Cost: O(C L (D + kernel)) time for a history of L steps

With project=false, normalise=none and model=bare this is DLinear: preset=dlinear.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Length, Seq, Tokenizer, TokenSpec
from blockyard.tokenizer._series import HistoryEmbedder, Normalise, check_one_length, check_series, remarks_on_classes


class TrendSeason(Tokenizer):
    """Two tokens per channel, without an order: all trends, then all seasons.

    A missing value becomes the value before it.

    Options:
        kernel: steps of the moving average; odd
        normalise: level and size of each history, taken out of it and put back into its prediction: its mean and
            standard deviation (instance), its last value (last), or nothing (none)
        project: map histories to model.dim with learned weights; without, model.dim is the length of the history
    """

    modality = "series"
    axes = 0

    def __init__(self, *, kernel: Length = 25, normalise: Normalise = "none", project: bool = True) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"tokenizer.kernel={kernel} must be odd, so that an average has a step in its middle")
        self.kernel = kernel
        self.normalise = normalise
        self.project = project

    def remarks(self, data: DataSpec) -> Iterator[str]:
        """Yield a sentence if the normalisation may hide the classes of series."""
        return remarks_on_classes(self.normalise, data)

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return a set of two tokens per channel."""
        _, channels = check_series(data)
        check_one_length(data)
        return TokenSpec((), count=2 * channels)

    def embedder(self, ctx: Context) -> TrendSeasonEmbedder:
        """Build the projections. Raises ValueError without them for another width."""
        return TrendSeasonEmbedder(ctx, self.normalise, self.project, self.kernel)


class TrendSeasonEmbedder(HistoryEmbedder):
    """Moving averages of the channels, then the rest of each."""

    def __init__(self, ctx: Context, normalise: str, project: bool, kernel: int) -> None:
        super().__init__(ctx, normalise, project)
        self.kernel = kernel

    def parts(self, history: Tensor) -> Tensor:
        """(B, steps, C) -> (B, 2 C, steps)."""
        channels = history.transpose(1, 2)  # (B, C, steps)
        side = self.kernel // 2
        trend = F.avg_pool1d(F.pad(channels, (side, side), mode="replicate"), self.kernel, stride=1)
        return torch.cat([trend, channels - trend], dim=1)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Histories (B, steps, C), NaN for missing values -> x (B, 2 C, D), Seq with the scale taken out."""
        return self.embed(inputs, lengths, segment, start)
