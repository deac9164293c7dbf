"""Attention over a sound: its spectrogram in seconds and hertz, what is attended to, and where CTC hears each label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.figures._attention_panels import head_pages, page_colorbar, scale_end, sequential_colours
from blockyard.inspect.figures._canvas import HIGHLIGHT, canvas, printable, save, split_pages
from blockyard.inspect.figures.query_figure import transparent_to_orange
from blockyard.inspect.samples import Sample
from blockyard.inspect.sound import Sound

WINDOW = 0.025  # seconds
RANGE = 60.0  # decibels below the loudest that are drawn
_COLUMNS = 500  # windows of a spectrogram, at most
_LAYERS = 6  # rows of a page


def attends_sound(layer: LayerAttention, sample: Sample) -> bool:
    """Whether the keys are the tokens of the sample's sound."""
    sound = heard(layer, sample)
    return sound is not None and layer.weights.shape[2] - layer.prefix == len(sound)


def heard(layer: LayerAttention, sample: Sample) -> Sound | None:
    """The sound that the keys of a layer may be tokens of; that of a source for its encoder, and across."""
    if sample.source_sound is None:
        return None if layer.cross else sample.sound
    return sample.source_sound if layer.cross or "encoder" in layer.path.split(".") else None


def spectrogram(sound: Sound) -> Tensor:
    """Return decibels (frequencies, times) of windows of 25 ms, from -RANGE to 0, the loudest."""
    size = max(2, round(WINDOW * sound.rate))
    samples = torch.nn.functional.pad(sound.samples, (0, max(0, size - len(sound.samples))))
    hop = max(1, size // 4, (len(samples) - size) // _COLUMNS)
    window = torch.hann_window(size, dtype=samples.dtype)
    power = torch.stft(samples, size, hop, window=window, center=False, return_complex=True).abs().square()
    decibels = 10 * power.clamp_min(1e-12).log10()
    return (decibels - decibels.max()).clamp_min(-RANGE)


def draw_on_sound(
    layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path
) -> Iterator[Path]:
    """Draw attention_sound.png, the weights of one query over the spectrogram, and attention_heard.png, of each word.

    The layers attend to a sound.
    """
    own = [layer for layer in layers if not layer.cross]
    if own:
        yield from _draw_query(own, sample, query, folder)
    across = [layer for layer in layers if layer.cross]
    if across:
        yield from _draw_words(across, sample, folder)


def _draw_query(layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path) -> Iterator[Path]:
    sound = heard(layers[0], sample)
    assert sound is not None
    _, name = query_weights(layers[0], query)
    for page, page_layers, heads in head_pages(layers):
        tables = [query_weights(layer, query)[0][:, layer.prefix :] for layer in page_layers]
        end = scale_end(tables)
        title = f"Attention of {name} on {sample.name}, over its spectrogram ({RANGE:g} dB){_explained(sound)}"
        with canvas(len(page_layers), len(heads) + 1, (3.2, 1.9), title) as (figure, axes):
            drawn = None
            for row, layer, table in zip(axes, page_layers, tables, strict=True):
                draw_spectrogram(row[0], sound)
                row[0].set_title(layer.name, pad=2)
                row[0].set_ylabel("hertz")
                for head, panel in zip(heads, row[1:], strict=True):
                    if head >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    draw_spectrogram(panel, sound)
                    drawn = overlay(panel, sound, table[head], end)
                    panel.set_title(f"head {layer.heads[head]}", pad=2)
            for panel in axes[-1]:
                panel.set_xlabel("seconds")
            page_colorbar(figure, drawn, axes, "attention weight of a token")
            yield save(figure, folder, "attention_sound", page)


def _explained(sound: Sound) -> str:
    return "" if sound.alignment is None else "; letters: where CTC hears each label"


def _draw_words(layers: list[LayerAttention], sample: Sample, folder: Path) -> Iterator[Path]:
    sound = heard(layers[0], sample)
    assert sound is not None
    tables = [layer.weights.mean(0)[layer.query_prefix :, layer.prefix :] for layer in layers]  # (words, N) each
    for page, part in enumerate(split_pages(len(layers), _LAYERS)):
        end = scale_end([tables[index] for index in part])
        title = f"Attention of each token over the source of {sample.name}, mean of the heads"
        with canvas(len(part) + 1, 1, (8.0, 1.9), title) as (figure, axes):
            draw_spectrogram(axes[0][0], sound)
            axes[0][0].set_ylabel("hertz")
            drawn = None
            for (panel,), index in zip(axes[1:], part, strict=True):
                drawn = draw_over_time(panel, sound, layers[index], tables[index], end, fontsize=6)
                panel.set_title(layers[index].name, pad=2)
            axes[-1][0].set_xlabel("seconds")
            page_colorbar(figure, drawn, axes[1:], "attention weight of a token")
            yield save(figure, folder, "attention_heard", page)


def draw_over_time(
    panel: Any, sound: Sound, layer: LayerAttention, weights: Tensor, end: float, *, fontsize: int
) -> Any:
    """Draw weights (queries, N) of a layer over the times of the tokens of a sound, a row for each named query."""
    names = [printable(name) for name in layer.queries[layer.query_prefix :]]
    extent = (float(sound.edges[0]), float(sound.edges[-1]), len(names) - 0.5, -0.5)
    image = panel.imshow(weights.numpy(), cmap=sequential_colours(), vmin=0, vmax=end, aspect="auto", extent=extent)
    panel.set_xlim(0, len(sound.samples) / sound.rate)
    panel.set_yticks(range(len(names)), names, fontsize=fontsize)
    return image


def draw_spectrogram(panel: Any, sound: Sound) -> None:
    """Draw a spectrogram with its axes in seconds and hertz, and the labels of an alignment where there is one."""
    table = spectrogram(sound)
    extent = (0.0, len(sound.samples) / sound.rate, 0.0, sound.rate / 2)
    gray = 0.25 + 0.6 * (table / RANGE + 1)  # neither black nor white, so that both take colour
    panel.imshow(gray.numpy(), cmap="gray", vmin=0, vmax=1, origin="lower", aspect="auto", extent=extent)
    panel.tick_params(labelsize=6, length=2)
    for label in sound.alignment or ():
        start, stop = float(sound.edges[label.first]), float(sound.edges[label.last + 1])
        panel.axvspan(start, stop, ymin=0.86, color=HIGHLIGHT, alpha=0.35, linewidth=0)
        middle = (start + stop) / 2
        panel.text(
            middle, 0.465 * sound.rate, printable(label.text), ha="center", va="center", fontsize=7, color="white"
        )


def overlay(panel: Any, sound: Sound, weights: Tensor, end: float) -> Any:
    """Draw weights (N,) over the times of their tokens."""
    extent = (float(sound.edges[0]), float(sound.edges[-1]), 0.0, sound.rate / 2)
    image = panel.imshow(
        weights[None].numpy(),
        cmap=transparent_to_orange(),
        vmin=0,
        vmax=end,
        aspect="auto",
        extent=extent,
        interpolation="nearest",
    )
    panel.set_xlim(0, len(sound.samples) / sound.rate)
    return image
