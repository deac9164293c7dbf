"""`blockyard inspect restore`: samples with hidden patches or noise, the model's output, and the true values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.errors import UserError
from blockyard.inspect._canvas import HIGHLIGHT, INK, SEQUENTIAL, ZERO_COLOUR, split_pages
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Mark, Page, Panel, mark
from blockyard.inspect.result import InspectionResult
from blockyard.inspect.samples import validation_samples
from blockyard.objective._patches import floats, join
from blockyard.objective.restore import Restore, simple_predictions
from blockyard.runs.load import Loaded

OPTIONS = ("sample", "samples")

_ROWS = 8  # of a page
_IMAGE = (1.5, 1.6)  # inches of a panel
_SERIES = (4.2, 1.6)


@dataclass
class Restoration:
    """One sample: images (C, height, width) or series (steps, C) in the units of the model's inputs.

    input: as the model reads it; output: visible values and predicted ones; true: all values
    hidden: bool, the values that the model could not read
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
    baselines = {name: float(task.loss(simple, batch.target)) for name, simple in simple_predictions(batch, task)}
    return Restoration(
        index=index,
        input=batch.inputs[0],
        output=task.restored(prediction, batch, raw.inputs)[0],
        true=true[0],
        hidden=join(hidden, torch.zeros_like(true, dtype=torch.bool), task.layout)[0],
        mse=float(task.loss(prediction, batch.target)),
        baselines=baselines,
    )


def pages(samples: list[Restoration]) -> Iterator[Page]:
    """Yield restore.png, a row for each sample: the input, the output, and the true values."""
    images = samples[0].true.ndim == 3
    title = "What the model reads (hidden patches are shaded), its output, and the true values"
    for page_samples in split_pages(samples, _ROWS):
        rows = [_panels(sample) for sample in page_samples]
        yield Page("restore", title, rows, _IMAGE if images else _SERIES)


def _panels(sample: Restoration) -> list[Panel]:
    titles = {"input": f"sample {sample.index}: input", "output": f"output, mse {sample.mse:.2g}", "true": "true"}
    panels = []
    for name, title in titles.items():
        values = getattr(sample, name)
        if sample.true.ndim == 3:
            panels.append(Panel([_image(values, sample, shaded=name == "input")], title))
        else:
            marks = _series(values, sample, highlighted=name == "output")
            panels.append(Panel(marks, title, numbers=True, ylim=_value_range(sample)))
    return panels


def _image(pixels: Tensor, sample: Restoration, *, shaded: bool) -> Heat:
    """Return an image in the range of the true one; hidden patches are blue if they are `shaded`."""
    import matplotlib
    from matplotlib.colors import to_rgb

    low, high = sample.true.min(), sample.true.max()
    shown = ((pixels.float() - low) / (high - low).clamp_min(1e-12)).clamp(0, 1).permute(1, 2, 0)  # (height, width, C)
    if shown.shape[2] != 3:
        shown = shown.new_tensor(matplotlib.colormaps["gray"](shown[..., 0].numpy())[..., :3])
    if shaded:
        shown[sample.hidden[0]] = shown.new_tensor(to_rgb("#7f8fa9"))  # no grey level of the image itself
    return Heat(shown)


def _series(values: Tensor, sample: Restoration, *, highlighted: bool) -> list[Mark]:
    """Return the channels as lines. Hidden steps have a grey background; `highlighted`: and lines in another colour"""
    import matplotlib

    hidden = sample.hidden[:, 0]  # (steps,)
    steps = range(len(values))
    channels = values.shape[1]
    shade: dict[str, Any] = {"where": hidden.numpy(), "step": "mid", "color": ZERO_COLOUR, "at_edge": True}
    marks = [mark("fill_between", steps, 0, 1, **shade)]
    for channel in range(channels):
        line = values[:, channel]
        colour: Any = INK
        if channels > 1:  # without the palest tenth of the scale
            colour = matplotlib.colormaps[SEQUENTIAL](0.9 * channel / (channels - 1))
        marks.append(mark("plot", steps, line.numpy(), color=colour, linewidth=0.9))
        if highlighted:
            restored = line.masked_fill(~hidden, float("nan"))
            marks.append(mark("plot", steps, restored.numpy(), color=HIGHLIGHT, linewidth=1.4))
    return marks


def _value_range(sample: Restoration) -> tuple[float, float]:
    observed = sample.true[~sample.true.isnan()]
    low, high = float(observed.min()), float(observed.max())
    margin = 0.1 * (high - low) or 1.0
    return low - margin, high + margin


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the restoration of each selected sample."""
    samples = restorations(loaded, options)
    return InspectionResult(
        numbers={"samples": [_numbers(sample) for sample in samples]},
        rows=[_row(sample) for sample in samples],
        pages=pages(samples),
        summary="mse: of the values that the model predicts, as the objective computes it",
    )


def _numbers(sample: Restoration) -> dict[str, object]:
    return {"index": sample.index, "hidden": _share(sample), "mse": sample.mse, "baselines": sample.baselines}


def _row(sample: Restoration) -> dict[str, str]:
    baselines = {f"mse of {name}": f"{error:.4g}" for name, error in sample.baselines.items()}
    return {
        "validation sample": str(sample.index),
        "hidden": f"{_share(sample):.0%}",
        "mse": f"{sample.mse:.4g}",
        **baselines,
    }


def _share(sample: Restoration) -> float:
    return float(sample.hidden.float().mean())
