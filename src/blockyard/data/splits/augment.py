"""Random augmentation of training images, and its options.

Shift, flip and crop are vectorised; every random number is a hash of (key, sample, stream). RandAugment and random
erasing are torchvision's, and policies that a string names are timm's.

Source: Cubuk et al. 2020, RandAugment (arXiv 1909.13719); Zhong et al. 2020, Random Erasing (arXiv 1708.04896)
Reference: torchvision.transforms.v2.RandAugment, RandomErasing

torchvision draws from torch's generator, timm from Python's and NumPy's. They are seeded for each image by a hash of
(key, sample), where the key is a hash of (seed, epoch), and their state is restored afterwards. The number of workers,
threads and processes and a resume change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import CountOrZero, Rate, Text
from blockyard.data.files.images import to_tensor
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.order import mix
from blockyard.data.splits.timm_policy import check_policy, make_policy
from blockyard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

LARGE = 2**15  # values of an image from which on images are mirrored one by one
MAGNITUDE = 9  # of RandAugment by default
CHANNELS = (1, 3)  # of images that RandAugment and timm's policies can change

_LOCK = Lock()  # threads that decode share torch's generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside, in one thread at a time, and restore its state afterwards."""
    generator = torch.default_generator
    with _LOCK:
        state = generator.get_state()
        generator.manual_seed(seed)  # torch.manual_seed would change the GPUs' generators too
        try:
            yield
        finally:
            generator.set_state(state)


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python inside, and put them back as they were."""
    with seeded(seed):  # first, so that no other thread is inside
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@dataclass(frozen=True)
class Augment:
    """Random augmentation of training images.

    shift: translate by up to this many pixels along each axis, padding with zeros
    crop: cut out a random square of relative side 1 - crop or more and resize it to the full image
    flip: mirror half of the images left to right
    operations, magnitude: of RandAugment, which 0 operations switch off
    erasing: probability of erasing a rectangle, to the mean of the training images; to black where they stay bytes
    levels: number of gray levels of each channel
    policy: an augmentation of timm by its string, as `timm_policy` reads it
    """

    shift: int = 0
    crop: float = 0.0
    flip: bool = False
    operations: int = 0
    magnitude: int = MAGNITUDE
    erasing: float = 0.0
    levels: int = 256
    policy: str | None = None

    def change_bytes(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Shift and flip images uint8 (B, C, H, W), then apply RandAugment and the policy of timm to each.

        order: (B,), their sample indices
        """
        images = self.shift_and_flip(images, order, key)
        if key is None:
            return images
        # Transforms are made here, outside the seeded part, so that no import draws there.
        if self.operations:
            transform = partial(self._with_pillow, self._rand_augment)
            images = self._one_by_one(transform, "rand", images, order, key, seeded)
        if self.policy is not None:
            transform = partial(self._with_pillow, self._timm_policy)
            images = self._one_by_one(transform, "timm", images, order, key, seeded_everywhere)
        return images

    def change_floats(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Crop float images (B, C, H, W) after they were normalized, then erase a rectangle of some."""
        images = self.random_crop(images, order, key)
        if key is None or not self.erasing:
            return images
        # Zeros are drawn over normalized images, where zero is the mean.
        return self._one_by_one(self._random_erasing, "erase", images, order, key, seeded)

    @cached_property
    def _rand_augment(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandAugment(self.operations, self.magnitude)

    @cached_property
    def _random_erasing(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandomErasing(self.erasing)

    @cached_property
    def _timm_policy(self) -> Callable[[Image], Image]:
        assert self.policy is not None
        return make_policy(self.policy)

    def _with_pillow(self, transform: Callable[[Image], Image], image: Tensor) -> Tensor:
        """Return an image uint8 (C, H, W) after a transform of Pillow images."""
        from torchvision.transforms.v2.functional import to_pil_image

        # The magnitudes are for 256 levels.
        scale = 255 / (self.levels - 1)
        if self.levels != 256:
            image = (image * scale).round().to(torch.uint8)
        image = to_tensor(transform(to_pil_image(image)))  # Pillow is three times as fast as tensors here
        if self.levels != 256:
            image = (image / scale).round().to(torch.uint8)
        return image

    def _one_by_one(
        self,
        transform: Callable[[Tensor], Tensor],
        stream: str,
        images: Tensor,
        order: Tensor,
        key: int,
        seeding: Callable[[int], AbstractContextManager[None]],
    ) -> Tensor:
        result = torch.empty_like(images, memory_format=torch.contiguous_format)
        for number, sample in enumerate(order.tolist()):
            # Each transform has a stream of its own, so that one option does not change the draws of another.
            with seeding(mix(stream, key, sample)):
                result[number] = transform(images[number])
        return result

    def shift_and_flip(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Shift and flip images (B, C, H, W) of any dtype; `order` (B,) holds their sample indices."""
        if key is None or not (self.shift or self.flip):
            return images
        draws = uniform(key, order, 3)  # (3, B)
        if self.flip:
            images = _flipped(images, draws[0] < 0.5)
        if self.shift:
            height, width = images.shape[2:]
            padded = F.pad(images, (self.shift,) * 4)  # (B, C, H + 2s, W + 2s)
            # A view of every shifted image; indexing copies one of them for each sample.
            windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2s + 1, 2s + 1, H, W)
            down, right = (draws[1:] * (2 * self.shift + 1)).long()  # (B,) each
            images = windows[torch.arange(len(images)), :, down, right]  # (B, C, H, W)
        return images

    def random_crop(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Crop float images (B, C, H, W) and resize the crops to that shape."""
        if key is None or not self.crop:
            return images
        draws = uniform(key, order, 6)[3:]  # (3, B); the first three belong to `shift_and_flip`
        side = 1 - self.crop * draws[0]  # (B,)
        centre = (1 - side) * (2 * draws[1:] - 1)  # (2, B), from -1 to 1, such that the square lies inside
        theta = torch.zeros(len(images), 2, 3)
        theta[:, 0, 0] = theta[:, 1, 1] = side
        theta[:, :, 2] = centre.T
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (B, H, W, 2)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _flipped(images: Tensor, mask: Tensor) -> Tensor:
    """Return images (B, C, H, W) with the images of the mask (B,) mirrored left to right."""
    if not len(images) or images[0].numel() < LARGE:
        return torch.where(mask[:, None, None, None], images.flip(-1), images)
    result = images.clone()
    for index in mask.nonzero()[:, 0].tolist():  # a tenth of the time of `where` for photographs
        result[index] = images[index].flip(-1)
    return result


Operations = Annotated[int, Ge(0), Le(16)]
Magnitude = Annotated[int, Ge(0), Le(30)]
Probability = Annotated[float, Ge(0), Le(1)]


@dataclass(kw_only=True, eq=False)
class AugmentOptions:
    """Changes of images in training, for every data set of images.

    Options:
        shift: random translation of training images in pixels, padded with zeros
        crop: random square crop of training images of relative side 1 - crop or more, resized to the full image
        flip: mirror half of the training images left to right
        rand_augment: operations of RandAugment on each training image, 0 for none
        rand_magnitude: their magnitude, of 30; null is 9
        augment: timm's augmentation of training images by its string: timm:rand-m9-n2, timm:augmix-m5-w4-d2, timm:3a
        erasing: probability that a random rectangle of a training image is erased
    """

    shift: CountOrZero = 0
    crop: Rate = 0.0
    flip: bool = False
    rand_augment: Operations = 0
    rand_magnitude: Magnitude | None = None
    augment: Text | None = None
    erasing: Probability = 0.0

    def __post_init__(self) -> None:
        if self.rand_magnitude is not None and not self.rand_augment:
            raise ValueError(
                f"data.rand_magnitude={self.rand_magnitude} is for data.rand_augment=2 or another number of operations"
            )
        if self.augment is not None:
            with seeded_everywhere(0):  # it is tried on an image, which draws
                check_policy(self.augment)

    def augmentation(self, channels: int, levels: int = 256) -> Augment:
        """Return the augmentation of images.

        Raises UserError for RandAugment or a policy of timm on a number of channels not in CHANNELS.

        channels, levels: number of channels of an image, and of gray levels of a channel
        """
        for name in ("rand_augment", "augment"):
            value = getattr(self, name)
            if value and channels not in CHANNELS:
                raise UserError(f"data.{name}={value}: images have {channels} channels; it needs 1 or 3")
        magnitude = MAGNITUDE if self.rand_magnitude is None else self.rand_magnitude
        operations = self.rand_augment
        return Augment(
            self.shift, self.crop, self.flip, operations, magnitude, self.erasing, levels, policy=self.augment
        )

    def refuse_without_images(self, reads: str, remedy: str) -> None:
        """Raise UserError for an augmentation of rows that are no images. reads: the contents of a row."""
        for name in ("shift", "crop", "flip", "rand_augment", "augment", "erasing"):
            value = getattr(self, name)
            if value:
                raise UserError(f"data.{name}={value} changes images, but a row is {reads}; {remedy}")
