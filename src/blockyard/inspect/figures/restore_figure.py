"""The figure of restorations: input, output and true values of each sample side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, SEQUENTIAL, ZERO_COLOUR, canvas, save, split_pages
from blockyard.inspect.restoration import Restoration

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
