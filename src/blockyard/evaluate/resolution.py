"""Evaluation on images of other sizes than those of training: the same images, resized.

Source: Touvron et al. 2019, Fixing the train-test resolution discrepancy (arXiv 1906.06423); for transformers
    Dosovitskiy et al. 2021 (arXiv 2010.11929), section 3.2: patches stay as large as they were, more or fewer of them
Reference: torch.nn.functional.interpolate, mode="bilinear", antialias=True

    factor 0.5   2 x 2 patches      every factor has the same images and classes, so the values can be compared
    factor 1     4 x 4
    factor 2     8 x 8              what positions beyond training mean is the scheme's own: a table is resized

A size that the model cannot read is refused with the reason and has no value.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, Model, Objective, Split
from blockyard.errors import UserError
from blockyard.evaluate.api import PARTS, PassSettings, as_recorded, check_split
from blockyard.evaluate.loop import evaluate
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load

if TYPE_CHECKING:
    from blockyard.runs.load import Loaded

LARGEST_FACTOR = 16  # of a side: 256 times as many pixels


@dataclass(frozen=True)
class Size:
    """The result at one size. pixels: height and width; refused: the reason if there are no metrics."""

    factor: float
    pixels: tuple[int, int]
    metrics: dict[str, float] = field(default_factory=dict)
    refused: str | None = None


@dataclass(frozen=True)
class Resolutions:
    """The results at all sizes on one split, in ascending order. part: "test", "val", "train"."""

    part: str
    samples: int
    sizes: list[Size]

    def plain(self) -> dict[str, Any]:
        """Return the results as plain data, as they are saved."""
        return asdict(self)


class ResizedSplit:
    """Images of another split at `pixels` (height, width); their targets stay."""

    def __init__(self, split: Split, pixels: tuple[int, int]) -> None:
        self.split, self.pixels = split, pixels

    def __len__(self) -> int:
        return len(self.split)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the split, such as the units of its targets (`Standardized`)."""
        if name == "split":  # `copy` and `pickle` ask before there is a split
            raise AttributeError(name)
        return getattr(self.split, name)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, C, *pixels), float."""
        batch = self.split.batch(order, key)
        images = batch.inputs / 255 if batch.inputs.dtype == torch.uint8 else batch.inputs
        return replace(batch, inputs=F.interpolate(images, self.pixels, mode="bilinear", antialias=True))


def at_resolutions(
    model: Model,
    split: Split,
    objective: Objective,
    factors: Sequence[float],
    *,
    part: str,
    shape: tuple[int, int],
    batch_size: int,
    **settings: Any,
) -> Resolutions:
    """Compute the objective's metrics over `split` at the size of training and `factors` times that.

    Batches hold about as many pixels at every size.

    shape: height and width in training; settings: of `evaluate`; `limit` counts batches of training's size
    """
    limit = settings.pop("limit", None)
    count = len(split) if limit is None else min(len(split), limit * batch_size)
    sizes = []
    for factor in sorted({1.0, *factors}):
        pixels = (max(1, round(shape[0] * factor)), max(1, round(shape[1] * factor)))
        samples: Split = split if pixels == shape else ResizedSplit(split, pixels)
        batch = max(1, int(batch_size / max(1.0, factor**2)))
        if limit is not None:
            samples = _First(samples, count)
        try:
            metrics = evaluate(model, samples, objective, batch_size=batch, **settings)
        except ValueError as error:  # a component cannot read such an image
            if factor == 1:
                raise
            sizes.append(Size(factor, pixels, refused=str(error)))
            continue
        sizes.append(Size(factor, pixels, metrics))
    return Resolutions(part, count, sizes)


class _First:
    """The first samples of another split."""

    def __init__(self, split: Split, count: int) -> None:
        self.split, self.batch, self.count = split, split.batch, count

    def __len__(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the split."""
        if name == "split":  # `copy` and `pickle` ask before there is a split
            raise AttributeError(name)
        return getattr(self.split, name)


def table(resolutions: Resolutions) -> str:
    """Return the results as text: a line for each size."""
    names = list(next(size.metrics for size in resolutions.sizes if size.metrics))
    lines = [["factor", "pixels", *names]]
    for size in resolutions.sizes:
        values = [f"{size.metrics[name]:.5g}" for name in names] if size.metrics else []
        lines.append([f"{size.factor:g}", " x ".join(map(str, size.pixels)), *values])
    # The line of a refused size has no metrics.
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    texts = []
    for line in lines:
        texts.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())
    for number, size in enumerate(resolutions.sizes, start=1):  # the first line has the names of the columns
        if size.refused:
            texts[number] += f"  refused: {size.refused}"
    texts.append(f"the same {resolutions.samples:,} images of the {resolutions.part} split at every size")
    return "\n".join(texts) + "\n"


def evaluate_resolutions(
    run: str | os.PathLike[str] | RunFolder,
    factors: Sequence[float],
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Resolutions, Loaded]:
    """Compute the metrics of a classifier of images on images of training's size and `factors` times that.

    Raises UserError as `evaluate` does, for a run of other data, and for one with a prediction for each token.
    """
    check_split(split)
    if not factors or not all(0 < factor <= LARGEST_FACTOR for factor in factors):
        raise UserError(
            f"resolution={list(factors)}: expected numbers above 0 and up to {LARGEST_FACTOR}, such as "
            "resolution=[0.5,1,2]"
        )
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    spec = loaded.data.spec
    problem = None
    if spec.modality != "image":
        problem = f"reads {spec.things}"
    elif loaded.objective.takes != "sequence":
        problem = "has a target for each part of an image"
    if problem:
        raise UserError(f"{loaded.folder.name} {problem}; resolution needs a run with one prediction for each image")
    shape = (spec.shape[1], spec.shape[2])

    def resized(model: Model, samples: Split, settings: PassSettings) -> Resolutions:
        return at_resolutions(model, samples, loaded.objective, factors, part=PARTS[split], shape=shape, **settings)

    return as_recorded(loaded, split, resized), loaded
