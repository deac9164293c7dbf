"""Several handwritten digits on a larger canvas: which of the ten digits are on it?

Source: as `digit_canvas`; the labels of a scene as in Boutell et al. 2004, Learning multi-label scene classification
Reference: sklearn.datasets.load_digits

    +-----------+
    | 3         |     labels 3 and 7: each of the ten digits is there or not, however often
    |        7  |
    |  3        |
    +-----------+
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Splits, Tokenizer
from blockyard.data.digit_canvas import DigitCanvas

LABELS = 10


@dataclass(kw_only=True, eq=False)
class CanvasLabels(DigitCanvas):
    """Canvases of `digit_canvas`, and its options, with a label for each digit; needs no file and no network."""

    @property
    def spec(self) -> DataSpec:
        """Square images, and which of the ten digits each shows."""
        names = tuple(map(str, range(LABELS)))
        return replace(super().spec, target="labels", classes=LABELS, class_names=names)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Assign the digits to the splits, as `digit_canvas` does."""
        splits = super().load(tokenizer)
        return Splits(*map(LabelledCanvases, splits))


class LabelledCanvases:
    """A split of canvases with classes of pixels, replaced by a label for each class."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs float32 (B, 1, size, size) and target float32 (B, 10) of 0 and 1."""
        batch: Batch = self.split.batch(order, key)
        assert isinstance(batch.target, Tensor)
        pixels = batch.target.flatten(1)  # (B, size * size), 0 is background
        shown = torch.zeros(len(pixels), LABELS + 1).scatter_(1, pixels, 1.0)
        return replace(batch, target=shown[:, 1:])
