"""`blockyard inspect restore`: samples with hidden patches or noise, the model's output, and the true values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.errors import UserError
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, SEQUENTIAL, ZERO_COLOUR, canvas, save, split_pages
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult
from blockyard.inspect.samples import validation_samples
from blockyard.objective._patches import floats, join
from blockyard.objective.restore import Restore, simple_predictions
from blockyard.runs.load import Loaded

OPTIONS = ("sample", "samples")


@dataclass
class Restoration:
    """One sample, each an image (C, height, width) or a series (steps, C) in the units of the model's inputs.

    input: as the model reads it; output: visible values and predicted ones; true: all values
    hidden: which values the model could not read, bool
    mse: the metric of this sample alone; baselines: the same of predictions that need no training
    """

    index: int
    input: Tensor
    output: Tensor
    true: Tensor
    hidden: Tensor
    mse: float
    baselines: dict[str, float]


@torch.no_grad()
def restorations(loaded: Loaded, options: Options) -> list[Restoration]:
    """Return the samples that `options` select. Raises UserError for a run of another objective."""
    task = loaded.objective
    if not isinstance(task, Restore):
        raise UserError(
            f"restore: {loaded.folder.name} was not trained to restore its input; use a run of objective=restore"
        )
    split, indices = validation_samples(loaded, options)
    return [_restoration(loaded, task, take(split, torch.tensor([index]), None), index) for index in indices]


def _restoration(loaded: Loaded, task: Restore, raw: Batch, index: int) -> Restoration:
    batch = task.ready(raw)
    assert isinstance(batch.target, Tensor)
    prediction, true = loaded.model(batch), floats(raw.inputs)
    hidden = torch.zeros_like(batch.target, dtype=torch.bool)
    if batch.hidden is not None:
        hidden = batch.hidden[..., None].expand_as(hidden)
    return Restoration(
        index,
        batch.inputs[0],
        task.restored(prediction, batch, raw.inputs)[0],
        true[0],
        join(hidden, torch.zeros_like(true, dtype=torch.bool), task.layout)[0],
        float(task.loss(prediction, batch.target)),
        {name: float(task.loss(simple, batch.target)) for name, simple in simple_predictions(batch, task)},
    )


_ROWS = 8
_IMAGE, _SERIES = (1.5, 1.6), (4.2, 1.6)  # inches of a panel


def draw_restorations(samples: list[Restoration], folder: Path) -> Iterator[Path]:
    """Draw restore.png, a row for each sample: what the model reads, what it makes of it, and the truth."""
    images = samples[0].true.ndim == 3
    title = "What the model reads (hidden patches are shaded), its output, and the true values"
    for page, part in enumerate(split_pages(len(samples), _ROWS)):
        shown = [samples[index] for index in part]
        with canvas(len(shown), 3, _IMAGE if images else _SERIES, title) as (figure, axes):
            for panels, sample in zip(axes, shown, strict=True):
                draw = _draw_image if images else _draw_series
                for panel, name in zip(panels, ("input", "output", "true"), strict=True):
                    draw(panel, getattr(sample, name), sample, name)
                panels[0].set_title(f"sample {sample.index}: input", pad=3)
                panels[1].set_title(f"output, mse {sample.mse:.2g}", pad=3)
                panels[2].set_title("true", pad=3)
            yield save(figure, folder, "restore", page)


def _draw_image(panel: Any, pixels: Tensor, sample: Restoration, name: str) -> None:
    """An image in the range of the true one; hidden patches of the input are grey."""
    import matplotlib
    from matplotlib.colors import to_rgb

    low, high = sample.true.min(), sample.true.max()
    shown = ((pixels.float() - low) / (high - low).clamp_min(1e-12)).clamp(0, 1).permute(1, 2, 0)  # (height, width, C)
    if shown.shape[2] != 3:
        shown = shown.new_tensor(matplotlib.colormaps["gray"](shown[..., 0].numpy())[..., :3])
    if name == "input":
        shown[sample.hidden[0]] = shown.new_tensor(to_rgb("#7f8fa9"))  # no grey level of the image itself
    panel.imshow(shown.numpy(), interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])


def _draw_series(panel: Any, values: Tensor, sample: Restoration, name: str) -> None:
    """The channels as lines, and what was hidden of them with a grey background; of the output it stands out."""
    import matplotlib

    hidden, count = sample.hidden[:, 0], values.shape[1]  # (steps,)
    steps = range(len(values))
    for channel in range(count):
        line = values[:, channel]
        shade = INK if count == 1 else matplotlib.colormaps[SEQUENTIAL](0.9 * channel / (count - 1))
        panel.plot(steps, line.numpy(), color=shade, linewidth=0.9)
        if name == "output":
            panel.plot(steps, line.masked_fill(~hidden, float("nan")).numpy(), color=HIGHLIGHT, linewidth=1.4)
    observed = sample.true[~sample.true.isnan()]
    room = 0.1 * float(observed.max() - observed.min()) or 1.0
    panel.set_ylim(float(observed.min()) - room, float(observed.max()) + room)
    background = panel.get_xaxis_transform()
    panel.fill_between(steps, 0, 1, where=hidden.numpy(), step="mid", transform=background, color=ZERO_COLOUR)


def inspect(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Return the restoration of each selected sample."""
    samples = restorations(loaded, options)
    names = tuple(samples[0].baselines)
    return InspectionResult(
        numbers={
            "samples": [
                {"index": sample.index, "hidden": _share(sample), "mse": sample.mse, "baselines": sample.baselines}
                for sample in samples
            ]
        },
        columns=("validation sample", "hidden", "mse", *(f"mse of {name}" for name in names)),
        rows=[_row(sample) for sample in samples],
        figures=draw_restorations(samples, folder),
        summary="mse: of the values that the model predicts, as the objective computes it",
    )


def _row(sample: Restoration) -> tuple[str, ...]:
    errors = (sample.mse, *sample.baselines.values())
    return (str(sample.index), f"{_share(sample):.0%}", *(f"{error:.4g}" for error in errors))


def _share(sample: Restoration) -> float:
    return float(sample.hidden.float().mean())
