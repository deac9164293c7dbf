"""Several handwritten digits on a larger canvas, labelled pixel by pixel.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits; composed as in Eslami et al. 2016,
    Attend, Infer, Repeat (arXiv 1603.08575), section 4.1 (multi-MNIST)
Reference: sklearn.datasets.load_digits

    +-----------+
    | 3         |     0 is background, 1 to 10 are the digits 0 to 9, where there is ink
    |        7  |     no two digits overlap: each lies at a random position in a cell of its own
    |  0        |
    +-----------+

The canvases of a split show only that split's digits. Training canvases are composed again in each epoch,
those of validation and test are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Samples, Side, Splits, Tokenizer
from blockyard.data._scenes import CanvasOptions
from blockyard.data.files.digest import sha256
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.images import LabelledImages, Moments
from blockyard.data.splits.order import mix

SIDE = 8  # pixels of a digit
CELL = 10  # minimum side of a cell in pixels, which leaves room to move a digit
INK = 5  # the gray level, of 16, from which a pixel belongs to the digit


@dataclass(frozen=True, eq=False)
class CanvasSplit:
    """A split of canvases, composed on access. counts: the minimum and maximum number of digits."""

    digits: LabelledImages
    moments: Moments
    size: int
    counts: tuple[int, int]
    samples: int

    def __len__(self) -> int:
        return self.samples

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs float32 (B, 1, size, size) and target int64 (B, size, size)."""
        canvas, target = self.compose(order, 0 if key is None else key)
        return Batch((canvas.float() - self.moments.mean) / self.moments.std, target)

    def compose(self, order: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Compose gray levels uint8 (B, 1, size, size) and classes (B, size, size)."""
        least, most = self.counts
        across = self.size // CELL  # cells in a row
        cells = across * across
        pitch = self.size // across  # side of a cell in pixels
        slack = pitch - SIDE + 1  # positions of a digit in its cell along one axis
        draws = uniform(key, order, 1 + cells + 3 * most).T  # (B, ...)
        count = least + (draws[:, 0] * (most - least + 1)).long()  # (B,)
        cell = draws[:, 1 : 1 + cells].topk(most, 1).indices  # (B, most), different ones
        digit, down, right = draws[:, 1 + cells :].reshape(len(order), 3, most).unbind(1)
        image = (digit * len(self.digits.target)).long()  # (B, most)
        classes = self.digits.target[image] + 1  # (B, most), 0 is background
        present = torch.arange(most) < count[:, None]  # (B, most)
        pixels = self.digits.images[image, 0] * present[..., None, None]  # (B, most, 8, 8)
        top = cell // across * pitch + (down * slack).long()  # (B, most)
        left = cell % across * pitch + (right * slack).long()
        edge = torch.arange(SIDE)
        rows = (top[..., None] + edge)[..., :, None]  # (B, most, 8, 1)
        columns = (left[..., None] + edge)[..., None, :]  # (B, most, 1, 8)
        index = (rows * self.size + columns).flatten(1)  # (B, most * 64), no index twice: each digit has its cell
        blank = torch.zeros(len(order), self.size * self.size, dtype=torch.int64)
        canvas = blank.scatter(1, index, pixels.long().flatten(1)).view(-1, 1, self.size, self.size)
        inked = torch.where(pixels >= INK, classes[..., None, None], 0)
        target = blank.scatter(1, index, inked.flatten(1)).view(-1, self.size, self.size)
        return canvas.to(torch.uint8), target


@dataclass(kw_only=True, eq=False)
class DigitCanvas(CanvasOptions):
    """Canvases of scikit-learn's digits; needs no file and no network.

    Options:
        size: side of a canvas in pixels, 10 or more; there are (size // 10) ** 2 cells
        digits: maximum digits on a canvas
        least_digits: minimum digits on a canvas
    """

    size: Side = 24
    digits: Side = 4
    least_digits: Side = 1
    samples: Samples = 4_000

    def __post_init__(self) -> None:
        cells = (self.size // CELL) ** 2
        if self.digits > cells:
            raise ValueError(
                f"data.digits={self.digits}: a canvas of data.size={self.size} pixels has room for {cells}"
            )
        if self.least_digits > self.digits:
            raise ValueError(f"data.least_digits={self.least_digits} is more than data.digits={self.digits}")

    @property
    def spec(self) -> DataSpec:
        """Square images with one of eleven classes per pixel."""
        return DataSpec("image", (1, self.size, self.size), target="pixels", classes=11)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Assign the digits to the splits; canvases are composed of them batch by batch."""
        images = self.images_of_splits()
        counts = (self.least_digits, self.digits)
        unscaled = CanvasSplit(images[0], Moments(torch.zeros(()), torch.ones(())), self.size, counts, self.samples)
        levels, _ = unscaled.compose(torch.arange(1000), mix("moments"))
        moments = Moments.of(levels)
        splits = []
        for digits, samples in zip(images, self.sizes_of(self.samples, self.eval_samples), strict=True):
            splits.append(CanvasSplit(digits, moments, self.size, counts, samples))
        contents: list[Tensor] = []
        for split in splits:
            contents += split.digits
        # Two canvases of each split stand for the rule by which all are composed.
        contents += [split.compose(torch.arange(2), 0)[0] for split in splits]
        self._fingerprint = sha256(contents)
        return Splits(*splits)
