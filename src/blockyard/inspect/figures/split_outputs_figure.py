"""What a model drew or spoke for the first sources of a split, beside the true image or sound, and what a judge reads.

Of sounds there are spectrograms, and WAV files beside the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import SoundTokenizer
from blockyard.data.files.sounds import write_wav
from blockyard.evaluate.written import Written
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, printable, save, wrap
from blockyard.inspect.figures.sound_figure import draw_spectrogram
from blockyard.inspect.figures.written_sounds_figure import save_few_colours
from blockyard.inspect.sound import Sound
from blockyard.runs.load import Loaded
from blockyard.runs.result_files import result_stem

ACROSS = 4  # pairs of images in a row of the figure
_LINE = 26  # characters of a source above its images


def draw_written_images(loaded: Loaded, written: Written, folder: Path) -> Path | None:
    """Draw drawn-PART.png; None for a run that draws no images.

    Below each drawing stands what the judge reads in it, in another colour where that is not what is asked for.
    """
    levels = loaded.data.spec.levels
    if loaded.data.spec.modality != "image" or not written.outputs or levels is None:
        return None
    right = sum(text == reference for _, reference, text in written.texts)
    title = (
        f"{loaded.folder.name}, {loaded.weights}: the first of the {written.part} split, true and drawn; "
        f"{right} of {len(written.texts)} are read as asked for"
    )
    rows = -(-len(written.outputs) // ACROSS)
    with canvas(rows, 2 * ACROSS, (1.15, 1.6), title) as (figure, axes):
        panels = [axes[row][column : column + 2] for row in range(rows) for column in range(0, 2 * ACROSS, 2)]
        for pair, images, text in zip(panels, written.outputs, written.texts, strict=False):
            _draw(pair, images, text, levels)
        for panel in (panel for row in axes for panel in row):
            panel.set_axis_off()
        return save(figure, folder, result_stem(loaded, "drawn", written.part, written.searched))


def _draw(panels: Sequence[Any], images: tuple[Tensor, Tensor], text: tuple[str, str, str], levels: int) -> None:
    """A true image and a drawing side by side. text: source, reference, and what is read in the drawing."""
    source, reference, reading = text
    for panel, image in zip(panels, images, strict=True):
        pixels = image.movedim(0, -1).float() / (levels - 1)  # (height, width, C)
        panel.imshow(pixels.expand(*pixels.shape[:2], 3).numpy(), vmin=0, vmax=1, interpolation="nearest")
    panels[0].set_title(wrap(source, _LINE), loc="left", pad=2, fontsize=6)
    panels[1].set_title("drawn", loc="left", pad=2, fontsize=6)
    colour = INK if reading == reference else HIGHLIGHT
    below = {"transform": panels[1].transAxes, "fontsize": 6, "va": "top", "color": colour}
    panels[1].text(0, -0.04, wrap(f"read: {reading}", _LINE), **below)


EXAMPLES = 4


def draw_spoken(loaded: Loaded, written: Written, folder: Path) -> Path | None:
    """Draw spoken-PART.png, a true sound and the written one in each row; None for a run that writes no sounds.

    Above each written sound stands what the judge hears in it, in another colour where that is not the source.
    """
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, SoundTokenizer) or not written.outputs:
        return None
    shown = written.outputs[:EXAMPLES]
    title = (
        f"{loaded.folder.name}, {loaded.weights}: the first of the {written.part} split, true and written; "
        f"CER {written.scores['cer']:.3f} of {len(written.texts)}"
    )
    seconds = max(len(sound) for pair in shown for sound in pair) / tokenizer.rate
    with canvas(len(shown), 2, (5.0, 1.5), title) as (figure, axes):
        for panels, sounds, (source, reference, heard) in zip(axes, shown, written.texts, strict=False):
            for panel, sound in zip(panels, sounds, strict=True):
                if len(sound):
                    draw_spectrogram(panel, _sound(sound, tokenizer.rate))
                panel.set_xlim(0, seconds)
            panels[0].set_ylabel("hertz")
            panels[0].set_title(f"true: {printable(source)}", loc="left", pad=2)
            colour = INK if heard == reference else HIGHLIGHT
            panels[1].set_title(f"written, heard as: {printable(heard)}", loc="left", pad=2, color=colour)
        for panel in axes[-1]:
            panel.set_xlabel("seconds")
        return save_few_colours(figure, folder / f"{_stem(loaded, written)}.png")


def write_spoken(loaded: Loaded, written: Written, folder: Path) -> list[Path]:
    """Write the written sounds of the figure as spoken-PART-1.wav and so on; none for a run that writes no sounds."""
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, SoundTokenizer):
        return []
    paths = []
    for number, (_, sound) in enumerate(written.outputs[:EXAMPLES], start=1):
        paths.append(folder / f"{_stem(loaded, written)}-{number}.wav")
        write_wav(paths[-1], sound, tokenizer.rate)
    return paths


def _stem(loaded: Loaded, written: Written) -> str:
    return result_stem(loaded, "spoken", written.part, written.searched)


def _sound(samples: Tensor, rate: int) -> Sound:
    return Sound(samples.float() / 32768, rate, torch.zeros(1))
