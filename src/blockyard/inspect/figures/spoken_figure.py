"""What a model spoke for the first sources of a split: spectrograms, true and written, and the sounds as WAV files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import SoundTokenizer
from blockyard.data.files.sounds import write_wav
from blockyard.evaluate.written import Written
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, printable
from blockyard.inspect.figures.sound_figure import draw_spectrogram
from blockyard.inspect.figures.written_sounds_figure import save_few_colours
from blockyard.inspect.sound import Sound
from blockyard.runs.load import Loaded

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
        return save_few_colours(figure, folder / f"{_stem(written)}.png")


def write_spoken(loaded: Loaded, written: Written, folder: Path) -> list[Path]:
    """Write the written sounds of the figure as spoken-PART-1.wav and so on; none for a run that writes no sounds."""
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, SoundTokenizer):
        return []
    paths = []
    for number, (_, sound) in enumerate(written.outputs[:EXAMPLES], start=1):
        paths.append(folder / f"{_stem(written)}-{number}.wav")
        write_wav(paths[-1], sound, tokenizer.rate)
    return paths


def _stem(written: Written) -> str:
    return f"spoken-{written.part}" + ("" if written.beam is None else f"-beam{written.beam}")


def _sound(samples: Tensor, rate: int) -> Sound:
    return Sound(samples.float() / 32768, rate, torch.zeros(1))
