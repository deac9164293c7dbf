"""Attention over a sound: its spectrogram in seconds and hertz, the weights over it, and where CTC hears each label."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from blockyard.inspect._canvas import HIGHLIGHT, printable, split_pages
from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.figures._attention_panels import query_rows, scale_end
from blockyard.inspect.panels import GRAY, OVERLAY, Heat, Mark, Page, Panel, mark, text
from blockyard.inspect.samples import Sample
from blockyard.inspect.sound import Sound

WINDOW = 0.025  # seconds
RANGE = 60.0  # decibels below the loudest that are drawn
_COLUMNS = 500  # windows of a spectrogram, at most
_LAYERS = 6  # rows of a page


def attends_sound(layer: LayerAttention, sample: Sample) -> bool:
    """Return whether the keys are the tokens of the sample's sound."""
    sound = sound_of_keys(layer, sample)
    return sound is not None and layer.weights.shape[2] - layer.prefix == len(sound)


def sound_of_keys(layer: LayerAttention, sample: Sample) -> Sound | None:
    """Return the sound of a layer's keys: the source for its encoder and for cross-attention."""
    if sample.source_sound is None:
        return None if layer.cross else sample.sound
    if layer.cross or "encoder" in layer.path.split("."):
        return sample.source_sound
    return None


def spectrogram(sound: Sound) -> Tensor:
    """Return decibels (frequencies, times) of windows of 25 ms, from -RANGE to 0, the loudest."""
    size = max(2, round(WINDOW * sound.rate))
    samples = torch.nn.functional.pad(sound.samples, (0, max(0, size - len(sound.samples))))
    hop = max(1, size // 4, (len(samples) - size) // _COLUMNS)
    window = torch.hann_window(size, dtype=samples.dtype)
    power = torch.stft(samples, size, hop, window=window, center=False, return_complex=True).abs().square()
    decibels = 10 * power.clamp_min(1e-12).log10()
    return (decibels - decibels.max()).clamp_min(-RANGE)


def pages_on_sound(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    """Yield attention_sound, the weights of one query over the spectrogram, and attention_heard, of each word."""
    self_attention = [layer for layer in layers if not layer.cross]
    if self_attention:
        yield from _query_pages(self_attention, sample, query)
    cross_attention = [layer for layer in layers if layer.cross]
    if cross_attention:
        yield from _word_pages(cross_attention, sample)


def _query_pages(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    sound = sound_of_keys(layers[0], sample)
    assert sound is not None
    _, name = query_weights(layers[0], query)
    title = f"Attention of {name} on {sample.name}, over its spectrogram ({RANGE:g} dB)"
    if sound.alignment is not None:
        title += "; letters: where CTC hears each label"

    def over_sound(layer: LayerAttention, weights: Tensor, head: int, end: float) -> Panel:
        panel = spectrogram_panel(sound, f"head {layer.heads[head]}")
        panel.marks = [*panel.marks, overlay(sound, weights[layer.prefix :], end)]
        return panel

    for rows, _ in query_rows(layers, query, over_sound):
        cells = []
        for layer, panels in rows:
            first = spectrogram_panel(sound, layer.name)
            first.ylabel = "hertz"
            cells.append([first, *panels])
        for panel in filter(None, cells[-1]):
            panel.xlabel = "seconds"
        yield Page("attention_sound", title, cells, (3.2, 1.9), bar="attention weight of a token")


def _word_pages(layers: list[LayerAttention], sample: Sample) -> Iterator[Page]:
    sound = sound_of_keys(layers[0], sample)
    assert sound is not None
    tables = [layer.weights.mean(0)[layer.query_prefix :, layer.prefix :] for layer in layers]  # (words, N) each
    title = f"Attention of each token over the source of {sample.name}, mean of the heads"
    for part in split_pages(range(len(layers)), _LAYERS):
        end = scale_end([tables[index] for index in part])
        panels = [spectrogram_panel(sound)]
        panels[0].ylabel = "hertz"
        panels += [over_time(sound, layers[index], tables[index], end) for index in part]
        panels[-1].xlabel = "seconds"
        rows = [[panel] for panel in panels]
        yield Page("attention_heard", title, rows, (8.0, 1.9), bar="attention weight of a token")


def over_time(sound: Sound, layer: LayerAttention, weights: Tensor, end: float) -> Panel:
    """Return weights (queries, N) of a layer over the times of the tokens of a sound, a row for each named query."""
    names = [printable(name) for name in layer.queries[layer.query_prefix :]]
    extent = (float(sound.edges[0]), float(sound.edges[-1]), len(names) - 0.5, -0.5)
    heat = Heat(weights, end, extent=extent, stretched=True)
    return Panel([heat], layer.name, y_names=names, names_size=6, numbers=True, xlim=(0, sound.seconds))


def spectrogram_panel(sound: Sound, title: str = "") -> Panel:
    """Return a spectrogram with its axes in seconds and hertz, and the labels of an alignment if there is one."""
    extent = (0.0, sound.seconds, 0.0, sound.rate / 2)
    gray = 0.25 + 0.6 * (spectrogram(sound) / RANGE + 1)  # neither black nor white, so that both take colour
    marks: list[Heat | Mark] = [Heat(gray, colours=GRAY, extent=extent, stretched=True, upwards=True)]
    for label in sound.alignment or ():
        start, stop = float(sound.edges[label.first]), float(sound.edges[label.last + 1])
        marks.append(mark("axvspan", start, stop, ymin=0.86, color=HIGHLIGHT, alpha=0.35, linewidth=0))
        marks.append(text((start + stop) / 2, 0.465 * sound.rate, printable(label.text), colour="white"))
    return Panel(marks, title, numbers=True, xlim=(0, sound.seconds))


def overlay(sound: Sound, weights: Tensor, end: float) -> Heat:
    """Return weights (N,) over the times of their tokens."""
    extent = (float(sound.edges[0]), float(sound.edges[-1]), 0.0, sound.rate / 2)
    return Heat(weights[None], end, colours=OVERLAY, extent=extent, stretched=True)
