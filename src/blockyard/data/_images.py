"""What image data sets share: splitting, normalising, batches without Python work per sample."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, Count, CountOrZero, DataModule, DataSpec, Rate, Splits, Tokenizer
from blockyard.data._augment import Augment
from blockyard.data._split import Fraction, nested, sha256, stratified
from blockyard.errors import UserError


class Labelled(NamedTuple):
    """Images uint8 (n, C, height, width) and their classes int64 (n,)."""

    images: Tensor
    target: Tensor

    def pick(self, order: Tensor) -> Labelled:
        """The samples `order` (m,)."""
        return Labelled(self.images[order], self.target[order])


class Moments(NamedTuple):
    """Mean and standard deviation of each channel, float32 (1, C, 1, 1), over the training part."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, images: Tensor) -> Moments:
        """The moments of uint8 images (n, C, height, width), exact up to rounding."""
        counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in images.unbind(1)])
        levels, total = torch.arange(256, dtype=torch.float64), counts.sum(1).double()  # (256,), (C,)
        mean = (counts * levels).sum(1) / total
        variance = (counts * (levels - mean[:, None]) ** 2).sum(1) / total
        std = variance.sqrt().clamp_min(1e-6)
        return cls(mean.float().view(1, -1, 1, 1), std.float().view(1, -1, 1, 1))


@dataclass(frozen=True)
class Finish:
    """From bytes to what the model sees: moved, normalised, cropped."""

    moments: Moments
    augment: Augment

    def __call__(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Images uint8 (B, C, height, width) and their numbers (B,) -> float32 of that shape."""
        moved = self.augment.move(images, order, key)
        inputs = moved.float().sub_(self.moments.mean).div_(self.moments.std)
        return self.augment.resize(inputs, order, key)


class ImageSplit:
    """Images in memory: kept as bytes, normalised where a batch is made."""

    def __init__(self, data: Labelled, finish: Finish) -> None:
        self.images, self.target = data
        self.finish = finish

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs float32 (B, C, height, width), target (B,); `key` None leaves augmentation out."""
        return Batch(self.finish(self.images.index_select(0, order), order, key), self.target[order])


class ImageData(DataModule):
    """Labelled images. Subclasses name their shape and classes and `read` the files.

    Options:
        batch_size: samples in a training step, over all processes
        eval_batch_size: samples in a validation or test step, over all processes
        validation_fraction: share of the training images held out for validation, class by class
        split_seed: draws the split; not the run's seed, so that all seeds share one split
        shift: random translation of training images, in pixels, filled with zeros
        crop: random square of side 1 - crop or more, stretched back to full size
        flip: mirror half of the training images
        train_size: training images kept, class by class as many of each as of all; null is all, and a smaller
            number keeps a part of what a larger one does
    """

    incidental = frozenset({"eval_batch_size"})
    shape: tuple[int, int, int]
    classes: int | None

    def __init__(
        self,
        *,
        batch_size: Count = 128,
        eval_batch_size: Count = 512,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        shift: CountOrZero = 0,
        crop: Rate = 0.0,
        flip: bool = False,
        train_size: Count | None = None,
    ) -> None:
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.validation_fraction, self.split_seed = validation_fraction, split_seed
        self.augment = Augment(shift, crop, flip)
        self.train_size = train_size
        self._fingerprint: str | None = None

    @property
    def spec(self) -> DataSpec:
        """Images of one shape and size, and as many classes."""
        return DataSpec("image", self.shape, target="class", classes=self.classes)

    @abstractmethod
    def read(self) -> tuple[Labelled, Labelled]:
        """All training images and all test images; never called before `prepare`."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and split; the test part is the data set's own where it has one."""
        rest, test = self.read()
        kept, taken = stratified(rest.target, self.validation_fraction, self.split_seed)
        train, validation = rest.pick(self.fewer(rest.target, kept)), rest.pick(taken)
        self._fingerprint = sha256(tensor for part in (train, validation, test) for tensor in part)
        moments = Moments.of(train.images)
        return Splits(
            ImageSplit(train, Finish(moments, self.augment)),
            ImageSplit(validation, Finish(moments, Augment())),
            ImageSplit(test, Finish(moments, Augment())),
        )

    def fewer(self, target: Tensor, kept: Tensor) -> Tensor:
        """Those of the `kept` training images that `train_size` leaves.

        Raises UserError where there are not so many.
        """
        if self.train_size is None:
            return kept
        if self.train_size > len(kept):
            raise UserError(
                f"data.train_size={self.train_size}: there are {len(kept)} training images beside validation and test"
            )
        return kept[nested(target[kept], self.train_size, self.split_seed)]

    def fingerprint(self) -> str:
        """SHA-256 of pixels and classes, part by part."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint
