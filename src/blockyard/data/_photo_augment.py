"""Random resized crops, RandAugment and random erasing of torchvision, the same for a sample wherever it is read.

Source: Szegedy et al. 2015 (arXiv 1409.4842), section 6, for the crops; Cubuk et al. 2020, RandAugment
    (arXiv 1909.13719); Zhong et al. 2020, Random Erasing (arXiv 1708.04896)
Reference: torchvision.transforms.v2.RandomResizedCrop, RandAugment, RandomErasing

torchvision draws from torch's generator. It is seeded for each image by a hash of (key, sample), where the key is one
of (seed, epoch), and put back afterwards: the number of workers, threads and processes and a resume change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.data._augment import Augment
from blockyard.data._decode import to_tensor
from blockyard.data._order import mix

if TYPE_CHECKING:
    from PIL.Image import Image

_LOCK = Lock()  # threads that decode share torch's generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator inside, in one thread at a time, and puts it back as it was."""
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
        """Returns a random crop of an image as uint8 (C, size, size)."""
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
        """Shifts and flips images uint8 (B, C, H, W), then applies RandAugment to each."""
        images = super().change_bytes(images, order, key)
        return images if key is None or not self.operations else self._each(self._changed, "rand", images, order, key)

    def change_floats(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Crops float images (B, C, H, W), then erases a rectangle of some."""
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
