"""Forecasting: the error of the steps after a history.

Source: Zeng et al. 2023, Are Transformers Effective for Time Series Forecasting? (arXiv 2205.13504), section 5
Reference: torch.nn.functional.mse_loss, l1_loss, huber_loss
Equation: mean over the steps and channels with a value of (prediction - target)^2, in standard deviations of the
    training split

Baselines that need no training are computed beside every run: `repeat` predicts the last value; `seasonal` the value
one season earlier; `drift` adds the change of the mean from the season before to the seasonal value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Baselines, Batch, DataSpec, Length, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.objective._baselines import rules
from blockyard.objective._errors import ErrorObjective, MeanAbsolute, MeanSquared
from blockyard.tokenizer._series import fill_forward

if TYPE_CHECKING:
    import torchmetrics


class Forecast(ErrorObjective):
    """Predicts all steps of the horizon together.

    Options:

        season: steps after which the series repeats itself, for the baselines; null leaves the seasonal ones out
    """

    modality = "series"

    @with_options_of(ErrorObjective)
    def __init__(self, *, season: Length | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.season = season

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens, with predictions in the units of the inputs."""
        return replace(tokens, rescaled=True)

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output for each step and channel. Raises ValueError if the season is longer than the history."""
        if data.values is None:
            raise ValueError(
                f"objective=forecast needs data with real-valued targets; this {data.modality} data has none"
            )
        if self.season is not None and self.season > data.shape[0]:
            raise ValueError(
                f"objective.season={self.season} is longer than the history of {data.shape[0]} steps; use a longer "
                "data.history, or null"
            )
        return math.prod(data.values)

    def forecast(self, model: nn.Module, history: Tensor, horizon: int) -> Tensor:
        """Return the steps (B, horizon, C) after a history (B, steps, C), at most as many as the model predicts."""
        prediction: Tensor = model(history)  # (B, H C)
        return prediction.unflatten(1, (-1, history.shape[2]))[:, :horizon]

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return mean squared and mean absolute error in standard deviations of the training split."""
        return {"mse": MeanSquared(), "mae": MeanAbsolute()}

    def best(self) -> tuple[str, str]:
        """Return the lowest squared error as the best one."""
        return "mse", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return forecasts that need no training, by the rules that the history is long enough for."""

        def predict(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            assert isinstance(batch.target, Tensor)
            for name, forecast in forecasts(batch.inputs, batch.target.shape[1], self.season):
                yield name, forecast.flatten(1)

        first = self.ready(split.batch(torch.zeros(1, dtype=torch.long), None))
        return Baselines(rules(split, self, [name for name, _ in predict(first)], predict))


def forecasts(history: Tensor, horizon: int, season: int | None) -> Iterator[tuple[str, Tensor]]:
    """Yield names and forecasts (B, horizon, C) of the rules that a history (B, L, C) is long enough for.

    Missing values are filled with the value before them.

    season: steps after which the series repeats itself, or None
    """
    filled = fill_forward(history)
    yield "repeat", filled[:, -1:].expand(-1, horizon, -1)
    if season is None or season > history.shape[1]:
        return
    step = torch.arange(horizon, device=history.device)
    seasonal = filled[:, -season:][:, step % season]
    yield "seasonal", seasonal
    if 2 * season <= history.shape[1]:
        change = filled[:, -season:].mean(1) - filled[:, -2 * season : -season].mean(1)  # (B, C)
        yield "drift", seasonal + change[:, None] * (1 + step // season)[None, :, None]
