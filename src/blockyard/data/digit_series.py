"""The digits of scikit-learn pixel by pixel: 1,797 series of 64 steps, 10 classes, included in the package.

Source: Le et al. 2015, A Simple Way to Initialize Recurrent Networks of Rectified Linear Units (arXiv 1504.00941),
    section 4.2, for reading images of digits pixel by pixel
Reference: sklearn.datasets.load_digits
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Split, Splits, Tokenizer
from blockyard.data.digits import Digits


class PixelSplit:
    """Images of another split, row by row, as series of one channel."""

    def __init__(self, images: Split) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, pixels, 1) and classes (B,)."""
        batch = self.images.batch(order, key)
        return Batch(batch.inputs.flatten(1)[:, :, None], batch.target)


@dataclass(kw_only=True, eq=False)
class DigitSeries(Digits):
    """Each image is a series of its gray levels, row by row; needs no file and no network."""

    @property
    def spec(self) -> DataSpec:
        """Series of one length with a class each."""
        channels, height, width = self.shape
        return DataSpec("series", (height * width, channels), target="class", classes=self.classes)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the images and hold out the validation split."""
        return Splits(*(PixelSplit(split) for split in super().load(tokenizer)))
