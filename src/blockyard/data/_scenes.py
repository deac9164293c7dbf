"""Coloured handwritten digits in the cells of a canvas, shared by the data sets `canvas_*`.

Each digit lies in a cell of its own, of 3 x 3, and is red, green or blue.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import BatchSize, Samples, Seed
from blockyard.data.digits import Digits
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import read_picture
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.images import LabelledImages
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.split import Fraction, stratified

SIDE = 8  # pixels of a digit, and of a cell
ACROSS = 3  # cells in a row
CELLS = ACROSS * ACROSS
COLOURS = ("red", "green", "blue")
LEVELS = 16  # the brightest gray level of a digit's image
DIGITS = 10
SHAPE = (len(COLOURS), ACROSS * SIDE, ACROSS * SIDE)


class Scenes(NamedTuple):
    """The contents of canvases as numbers. The digits of a canvas are in the order in which their cells were drawn.

    number: (B,) int64, digits on each canvas
    cell, digit, colour: (B, most) int64; only the first `number` of a row are on the canvas
    image: (B, most) int64, the index of each digit's image
    """

    number: Tensor
    cell: Tensor
    digit: Tensor
    colour: Tensor
    image: Tensor

    @property
    def present(self) -> Tensor:
        """A mask of the digits that are on the canvas, (B, most) bool."""
        return torch.arange(self.cell.shape[1]) < self.number[:, None]


@dataclass(frozen=True, eq=False)
class SceneSource:
    """Draws scenes of the digits of one split. counts: the minimum and maximum number of digits on a canvas."""

    digits: LabelledImages
    counts: tuple[int, int]

    def draw(self, order: Tensor, key: int) -> Scenes:
        """Return the scenes of the samples `order` (B,) under a key, the same however a batch is cut."""
        least, most = self.counts
        # Drawn for `most` digits on each canvas; `present` masks the rest.
        draws = uniform(key, order, 1 + CELLS + 2 * most).T  # (B, 1 + CELLS + 2 most)
        count = least + (draws[:, 0] * (most - least + 1)).long()  # (B,)
        cell = draws[:, 1 : 1 + CELLS].topk(most, 1).indices  # (B, most), different ones
        chosen, colour = draws[:, 1 + CELLS :].reshape(len(order), 2, most).unbind(1)
        image = (chosen * len(self.digits.target)).long()
        return Scenes(count, cell, self.digits.target[image], (colour * len(COLOURS)).long(), image)

    def paint(self, scenes: Scenes) -> Tensor:
        """Return the canvases as float32 (B, 3, 24, 24) from -1 (black) to 1."""
        return self.levels(scenes) / (LEVELS / 2) - 1

    def levels(self, scenes: Scenes) -> Tensor:
        """Return the canvases in gray levels of the digits, float32 (B, 3, 24, 24) from 0 to 16."""
        # Absent digits are added as zeros.
        pixels = self.digits.images[scenes.image, 0].float() * scenes.present[..., None, None]  # (B, most, 8, 8)
        edge = torch.arange(SIDE)
        top = scenes.cell // ACROSS * SIDE  # (B, most)
        left = scenes.cell % ACROSS * SIDE  # (B, most)
        rows = (top[..., None] + edge)[..., :, None]  # (B, most, 8, 1)
        columns = (left[..., None] + edge)[..., None, :]  # (B, most, 1, 8)
        width = ACROSS * SIDE
        index = ((scenes.colour[..., None, None] * width + rows) * width + columns).flatten(1)  # (B, most * 64)
        blank = torch.zeros(len(pixels), len(COLOURS) * width * width)
        return blank.scatter_add(1, index, pixels.flatten(1)).view(-1, *SHAPE)


@dataclass(kw_only=True, eq=False)
class CanvasOptions(LoadedData):
    """Canvases of scikit-learn's digits, and how many there are.

    Options:
        samples: canvases in a training epoch
        eval_samples: canvases of the validation split, and of the test split
        test_fraction: share of all digit images that only the test split shows
        validation_fraction: share of the remaining images that only the validation split shows
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
        batch_size: canvases in a training step, over all processes
        eval_batch_size: canvases in a validation or test step, over all processes
    """

    published_under = "CC-BY-4.0, of the digits"

    samples: Samples = 16_000
    eval_samples: Samples = 500
    test_fraction: Fraction = 0.2
    validation_fraction: Fraction = 0.1
    split_seed: Seed = 0
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256

    def images_of_splits(self) -> tuple[LabelledImages, LabelledImages, LabelledImages]:
        """Return the images of digits of each split. No two splits share one."""
        rest, test = Digits(test_fraction=self.test_fraction, split_seed=self.split_seed).read()
        kept, held_out = stratified(rest.target, self.validation_fraction, self.split_seed)
        return rest.select(kept), rest.select(held_out), test


@dataclass(kw_only=True, eq=False)
class CanvasData(CanvasOptions):
    """Canvases of coloured digits. Subclasses say what belongs to a canvas."""

    def scenes(self, counts: tuple[int, int]) -> list[SceneSource]:
        """Return the source of canvases of each split."""
        splits = [SceneSource(digits, counts) for digits in self.images_of_splits()]
        contents: list[Tensor] = []
        for split in splits:
            contents += split.digits
        # Two canvases of each split stand for the rule by which all are drawn.
        for split in splits:
            contents.append(split.paint(split.draw(torch.arange(2), 0)))
        self._fingerprint = sha256(contents)
        return splits

    def read_source(self, path: str) -> Tensor:
        """Return an image file as a canvas, float32 (1, 3, 24, 24) from -1 (black) to 1."""
        return read_picture(Path(path), channels=SHAPE[0], size=SHAPE[1])
