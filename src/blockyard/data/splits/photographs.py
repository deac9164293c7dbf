"""Shared parts of data sets of image files: what training does to a photograph, and what is decoded when."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from blockyard.contracts import CountOrZero, Side, Splits, Tokenizer, Workers
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import centred, open_image, to_tensor
from blockyard.data.splits.augment import Augment
from blockyard.data.splits.images import ImageData, ImageFiles, ImageSplit, LabelledImages, LazyImageSplit
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import Fraction

if TYPE_CHECKING:
    from PIL.Image import Image


# Random resized crops, RandAugment and random erasing of torchvision, the same for a sample wherever it is read.
#
# Source: Szegedy et al. 2015 (arXiv 1409.4842), section 6, for the crops; Cubuk et al. 2020, RandAugment
#     (arXiv 1909.13719); Zhong et al. 2020, Random Erasing (arXiv 1708.04896)
# Reference: torchvision.transforms.v2.RandomResizedCrop, RandAugment, RandomErasing
#
# torchvision draws from torch's generator. It is seeded for each image by a hash of (key, sample), where the key is
# one of (seed, epoch), and put back afterwards: the number of workers, threads and processes and a resume change
# nothing.

_LOCK = Lock()  # threads that decode share torch's generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside, in one thread at a time, and put it back as it was."""
    generator = torch.default_generator
    with _LOCK:
        state = generator.get_state()
        generator.manual_seed(seed)  # torch.manual_seed would change the GPUs' generators too
        try:
            yield
        finally:
            generator.set_state(state)


@dataclass(frozen=True)
class ResizedCrop:
    """Random crops of images, resized.

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


@dataclass(frozen=True)
class PhotoAugment(Augment):
    """Augmentation with torchvision's transforms of whole images.

    operations, magnitude: of RandAugment, no operations for none; erasing: probability of erasing a rectangle, to the
    mean of the training images
    """

    operations: int = 0
    magnitude: int = 9
    erasing: float = 0.0

    @cached_property
    def _rand_augment(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandAugment(self.operations, self.magnitude)

    @cached_property
    def _random_erasing(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandomErasing(self.erasing)

    def change_bytes(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Shift and flip images uint8 (B, C, H, W), then apply RandAugment to each."""
        images = super().change_bytes(images, order, key)
        return images if key is None or not self.operations else self._each(self._changed, "rand", images, order, key)

    def change_floats(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Crop float images (B, C, H, W), then erase a rectangle of some."""
        images = super().change_floats(images, order, key)
        if key is None or not self.erasing:
            return images
        return self._each(self._random_erasing, "erase", images, order, key)

    def _changed(self, image: Tensor) -> Tensor:
        from torchvision.transforms.v2.functional import to_pil_image

        return to_tensor(self._rand_augment(to_pil_image(image)))  # Pillow is three times as fast as tensors here

    def _each(self, transform: Any, stream: str, images: Tensor, order: Tensor, key: int) -> Tensor:
        changed = torch.empty_like(images, memory_format=torch.contiguous_format)
        for number, sample in enumerate(order.tolist()):
            with seeded(mix(stream, key, sample)):
                changed[number] = transform(images[number])
        return changed


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
        """List the images of the training, validation and test split. Raises UserError or ValueError for bad files."""

    @abstractmethod
    def open(self, file: Any) -> tuple[Path | io.BytesIO, object]:
        """Return an image file, and its name for messages. file: an element of `ImageFiles.files`."""

    @abstractmethod
    def contents(self, files: Any) -> Sequence[str | Tensor]:
        """Return what tells the files of a part from others, without reading them."""

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
        contents = [self.contents(part.files) for part in (train, validation, test)]
        self._fingerprint = sha256(content for part in contents for content in (str(len(part)), *part))
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
