"""Rows longer than those of training: the same text, or the same task, in rows 1, 2, 4, ... times as long.

Source: Press et al. 2021, Train Short, Test Long (arXiv 2108.12409), section 2: rows that do not overlap

    rows of n      |a b c d|e f g h|i j k l|m n o p|    "@1x"
    rows of 2n     |a b c d e f g h|i j k l m n o p|    "@2x"   the same symbols are asked for at every
    rows of 4n     |a b c d e f g h i j k l m n o p|    "@4x"   length, and each figure is the mean of all

Longer rows give most symbols more to look back on, so that a model that can use it does better than
@1x; by place says where in the row it does. Rows that are made by a rule are drawn anew, as many at every
length. A length that the model cannot read is refused with the reason and has no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, DataSpec, Objective, Position, Resizable, Split, TokenMixer, TokenSpec
from blockyard.evaluate.loop import evaluate


@dataclass(frozen=True)
class Length:
    """One length of rows.

    factor: over that of training; tokens: of a row
    metrics: means over all tokens asked for; places: the metric that chooses checkpoints, over the
        first, second, ... stretch of a row as long as one of training, None where nothing is asked there;
        empty for one answer a row
    how: whether the position scheme read the row as if it were shorter; refused: why there are no figures
    """

    factor: int
    tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    places: list[float | None] = field(default_factory=list)
    how: str = "as in training"
    refused: str | None = None


@dataclass(frozen=True)
class Curve:
    """All lengths of one part of the data.

    rows: of training's length; asked: tokens in them; redrawn: whether every length has as many rows, drawn
        anew, and not the same tokens in fewer
    """

    part: str  # "test", "val", "train"
    metric: str  # the one that `places` are about
    context: int
    rows: int
    asked: int
    redrawn: bool
    lengths: list[Length]

    def metrics(self) -> dict[str, float]:
        """Every metric under its full name: "test/loss@2x"."""
        return {
            f"{self.part}/{name}@{length.factor}x": value
            for length in self.lengths
            for name, value in length.metrics.items()
        }

    def refused(self) -> dict[str, str]:
        """Why a length has no figures: "test@2x" -> reason."""
        return {f"{self.part}@{each.factor}x": each.refused for each in self.lengths if each.refused}

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def extrapolate(
    model: nn.Module,
    split: Split,
    objective: Objective,
    factors: Sequence[int],
    *,
    part: str,
    batch_size: int,
    device: torch.device | str = "cpu",
    precision: str = "32",
    limit: int | None = None,
    halt: Callable[[], None] | None = None,
) -> Curve:
    """The objective's metrics over `split` in rows as long as in training and `factors` times as long.

    Batches hold as many tokens at every length. `limit` is in batches of training's length.
    """
    context, metric = model.ctx.tokens.max_len, objective.best()[0]
    redrawn = isinstance(split, Resizable) and split.redrawn
    refused = {factor: why for factor in sorted({*factors}) if (why := _refusal(model, split, factor))}
    rows = len(split) if limit is None else min(len(split), limit * batch_size)
    usable = [factor for factor in sorted({1, *factors}) if factor not in refused]
    if not redrawn:
        while math.lcm(*usable) > rows:
            why = f"the {part} part has {rows} rows of {context} tokens, too few for one of this length"
            refused[usable.pop()] = why
        rows -= rows % math.lcm(*usable)
    lengths = []
    for factor in sorted({1, *factors}):
        tokens = context * factor
        if factor in refused:
            lengths.append(Length(factor, tokens, refused=refused[factor]))
            continue
        by_place = ByPlace(objective, metric, context, factor if objective.takes == "token" else 0)
        try:
            with stretched(model, factor) as how:
                found = evaluate(
                    model,
                    split.at_length(rows, factor) if isinstance(split, Resizable) else split,
                    by_place,
                    batch_size=max(1, batch_size // factor),
                    device=device,
                    precision=precision,
                    limit=None if isinstance(split, Resizable) else limit,
                    halt=halt,
                )
        except ValueError as error:  # how parts say that they do not read such a row
            if factor == 1:
                raise
            lengths.append(Length(factor, tokens, refused=str(error)))
            continue
        places = [None if math.isnan(value := found.pop(name)) else value for name in by_place.names]
        lengths.append(Length(factor, tokens, found, places, how))
    return Curve(part, metric, context, rows, rows * context, redrawn, lengths)


def _refusal(model: nn.Module, split: Split, factor: int) -> str | None:
    """Why rows so many times longer are not to be had, as far as that is declared."""
    if not isinstance(split, Resizable):
        return "this data has no longer rows"
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, TokenMixer) and not module.traits.any_length:
            return f"token_mixer {name} takes rows of one length only"
        if isinstance(module, Position) and module.bounded and not module.scales_length:
            known = model.ctx.tokens.max_len
            can = f"; {module.length_advice}" if module.length_advice else ""
            return f"position {name} knows {known} places, the row has {factor * known}{can}"
    return None


@contextmanager
def stretched(model: nn.Module, factor: int) -> Iterator[str]:
    """While inside, position schemes that can read rows as if they were `factor` times shorter; says how they do."""
    schemes = [module for module in model.modules() if isinstance(module, Position) and module.scales_length]
    before = [scheme.length_scale for scheme in schemes]
    try:
        for scheme in schemes:
            scheme.length_scale = float(factor)
        yield f"positions {factor} times closer" if schemes and factor != 1 else "as in training"
    finally:
        for scheme, stretch in zip(schemes, before, strict=True):
            scheme.length_scale = stretch


class ByPlace(Objective):
    """An objective whose chosen metric is also asked of each stretch of a row. Judges, never trains."""

    def __init__(self, inner: Objective, metric: str, context: int, stretches: int) -> None:
        self.inner, self.metric, self.context = inner, metric, context
        self.names = [f"{metric} {number}" for number in range(stretches)]

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """V of the objective inside."""
        return self.inner.outputs(data, tokens)

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """As the objective inside."""
        return self.inner.prepare(batch, key)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """As the objective inside."""
        return self.inner.loss(prediction, target)

    def best(self) -> tuple[str, str]:
        """As the objective inside."""
        return self.inner.best()

    def metrics(self, split: Split | None = None) -> dict[str, Any]:
        """Those of the objective inside, and one for each stretch."""
        found: dict[str, Any] = dict(self.inner.metrics(split))
        for number, name in enumerate(self.names):
            start = number * self.context
            found[name] = _Stretch(self.inner.metrics(split)[self.metric], slice(start, start + self.context))
        return found


class _Stretch:
    """A metric that is fed a part of each row."""

    sync_on_compute = False

    def __init__(self, metric: Any, where: slice) -> None:
        self.metric, self.where = metric, where

    def to(self, device: torch.device) -> _Stretch:
        self.metric = self.metric.to(device)
        return self

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.metric.update(prediction[:, self.where], target[:, self.where])

    def compute(self) -> Tensor:
        self.metric.sync_on_compute = False
        return self.metric.compute()
