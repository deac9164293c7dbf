"""Next patch: the squared error of the values that follow each patch.

Source: Das et al. 2024, A Decoder-Only Foundation Model for Time-Series Forecasting (TimesFM, arXiv 2310.10688),
    section 4, with output patches as long as input patches; for images El-Nouby et al. 2024, Scalable Pre-training of
    Large Autoregressive Image Models (AIM, arXiv 2401.08541), section 3.1
Reference: transformers TimesFmModelForPrediction
Equation: mean over the values v of patches 2 .. N of (prediction_{n-1, v} - v)^2, and over the values of the patch
    after the last one, if the data has it

    patches   a b c d     a series in order of time, an image row by row
    target    b c d e     e: the first steps of the horizon of a series; images have none

Baselines that need no training are computed beside every run: `mean` predicts the mean of the training split, which is
zero in standardized data; `repeat` the last value of a series, or the patch of an image; `seasonal` the value one
season earlier, or the last value if the history does not reach so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from blockyard.contracts import Baselines, Batch, DataSpec, Length, Objective, Split, TokenSpec
from blockyard.data.splits.order import take
from blockyard.objective._baselines import rules
from blockyard.objective._patches import cut, floats, mean_squared, patch_size
from blockyard.tokenizer._series import fill_forward

if TYPE_CHECKING:
    import torchmetrics


class NextPatch(Objective):
    """Predicts each patch from the patches before it; requires a causal model.

    Options:
        season: steps after which a series repeats itself, for the baselines; null leaves the seasonal one out
    """

    needs_causal = True
    takes = "token"
    modality = ("image", "series")
    patches = True

    def __init__(self, *, season: Length | None = None) -> None:
        self.season = season
        self._tokens: TokenSpec | None = None
        self._follows = False  # True if the data has the patch after the last one

    @property
    def layout(self) -> TokenSpec:
        """The tokens with predicted values."""
        assert self._tokens is not None, "tokens() comes before prepare()"
        return self._tokens

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens, with predictions in the units of the inputs."""
        self._tokens = replace(tokens, rescaled=True)
        return self._tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per value of a patch. Raises ValueError for tokens without values, or a single token."""
        values = patch_size("next_patch", data, tokens)
        if self.season is not None and data.modality != "series":
            raise ValueError(f"objective.season={self.season} is for series; {data.things} have none: use null")
        assert tokens.patch is not None
        self._follows = data.values is not None and data.modality == "series" and data.values[0] >= tokens.patch[0]
        if tokens.max_len == 1 and not self._follows:
            raise ValueError("objective=next_patch needs sequences of several patches; use a smaller tokenizer.size")
        return values

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch with the patches behind each token as its target (B, N, V), NaN if unknown."""
        values = cut(floats(batch.inputs), self.layout)  # (B, N, V)
        # Without a known next patch the last token has no target.
        last = torch.full_like(values[:, :1], float("nan"))
        if self._follows:
            assert isinstance(batch.target, Tensor)
            last = batch.target[:, : self._size].flatten(1)[:, None]  # (B, 1, V)
        return replace(batch, target=torch.cat([values[:, 1:], last], dim=1))

    @property
    def _size(self) -> int:
        """The number of steps in a patch of a series."""
        assert self.layout.patch is not None
        return self.layout.patch[0]

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error over known values. prediction: (B, N, V); target: (B, N, V) with NaN."""
        return mean_squared(prediction, target)

    def forecast(self, model: nn.Module, history: Tensor, horizon: int) -> Tensor:
        """Return the steps (B, horizon, C) after a history (B, steps, C), patch by patch."""
        # Each patch is predicted from the last steps, as many as the history has.
        series = history
        while series.shape[1] < history.shape[1] + horizon:
            patch = model(series[:, -history.shape[1] :])[:, -1]  # (B, V)
            series = torch.cat([series, patch.unflatten(1, (self._size, -1))], dim=1)
        return series[:, history.shape[1] :][:, :horizon]

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return mean squared and mean absolute error over the values of all patches behind another one."""
        from blockyard.objective._errors import MeanAbsolute, MeanSquared

        return {"mse": MeanSquared(), "mae": MeanAbsolute()}

    def best(self) -> tuple[str, str]:
        """Return the lowest squared error as the best one."""
        return "mse", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return rules that need no training."""
        first = self.ready(take(split, torch.zeros(1, dtype=torch.long), None))
        names = [name for name, _ in self.simple_predictions(first)]
        return Baselines(rules(split, self, names, self.simple_predictions))

    def simple_predictions(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """Yield names and predictions (B, N, V) of the rules for a batch."""
        inputs = floats(batch.inputs)
        tokens = self.layout
        yield "mean", torch.zeros_like(cut(inputs, tokens))
        if tokens.axes != 1:
            yield "repeat", cut(inputs, tokens).nan_to_num()
            return
        filled = fill_forward(inputs)
        channels = inputs.shape[2]
        size = self._size
        last = cut(filled, tokens).unflatten(2, (size, channels))[:, :, -1:]  # (B, N, 1, C)
        repeat = last.expand(-1, -1, size, -1).flatten(2)  # (B, N, V)
        yield "repeat", repeat
        if self.season is not None:
            offset = torch.arange(size)  # index of a step in the predicted patch
            # So many seasons back that the step is known: it lies in the read patches.
            back = offset - self.season * (offset // self.season + 1)
            first = inputs.shape[1] - size * tokens.max_len + size * (1 + torch.arange(tokens.max_len))
            earlier = first[:, None] + back  # (N, size)
            seasonal = filled[:, earlier.clamp_min(0)].flatten(2)  # (B, N, V)
            reached = (earlier >= 0).repeat_interleave(channels, 1)  # (N, V)
            yield "seasonal", torch.where(reached, seasonal, repeat)
