"""Captions of canvases with coloured digits: "a red 3 left of a blue 7".

Source: Vinyals et al. 2015, Show and Tell: A Neural Image Caption Generator (arXiv 1411.4555), for the task, on the
    digits of Alpaydin and Kaynak 1998
Reference: sklearn.datasets.load_digits

    source   a canvas of two digits, each red, green or blue, in different cells of 3 x 3
    inputs   START a red 3 left of a blue 7 END      columns from left to right, and each from top to bottom

Of two digits in one column, the first is "above" the second. The canvases of a split show only that split's digits;
those of training are composed again in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Batch, Because, DataSpec, Splits, TextTokenizer, Tokenizer
from blockyard.data._scenes import ACROSS, CELLS, COLOURS, SHAPE, CanvasData, Scenes, SceneSource
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.columns import Ragged
from blockyard.data.splits.text_tokenizer import ends_of, text_tokenizer

Number = Annotated[int, Ge(1), Le(CELLS), Because("a canvas has nine cells")]
LONGEST = len("a green 3 left of ")  # characters for each digit, and so the largest number of tokens
FITTED = 4_000  # captions that a tokenizer learns from


class CaptionSplit:
    """A split of canvases with a caption each."""

    def __init__(
        self,
        scenes: SceneSource,
        tokenizer: TextTokenizer,
        ends: tuple[int, int],
        samples: int,
        *,
        blank: bool,
    ) -> None:
        self.scenes = scenes
        self.tokenizer = tokenizer
        self.ends = ends
        self.samples = samples
        self.blank = blank
        self._encoded: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return self.samples

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N + 1): start, caption, end; lengths; and source float32 (B, 3, 24, 24)."""
        scenes = self.scenes.draw(order, 0 if key is None else key)
        inputs, lengths = self.sequences(captions(scenes)).take(torch.arange(len(order)))
        source = self.scenes.paint(scenes)
        if self.blank:
            source = torch.zeros_like(source)
        return Batch(inputs, lengths=lengths, source=source)

    def sequences(self, texts: list[str]) -> Ragged:
        """Return captions as token ids with start and end token."""
        for text in texts:
            if text not in self._encoded:
                self._encoded[text] = [self.ends[0], *self.tokenizer.encode(text), self.ends[1]]
        return Ragged.of([self._encoded[text] for text in texts])

    @cached_property
    def pairs(self) -> list[Pair]:
        """The name of each canvas, and its caption."""
        texts = captions(self.scenes.draw(torch.arange(len(self)), 0))
        return [(f"canvas {number}", text) for number, text in enumerate(texts)]


def captions(scenes: Scenes) -> list[str]:
    """Return the caption of each scene, with its digits by column and then by row."""
    column = scenes.cell % ACROSS  # (B, most)
    row = scenes.cell // ACROSS  # (B, most)
    # Absent digits come last, behind all cells.
    order = (column * ACROSS + row).masked_fill(~scenes.present, CELLS).argsort(1)  # (B, most)
    table = torch.stack([scenes.colour, scenes.digit, column], -1)  # (B, most, 3)
    table = table.gather(1, order[..., None].expand(-1, -1, 3))
    texts = []
    for digits, count in zip(table.tolist(), scenes.number.tolist(), strict=True):
        texts.append(caption([(COLOURS[colour], digit, column) for colour, digit, column in digits[:count]]))
    return texts


def caption(digits: Sequence[tuple[str, int, int]]) -> str:
    """Return the caption of digits in the given order. digits: (colour, digit, column) of each."""
    parts = []
    for number, (colour, digit, column) in enumerate(digits):
        if number:
            parts.append("above" if column == digits[number - 1][2] else "left of")
        parts.append(f"a {colour} {digit}")
    return " ".join(parts)


@dataclass(kw_only=True, eq=False)
class CanvasCaptions(CanvasData):
    """A caption for each canvas; needs no file and no network.

    Options:
        digits: digits on a canvas
        blank: show an empty canvas, for the rival that sees nothing
    """

    digits: Number = 2
    blank: bool = False

    @property
    def spec(self) -> DataSpec:
        """Captions of different lengths, each of a canvas."""
        longest = self.digits * LONGEST + 1  # with the end token
        return DataSpec("text", (longest,), variable=True, source=DataSpec("image", SHAPE))

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Compose the captions that the tokenizer is fitted on, unless its state was loaded."""
        tokenizer = text_tokenizer(tokenizer)
        scenes = self.scenes((self.digits, self.digits))
        if not tokenizer.state():
            tokenizer.fit(captions(scenes[0].draw(torch.arange(FITTED), 0)))
        ends = ends_of(tokenizer, self.spec)
        splits = []
        for source, samples in zip(scenes, self.sizes_of(self.samples, self.eval_samples), strict=True):
            splits.append(CaptionSplit(source, tokenizer, ends, samples, blank=self.blank))
        return Splits(*splits)
