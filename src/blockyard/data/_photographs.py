"""Shared parts of data sets of image files: what training does to a photograph, and what is decoded when."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from blockyard.contracts import CountOrZero, Side, Splits, Tokenizer, Workers
from blockyard.data._augment import Augment
from blockyard.data._decode import ImageFiles, LazyImageSplit, centred, open_image, to_tensor
from blockyard.data._images import ImageData, ImageSplit, LabelledImages
from blockyard.data._photo_augment import PhotoAugment, ResizedCrop
from blockyard.data._split import Fraction, sha256

SAMPLE = 2000  # images that give the channel statistics of a data set too large for memory

Area = Annotated[float, Gt(0), Le(1)]
Operations = Annotated[int, Ge(0), Le(16)]
Magnitude = Annotated[int, Ge(0), Le(30)]
Probability = Annotated[float, Ge(0), Le(1)]


@dataclass(kw_only=True, eq=False)
class Photographs(ImageData):
    """Image files with a class each, brought to one size. Subclasses list them.

    Options:
        size: side of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        test_fraction: share of the training images that is the test split, where the files name none
        resized_crop: random crops of training images, of this share of the area or more and with sides of 3:4 to 4:3,
            resized to `size`; 0.08 is usual for ImageNet, null takes the center
        rand_augment: operations of RandAugment on each training image, 0 for none
        rand_magnitude: their magnitude, of 30; null is 9
        erasing: probability that a random rectangle of a training image is erased
        memory_limit: megabytes of pixels up to which all images are decoded into memory, without `resized_crop`
        workers: threads that decode, in each process
    """

    incidental = frozenset({"eval_batch_size", "memory_limit", "workers"})

    size: Side = 32
    channels: Literal[1, 3] = 3
    test_fraction: Fraction = 0.1
    resized_crop: Area | None = None
    rand_augment: Operations = 0
    rand_magnitude: Magnitude | None = None
    erasing: Probability = 0.0
    memory_limit: CountOrZero = 2048
    workers: Workers = 2

    def __post_init__(self) -> None:
        if self.rand_magnitude is not None and not self.rand_augment:
            raise ValueError(
                f"data.rand_magnitude={self.rand_magnitude} is for data.rand_augment=2 or another number of operations"
            )
        if self.resized_crop is not None and self.crop:
            raise ValueError(f"data.crop={self.crop} and data.resized_crop both crop at random; use one of them")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a resized image."""
        return (self.channels, self.size, self.size)

    @property
    def augment(self) -> Augment:
        """The augmentation of training images, except for `resized_crop`."""
        magnitude = 9 if self.rand_magnitude is None else self.rand_magnitude
        return PhotoAugment(self.shift, self.crop, self.flip, self.rand_augment, magnitude, self.erasing)

    @abstractmethod
    def parts(self) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
        """Lists the images of the training, validation and test split. Raises UserError or ValueError for bad files."""

    @abstractmethod
    def open(self, file: Any) -> tuple[Path | io.BytesIO, object]:
        """Returns an image file, and its name for messages. file: an element of `ImageFiles.files`."""

    @abstractmethod
    def contents(self, files: Any) -> Sequence[str | Tensor]:
        """Returns what tells the files of a part from others, without reading them."""

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Is not called: `parts` lists the images."""
        raise AssertionError("the parts are listed")

    def image_files(self, files: Any, target: Tensor) -> ImageFiles:
        """Returns images with classes (n,) that are decoded as the options say."""
        return ImageFiles(files, target, self._decode, self.workers)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Decodes the images into memory if they fit `memory_limit`; else a batch decodes its own."""
        listed = self.parts()
        pixels = torch.Size(self.shape).numel() * sum(len(part.target) for part in listed)
        train, validation, test = self.sized(*listed)
        if pixels <= self.memory_limit * 2**20 and self.resized_crop is None:
            decoded = [part.decode_all() for part in (train, validation, test)]
            self._fingerprint = sha256(tensor for part in decoded for tensor in part)
            return self.splits(ImageSplit, decoded, decoded[0].images, tokenizer)
        # Hashing the bytes of all files would take as long as training on them.
        contents = [self.contents(part.files) for part in (train, validation, test)]
        self._fingerprint = sha256(each for part in contents for each in (str(len(part)), *part))
        sample = torch.linspace(0, len(train.files) - 1, min(SAMPLE, len(train.files))).long()
        images = train.images(sample)
        if self.resized_crop is not None:
            train = replace(train, decode_random=self._decode_crop)
        return self.splits(LazyImageSplit, (train, validation, test), images, tokenizer)

    @cached_property
    def _crop(self) -> ResizedCrop:
        assert self.resized_crop is not None
        return ResizedCrop(self.resized_crop, self.size)

    def _decode_crop(self, file: Any, seed: int) -> Tensor:
        return self._crop(open_image(*self.open(file), channels=self.channels), seed)

    def _decode(self, file: Any) -> Tensor:
        return to_tensor(centred(open_image(*self.open(file), channels=self.channels), self.shape[1]))
