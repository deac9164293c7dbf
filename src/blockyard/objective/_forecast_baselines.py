"""Forecasts that need no training, and their errors over a split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Split
from blockyard.tokenizer._series import fill_forward

if TYPE_CHECKING:
    import torchmetrics

    from blockyard.objective.forecast import Forecast

_BATCH = 512


def forecasts(history: Tensor, horizon: int, season: int | None) -> Iterator[tuple[str, Tensor]]:
    """Names and forecasts (B, horizon, C) of the rules that a history (B, L, C) is long enough for.

    Missing values are those before them. season: steps after which the series repeats itself, or None
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


def baselines(split: Split, objective: Forecast) -> dict[str, dict[str, float]]:
    """The objective's metrics of every rule over `split`."""
    metrics: dict[str, dict[str, torchmetrics.Metric]] = {}
    for start in range(0, len(split), _BATCH):
        batch = split.batch(torch.arange(start, min(start + _BATCH, len(split))), None)
        assert isinstance(batch.target, Tensor)
        for name, forecast in forecasts(batch.inputs, batch.target.shape[1], objective.season):
            for metric in metrics.setdefault(name, dict(objective.metrics(split))).values():
                metric.update(forecast.flatten(1), batch.target)
    return {name: {key: float(metric.compute()) for key, metric in own.items()} for name, own in metrics.items()}
