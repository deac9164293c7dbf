"""What a model wrote for the first recordings of a split, beside their spectrograms and what it attended to."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.data.splits.order import take
from blockyard.inspect.attention_weights import LayerAttention, attention_layers
from blockyard.inspect.figures._attention_panels import scale_end
from blockyard.inspect.figures._canvas import canvas
from blockyard.inspect.figures.sound_figure import attends_sound, draw_over_time, draw_spectrogram, overlay
from blockyard.inspect.samples import Sample, sample_of
from blockyard.runs.load import Loaded, splits_of

EXAMPLES = 4
_DPI, _COLOURS = 80, 96  # a page holds one such picture for each arm
_LONGEST = 90  # characters of a text above its spectrogram


def draw_written_sounds(
    loaded: Loaded, part: str, texts: Sequence[tuple[str, str, str]], folder: Path, name: str
) -> Path | None:
    """Draw NAME.png; None for a run whose source is no sound.

    part: "test", "val" or "train"; texts: (source, reference, written) of its samples, from the first one on

    Each recording has its spectrogram, with the labels where CTC hears them, and over it the attention of the last
    layer that attends to the sound, the mean over heads and queries. Where that is cross-attention, it has a panel of
    its own below, with a row for each token of the reference.
    """
    source = loaded.data.spec.source
    if source is None or source.modality != "audio" or source.rate is None:
        return None
    splits = splits_of(loaded)
    split = {"test": splits.test, "val": splits.validation, "train": splits.train}[part]
    indices = range(min(EXAMPLES, len(texts)))
    samples = [sample_of(loaded, take(split, torch.tensor([index]), None), index) for index in indices]
    attended = [_last_layer(loaded, sample) for sample in samples]
    across = any(layer is not None and layer.cross for layer in attended)
    height = len(samples) * (2 if across else 1)
    title = f"{loaded.folder.name}, {loaded.weights}: the first recordings of the {part} split"
    with canvas(height, 1, (8.0, 1.5), title) as (figure, axes):
        for number, (sample, layer) in enumerate(zip(samples, attended, strict=True)):
            panels = [row[0] for row in axes[number * height // len(samples) : (number + 1) * height // len(samples)]]
            _, reference, written = texts[number]
            _draw(panels, sample, layer, f"reference: {_short(reference)}\nwritten: {_short(written)}")
        axes[-1][0].set_xlabel("seconds")
        return save_few_colours(figure, folder / f"{name}.png")


def _last_layer(loaded: Loaded, sample: Sample) -> LayerAttention | None:
    """The last layer that attends to the sound, across if there is one that does; None without any."""
    layers = [each for each in attention_layers(loaded.model, [sample]) if attends_sound(each, sample)]
    across = [layer for layer in layers if layer.cross]
    chosen = across or layers
    return chosen[-1] if chosen else None


def _draw(panels: list[Any], sample: Sample, layer: LayerAttention | None, title: str) -> None:
    sound = sample.sound or sample.source_sound
    assert sound is not None
    draw_spectrogram(panels[0], sound)
    panels[0].set_title(title, loc="left", pad=2)
    panels[0].set_ylabel("hertz")
    if layer is None:
        for panel in panels[1:]:
            panel.set_axis_off()
        return
    weights: Tensor = layer.weights.mean(0)[layer.query_prefix :, layer.prefix :]  # (queries, N)
    if not layer.cross:
        over_time = weights.mean(0)  # (N,)
        overlay(panels[0], sound, over_time, 2 * scale_end([over_time]))  # the sound stays visible
        return
    draw_over_time(panels[1], sound, layer, weights, scale_end([weights]), fontsize=5)
    panels[1].set_title(f"{layer.name}, each token of the reference, mean of the heads", loc="left", pad=2)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def save_few_colours(figure: Any, path: Path) -> Path:
    """Write a figure as PNG of few colours; never a partial file."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    with Image.open(content, formats=("PNG",)) as picture, replacing(path) as temporary:
        picture.convert("RGB").quantize(_COLOURS).save(temporary, format="PNG", optimize=True)
    return path
