"""Texts that a model writes for the first recordings of a split, their spectrograms, and the attention to them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blockyard.data.splits.order import take
from blockyard.evaluate.written import Written
from blockyard.inspect.attention_weights import LayerAttention, attention_layers
from blockyard.inspect.figures._attention_panels import scale_end
from blockyard.inspect.figures.sound_figure import attends_sound, over_time, overlay, spectrogram_panel
from blockyard.inspect.panels import Page, Panel, draw
from blockyard.inspect.samples import Sample, sample_of
from blockyard.runs.load import Loaded, splits_of

EXAMPLES = 4
_LONGEST = 90  # characters of a text above its spectrogram


def draw_recordings(loaded: Loaded, written: Written, subject: str, path: Path) -> Path | None:
    """Draw the texts of the first recordings beside `path`; None for a run without a source of sound.

    Each recording has its spectrogram with the labels that CTC hears, and over it the attention of the last layer that
    attends to the sound, the mean over heads and queries. Cross-attention has a panel of its own below, with a row for
    each token of the reference.
    """
    source = loaded.data.spec.source
    if source is None or source.modality != "audio" or source.rate is None:
        return None
    splits = splits_of(loaded)
    split = {"test": splits.test, "val": splits.validation, "train": splits.train}[written.part]
    indices = range(min(EXAMPLES, len(written.texts)))
    samples = [sample_of(loaded, take(split, torch.tensor([index]), None), index) for index in indices]
    attended = [_last_layer(loaded, sample) for sample in samples]
    panels: list[Panel] = []
    for sample, layer, (_, reference, text) in zip(samples, attended, written.texts, strict=False):
        title = f"reference: {_short(reference)}\nwritten: {_short(text)}"
        panels += _panels(sample, layer, title)
    panels[-1].xlabel = "seconds"
    title = f"{loaded.folder.name}, {loaded.weights}: the first recordings of {subject}"
    page = Page(path.stem, title, [[panel] for panel in panels], (8.0, 1.5), few_colours=True)
    (figure,) = draw([page], path.parent)
    return figure


def _last_layer(loaded: Loaded, sample: Sample) -> LayerAttention | None:
    """Return the last layer that attends to the sound, cross-attention if there is any; None without such a layer."""
    layers = [layer for layer in attention_layers(loaded.model, [sample]) if attends_sound(layer, sample)]
    across = [layer for layer in layers if layer.cross]
    chosen = across or layers
    return chosen[-1] if chosen else None


def _panels(sample: Sample, layer: LayerAttention | None, title: str) -> list[Panel]:
    """Return the spectrogram with the attention over it, or below it if that is cross-attention."""
    sound = sample.sound or sample.source_sound
    assert sound is not None
    first = spectrogram_panel(sound, title)
    first.left = True
    first.ylabel = "hertz"
    if layer is None:
        return [first]
    weights: Tensor = layer.weights.mean(0)[layer.query_prefix :, layer.prefix :]  # (queries, N)
    if not layer.cross:
        by_token = weights.mean(0)  # (N,)
        first.marks = [*first.marks, overlay(sound, by_token, 2 * scale_end([by_token]))]  # the sound stays visible
        return [first]
    below = over_time(sound, layer, weights, scale_end([weights]))
    below.title = f"{layer.name}, each token of the reference, mean of the heads"
    below.left = True
    return [first, below]


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return text[: _LONGEST - 1] + "…"
