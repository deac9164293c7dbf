"""A run's metrics on inputs of other sizes than training's: longer sequences, smaller and larger images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.evaluate.as_recorded import PARTS, as_recorded, check_split
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load

if TYPE_CHECKING:
    from torch import nn

    from blockyard.contracts import Split
    from blockyard.evaluate.length_extrapolation import Curve
    from blockyard.evaluate.resolution import Resolutions
    from blockyard.runs.load import Loaded

LARGEST_FACTOR = 16  # of a side: 256 times as many pixels


def evaluate_longer(
    run: str | os.PathLike[str] | RunFolder,
    factors: Sequence[int],
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    position: dict[str, Any] | None = None,
) -> tuple[Curve, Loaded]:
    """A decoder's metrics on sequences 1 and `factors` times as long as those of training.

    position: options of its position scheme to change for this evaluation, such as {"scaling": "yarn"}
    Raises UserError as `evaluate` does, for a run that is not a decoder, data without longer sequences, and for
    invalid options.
    """
    from blockyard.evaluate.length_extrapolation import extrapolate

    check_split(split)
    if not factors or any(factor < 2 for factor in factors):
        raise UserError(f"extrapolate={list(factors)}: expected whole numbers from 2, such as extrapolate=[2,4,8]")
    loaded = load(run, which=which, outputs=outputs, allow=allow, position=position or {})
    if not loaded.model.ctx.causal:
        raise UserError(f"{loaded.folder.name} is not a decoder; extrapolate needs model=decoder")
    if not loaded.data.spec.resizable:
        raise UserError(
            f"{loaded.folder.name}: {type(loaded.data).__name__} has no longer sequences; extrapolate needs running "
            "text (data.sample=window) or a generated task"
        )

    def curve(model: nn.Module, samples: Split, settings: dict[str, Any]) -> Curve:
        return extrapolate(model, samples, loaded.objective, factors, part=PARTS[split], **settings)

    return as_recorded(loaded, split, curve), loaded


def evaluate_resolutions(
    run: str | os.PathLike[str] | RunFolder,
    factors: Sequence[float],
    *,
    split: str = "test",
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Resolutions, Loaded]:
    """The metrics of a classifier of images on images of training's size and `factors` times that.

    Raises UserError as `evaluate` does, for a run of other data, and for one with a prediction for each token.
    """
    from blockyard.evaluate.resolution import at_resolutions

    check_split(split)
    if not factors or not all(0 < factor <= LARGEST_FACTOR for factor in factors):
        raise UserError(
            f"resolution={list(factors)}: expected numbers above 0 and up to {LARGEST_FACTOR}, such as "
            "resolution=[0.5,1,2]"
        )
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    spec = loaded.data.spec
    if spec.modality != "image" or loaded.objective.takes != "sequence":
        what = f"reads {spec.things}" if spec.modality != "image" else "has a target for each part of an image"
        raise UserError(f"{loaded.folder.name} {what}; resolution needs a run with one prediction for each image")
    shape = (spec.shape[1], spec.shape[2])

    def resized(model: nn.Module, samples: Split, settings: dict[str, Any]) -> Resolutions:
        return at_resolutions(model, samples, loaded.objective, factors, part=PARTS[split], shape=shape, **settings)

    return as_recorded(loaded, split, resized), loaded
