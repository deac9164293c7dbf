"""Canvases drawn from captions, the reverse of `canvas_captions`: "a red 3 left of a blue 7" is the source.

Source: Ramesh et al. 2021, Zero-Shot Text-to-Image Generation (arXiv 2102.12092), for the task, on the digits of
    Alpaydin and Kaynak 1998
Reference: sklearn.datasets.load_digits; sklearn.svm.SVC for the judge

    source   a red 3 left of a blue 7
    inputs   START, codes of a canvas of 3 x 3 cells with these two digits, wherever the relation is right

No two splits share a caption or an image of a digit. Canvases of training are composed again in each epoch.

A judge reads a drawn canvas cell by cell, and knows no model. The colour of a cell is the channel with most of its ink.
A support vector machine, fitted on the training split's images, classifies its digit. The reading is a caption too, so
that it can be compared with the caption of the source:

    canvas   . . .      . is blank      reading   "a red 3 left of a blue 7"
             3 . .                      digits    2 of 2 in the right colour
             . . 7                      exact     and nothing else, in the right relation
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Batch, Because, DataSpec, ImageTokenizer, Splits, TextTokenizer, Tokenizer
from blockyard.data._scenes import ACROSS, CELLS, COLOURS, DIGITS, LEVELS, SHAPE, SIDE, CanvasData, Scenes, SceneSource
from blockyard.data.canvas_captions import LONGEST, caption, captions
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.columns import Ragged
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.image_tokens import ImageTokenSplit, token_splits
from blockyard.data.splits.images import LabelledImages
from blockyard.data.splits.order import mix
from blockyard.data.splits.text_tokenizer import text_tokenizer

FITTED = 2_000  # canvases that a tokenizer learns its codes from
# The cells of two digits in the order of the caption, for "left of" and for "above".
_CELL_PAIRS = [
    [(a, b) for a, b in product(range(CELLS), repeat=2) if a % ACROSS < b % ACROSS],
    [(a, b) for a, b in product(range(CELLS), repeat=2) if a % ACROSS == b % ACROSS and a < b],
]
# Each caption as "above" (0 or 1), then the colour and the digit of both.
_ALL_CAPTIONS = torch.tensor([*product(range(2), *[range(len(COLOURS)), range(DIGITS)] * 2)])  # (1800, 5)


class CanvasReader:
    """Reads canvases as captions.

    digits: the labelled images that it is fitted on
    """

    CLEAR = 2 / 3  # minimum share of a cell's ink in the channel of its colour
    DRAWN = 1 / 2  # minimum ink of a cell with a digit, relative to the faintest image of a digit

    def __init__(self, digits: LabelledImages) -> None:
        self.digits = digits

    @cached_property
    def _model(self) -> Any:
        from sklearn.svm import SVC

        return SVC(gamma=1e-3).fit(self.digits.images.flatten(1).numpy(), self.digits.target.numpy())

    @cached_property
    def _least(self) -> float:
        return self.DRAWN * float(self.digits.images.flatten(1).sum(1).min())

    def read(self, canvases: Tensor) -> list[str]:
        """Return the captions of canvases (n, 3, 24, 24) in gray levels from 0 to 16; "nothing" without a digit.

        The colour of a cell without a clear one is "mixed".
        """
        cells = canvases.float().unflatten(3, (-1, SIDE)).unflatten(2, (-1, SIDE))  # (n, 3, rows, 8, columns, 8)
        cells = cells.permute(0, 4, 2, 1, 3, 5).flatten(1, 2)  # (n, 9, 3, 8, 8), column by column
        ink = cells.flatten(3).sum(3)  # (n, 9, 3)
        total = ink.sum(2)  # (n, 9)
        drawn = total >= self._least  # (n, 9)
        share, colour = (ink / total.clamp_min(1e-6)[..., None]).max(2)  # (n, 9)
        colour = colour.masked_fill(share < self.CLEAR, len(COLOURS))
        digit = torch.zeros_like(colour)
        if bool(drawn.any()):
            # The classifier knows gray digits, so the channels are added; a mixed cell may exceed the levels.
            shapes = cells.sum(2).clamp_max(LEVELS)[drawn]  # (cells with a digit, 8, 8)
            digit[drawn] = torch.from_numpy(self._model.predict(shapes.flatten(1).numpy()))
        names = (*COLOURS, "mixed")
        canvases_read = []
        for where, colours, digits in zip(drawn, colour.tolist(), digit.tolist(), strict=True):
            cells_drawn = where.nonzero()[:, 0].tolist()
            shown = [(names[colours[cell]], digits[cell], cell // ACROSS) for cell in cells_drawn]
            canvases_read.append(caption(shown) or "nothing")
        return canvases_read


def digits_in(text: str) -> Counter[str]:
    """Return the number of each coloured digit, such as "red 3", in a caption."""
    return Counter(re.findall(r"a (\w+ \d)", text))


@dataclass(frozen=True, eq=False)
class CaptionedScenes:
    """Draws canvases for the captions of one split. captions: (n, 5) int64, rows of `_ALL_CAPTIONS`."""

    source: SceneSource
    captions: Tensor

    def draw(self, order: Tensor, key: int) -> Scenes:
        """Return the scenes of the samples `order` (B,) under a key, the same however a batch is cut."""
        draws = uniform(key, order, 4)  # (4, B)
        caption = self.captions[(draws[0] * len(self.captions)).long()]  # (B, 5)
        above = caption[:, 0]
        colour = caption[:, 1::2]  # (B, 2)
        digit = caption[:, 2::2]  # (B, 2)
        beside, below = (torch.tensor(pairs)[(draws[1] * len(pairs)).long()] for pairs in _CELL_PAIRS)  # (B, 2) each
        cell = torch.where(above[:, None] == 1, below, beside)
        by_digit, count = self._images
        image = by_digit[digit, (draws[2:].T * count[digit]).long()]  # (B, 2)
        return Scenes(torch.full_like(above, 2), cell, digit, colour, image)

    @cached_property
    def _images(self) -> tuple[Tensor, Tensor]:
        """The indices of the images of each digit (10, most), padded, and their number (10,)."""
        indices = [(self.source.digits.target == digit).nonzero()[:, 0] for digit in range(DIGITS)]
        counts = torch.tensor(list(map(len, indices)))
        return torch.nn.utils.rnn.pad_sequence(indices, batch_first=True), counts


class CaptionedCanvases:
    """Canvases in gray levels with the caption of each as token ids."""

    def __init__(self, scenes: CaptionedScenes, tokenizer: TextTokenizer, samples: int) -> None:
        self.scenes, self.tokenizer, self.samples = scenes, tokenizer, samples
        self._encoded: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return self.samples

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs uint8 (B, 3, 24, 24), target int64 (B,) of one class for all, and source (B, M) int64."""
        scenes = self.scenes.draw(order, 0 if key is None else key)
        texts = captions(scenes)
        for text in texts:
            if text not in self._encoded:
                self._encoded[text] = self.tokenizer.encode(text)
        sequences = Ragged.of([self._encoded[text] for text in texts])
        source, lengths = sequences.take(torch.arange(len(order)))
        canvases = self.scenes.source.levels(scenes).to(torch.uint8)
        return Batch(canvases, torch.zeros(len(order), dtype=torch.int64), source=source, source_lengths=lengths)


