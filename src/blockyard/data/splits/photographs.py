"""Shared parts of data sets of image files: what training does to a photograph, and what is decoded when."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import CountOrZero, Side, Splits, Tokenizer, Workers
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import decode_image, displayed, open_image, to_tensor
from blockyard.data.splits.augment import seeded
from blockyard.data.splits.images import ImageData, ImageFiles, ImageSplit, LabelledImages, LazyImageSplit
from blockyard.data.splits.simple_models import equally_spaced
from blockyard.data.splits.split import Fraction

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLE = 2000  # images of a part that are looked at in advance, where a data set is too large for memory
Area = Annotated[float, Gt(0), Le(1)]


@dataclass(kw_only=True, eq=False)
class Photographs(ImageData):
    """Image files with a class each, brought to one size. Subclasses list them.

    Options:
        size: side of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        test_fraction: share of the training images that is the test split, where the files name none
        resized_crop: random crops of training images, of this share of the area or more and with sides of 3:4 to 4:3,
            resized to `size`; 0.08 is usual for ImageNet, null takes the center
        memory_limit: megabytes of pixels up to which all images are decoded into memory, without `resized_crop`
        workers: threads that decode, in each process
    """

    incidental = frozenset({"eval_batch_size", "workers"})

    size: Side = 32
    channels: Literal[1, 3] = 3
    test_fraction: Fraction = 0.1
    resized_crop: Area | None = None
    memory_limit: CountOrZero = 2048
    workers: Workers = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resized_crop is not None and self.crop:
            raise ValueError(f"data.crop={self.crop} and data.resized_crop both crop at random; use one of them")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a resized image."""
        return (self.channels, self.size, self.size)

    @abstractmethod
    def parts(self) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
        """List the images of the training, validation and test split. Raises UserError or ValueError for bad files."""

    @abstractmethod
    def open(self, file: Any) -> tuple[Path | io.BytesIO, object]:
        """Return an image file, and its name for messages. file: an element of `ImageFiles.files`."""

    @abstractmethod
    def contents(self, files: Any) -> Sequence[str | Tensor]:
        """Return the contents of a fingerprint of files, without reading them."""

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Is not called: `parts` lists the images."""
        raise AssertionError("the parts are listed")

    def image_files(self, files: Any, target: Tensor) -> ImageFiles:
        """Return images with classes (n,) that are decoded as the options say."""
        return ImageFiles(files, target, self._decode, self.workers)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Decode the images into memory if they fit `memory_limit`; else a batch decodes its own."""
        listed = self.parts()
        pixels = torch.Size(self.shape).numel() * sum(len(part.target) for part in listed)
        train, validation, test = self.sized(*listed)
        if pixels <= self.memory_limit * 2**20 and self.resized_crop is None:
            decoded = [part.decode_all() for part in (train, validation, test)]
            self._fingerprint = sha256(tensor for part in decoded for tensor in part)
            return self.splits(ImageSplit, decoded, decoded[0].images, tokenizer)
        # Hashing the bytes of all files would take as long as training on them.
        parts = (train, validation, test)
        contents = [self.contents(part.files) for part in parts]
        samples = [part.files[i] for part in parts for i in equally_spaced(len(part.files), SAMPLE).tolist()]
        self._fingerprint = sha256(
            (
                *(content for part in contents for content in (str(len(part)), *part)),
                *displayed(self.open(file) for file in samples),
            )
        )
        sample = equally_spaced(len(train.files), SAMPLE)
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
        return decode_image(*self.open(file), channels=self.channels, size=self.shape[1])


@dataclass(frozen=True)
class ResizedCrop:
    """Random crops of images, resized, the same for a sample wherever it is read. `augment` changes them further.

    Source: Szegedy et al. 2015 (arXiv 1409.4842), section 6
    Reference: torchvision.transforms.v2.RandomResizedCrop

    area: least share of the image's area that is cropped; size: of the result in pixels
    """

    area: float
    size: int

    @cached_property
    def _transform(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandomResizedCrop(self.size, scale=(self.area, 1.0))

    def __call__(self, image: Image, seed: int) -> Tensor:
        """Return a random crop of an image as uint8 (C, size, size)."""
        with seeded(seed):
            where = self._transform.make_params([image])
        return to_tensor(self._transform.transform(image, where))
