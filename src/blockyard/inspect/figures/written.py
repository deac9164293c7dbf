"""The figure of `blockyard eval write=true`: recordings with their texts, or images or sounds beside the true ones.

Written images and sounds are shown with their reading by a judge; sounds have WAV files beside the figure.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import SoundTokenizer
from blockyard.data.files.sounds import write_wav
from blockyard.evaluate.written import Written
from blockyard.inspect._canvas import HIGHLIGHT, INK, printable, wrap
from blockyard.inspect.figures._recordings import draw_recordings
from blockyard.inspect.figures.sound_figure import spectrogram_panel
from blockyard.inspect.panels import Heat, Page, Panel, grid, mark, picture
from blockyard.inspect.panels import draw as draw_pages
from blockyard.inspect.sound import Sound
from blockyard.runs.load import Loaded
from blockyard.runs.result_files import result_stem

ACROSS = 4  # pairs of images in a row of the figure
EXAMPLES = 4  # sounds of the figure
_LINE = 26  # characters of a source above its images


def draw(loaded: Loaded, written: Written, subject: str, path: Path) -> list[Path]:
    """Draw the first samples of a split, and return the figure and sounds; none for texts that a model writes of texts.

    subject: the split; path: the file with the texts
    """
    folder = path.parent
    # The first that applies: a run reads recordings, or writes images, or writes sounds.
    figure = draw_recordings(loaded, written, subject, path)
    figure = figure or _draw_images(loaded, written, subject, folder)
    figure = figure or _draw_sounds(loaded, written, subject, folder)
    sounds = _write_sounds(loaded, written, folder)
    return [] if figure is None else [figure, *sounds]


def _draw_images(loaded: Loaded, written: Written, subject: str, folder: Path) -> Path | None:
    """Draw drawn-PART.png; None for a run that draws no images.

    Below each drawing stands the judge's reading, in another colour if it differs from the text that was asked for.
    """
    levels = loaded.data.spec.levels
    if loaded.data.spec.modality != "image" or not written.outputs or levels is None:
        return None
    right = sum(text == reference for _, reference, text in written.texts)
    title = (
        f"{loaded.folder.name}, {loaded.weights}: the first of {subject}, true and drawn; "
        f"{right} of {len(written.texts)} are read as asked for"
    )
    panels: list[Panel] = []
    for (true, drawn), (source, reference, reading) in zip(written.outputs, written.texts, strict=False):
        colour = INK if reading == reference else HIGHLIGHT
        below = mark("annotate", wrap(f"read: {reading}", _LINE), (0, -0.04), xycoords="axes fraction")
        below.options |= {"fontsize": 6, "va": "top", "color": colour, "annotation_clip": False}
        panels.append(Panel([_image(true, levels)], wrap(source, _LINE), left=True, title_size=6, frame=False))
        panels.append(Panel([_image(drawn, levels), below], "drawn", left=True, title_size=6, frame=False))
    stem = result_stem(loaded, "drawn", written.part, written.searched)
    (path,) = draw_pages([Page(stem, title, grid(panels, 2 * ACROSS), (1.15, 1.6))], folder)
    return path


def _image(image: Tensor, levels: int) -> Heat:
    pixels = image.movedim(0, -1).float() / (levels - 1)  # (height, width, C)
    return picture(pixels.expand(*pixels.shape[:2], 3))


def _draw_sounds(loaded: Loaded, written: Written, subject: str, folder: Path) -> Path | None:
    """Draw spoken-PART.png, a true sound and the written one in each row; None for a run that writes no sounds.

    Above each written sound stands the text that the judge hears, in another colour if it differs from the reference.
    """
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, SoundTokenizer) or not written.outputs:
        return None
    shown = written.outputs[:EXAMPLES]
    title = (
        f"{loaded.folder.name}, {loaded.weights}: the first of {subject}, true and written; "
        f"CER {written.scores['cer']:.3f} of {len(written.texts)}"
    )
    seconds = max(len(sound) for pair in shown for sound in pair) / tokenizer.rate
    rows = []
    for (true, spoken), (source, reference, text) in zip(shown, written.texts, strict=False):
        left = _sound_panel(true, tokenizer.rate, f"true: {printable(source)}")
        left.ylabel = "hertz"
        right = _sound_panel(spoken, tokenizer.rate, f"written, heard as: {printable(text)}")
        right.title_colour = INK if text == reference else HIGHLIGHT
        rows.append([left, right])
    for panel in rows[-1]:
        panel.xlabel = "seconds"
    for panel in (panel for row in rows for panel in row):
        panel.xlim = (0, seconds)
        panel.left = True
    (path,) = draw_pages([Page(_stem(loaded, written), title, rows, (5.0, 1.5), few_colours=True)], folder)
    return path


def _sound_panel(samples: Tensor, rate: int, title: str) -> Panel:
    if not len(samples):
        return Panel([], title, numbers=True)
    return spectrogram_panel(Sound(samples.float() / 32768, rate, torch.zeros(1)), title)


def _write_sounds(loaded: Loaded, written: Written, folder: Path) -> list[Path]:
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