class DrawingSplit(ImageTokenSplit):
    """Codes of canvases with their captions. reader: the judge of drawn canvases."""

    images: CaptionedCanvases

    def __init__(
        self, images: CaptionedCanvases, tokenizer: ImageTokenizer, frequencies: Tensor, *, reader: CanvasReader
    ) -> None:
        super().__init__(images, tokenizer, frequencies)
        self.reader = reader

    @cached_property
    def pairs(self) -> list[Pair]:
        """The caption of each canvas as the source, and as the reference of its reading."""
        texts = captions(self.images.scenes.draw(torch.arange(len(self)), 0))
        return [(text, text) for text in texts]

    def outputs(self, order: Tensor) -> list[Tensor]:
        """Return the canvases of the samples `order` (B,), each uint8 (3, 24, 24)."""
        return list(self.images.batch(order, None).inputs)

    def coded(self, order: Tensor) -> list[Tensor]:
        """Return the same canvases, encoded and decoded."""
        codes = self.tokenizer.encode(self.images.batch(order, None).inputs)
        return list(self.tokenizer.decode(codes))

    def read(self, outputs: Sequence[Tensor]) -> list[str]:
        """Return the judge's caption of each canvas."""
        return self.reader.read(torch.stack(list(outputs)))

    def score(self, readings: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return `digits`, the mean share of the digits of a reference that its reading has in their colour.

        A reading of more digits than its reference is divided by its own number of digits.
        """
        shares = []
        for reading, reference in zip(readings, references, strict=True):
            shown, named = digits_in(reading), digits_in(reference)
            # Otherwise a canvas full of digits would score 1.
            shares.append((shown & named).total() / max(shown.total(), named.total()))
        return {"digits": sum(shares) / len(shares)}


@dataclass(kw_only=True, eq=False)
class CanvasDrawings(CanvasData):
    """A canvas of two digits for each caption; needs no file and no network.

    Options:
        caption_fraction: share of all 1,800 captions that only the test split has, and of as many the validation split
    """

    caption_fraction: Annotated[float, Ge(0.01), Le(0.45), Because("each split needs captions of its own")] = 0.1

    @property
    def spec(self) -> DataSpec:
        """Canvases in gray levels of each channel, each with a caption."""
        source = DataSpec("text", (2 * LONGEST,), variable=True)
        return DataSpec("image", SHAPE, levels=LEVELS + 1, source=source)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Raise ValueError: the captions need a tokenizer of their own."""
        raise ValueError("data=canvas_drawings needs a tokenizer of its captions: source_tokenizer=word")

    def load_both(self, tokenizer: Tokenizer, source: Tokenizer) -> Splits:
        """Compose the canvases and captions that the tokenizers are fitted on, unless their states were loaded."""
        if not isinstance(tokenizer, ImageTokenizer):
            raise ValueError(
                f"data=canvas_drawings is written as codes, which {type(tokenizer).__name__} does not give; "
                "use tokenizer=patch_codes or vq"
            )
        source = text_tokenizer(source, "the captions need")
        scenes = list(map(CaptionedScenes, self.scenes((2, 2)), self._captions()))
        if not source.state():
            source.fit(captions(scenes[0].draw(torch.arange(FITTED), 0)))
        parts = []
        for drawn, size in zip(scenes, self.sizes_of(self.samples, self.eval_samples), strict=True):
            parts.append(CaptionedCanvases(drawn, source, size))
        fitted = scenes[0].source.levels(scenes[0].draw(torch.arange(FITTED), 0)).to(torch.uint8)
        reader = CanvasReader(scenes[0].source.digits)
        return token_splits(parts, tokenizer, fitted, self.spec, partial(DrawingSplit, reader=reader))

    def _captions(self) -> list[Tensor]:
        """The captions of the training, validation and test split, each (n, 5)."""
        generator = torch.Generator().manual_seed(mix("captions of drawings", self.split_seed))
        order = torch.randperm(len(_ALL_CAPTIONS), generator=generator)
        held_out = round(self.caption_fraction * len(_ALL_CAPTIONS))
        test, validation, train = order.split([held_out, held_out, len(order) - 2 * held_out])
        return [_ALL_CAPTIONS[indices] for indices in (train, validation, test)]
