"""Image files: decoded when asked for, by a few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._images import Finish, Labelled

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


class Listing:
    """Image files and their classes, decoded when asked for."""

    def __init__(self, files: list[Path], target: Tensor, decode: Callable[[Path], Tensor], workers: int) -> None:
        self.files, self.target, self.decode, self.workers = files, target, decode, workers

    def pick(self, order: Tensor) -> Listing:
        """The samples `order` (m,)."""
        return Listing([self.files[i] for i in order.tolist()], self.target[order], self.decode, self.workers)

    def images(self, order: Tensor) -> Tensor:
        """Decoded images uint8 (m, C, size, size)."""
        files = [self.files[i] for i in order.tolist()]
        if self.workers < 2:
            return torch.stack([self.decode(file) for file in files])
        # Threads will do: decoding and scaling leave the interpreter's lock.
        with ThreadPoolExecutor(self.workers) as pool:
            return torch.stack(list(pool.map(self.decode, files)))

    def held(self) -> Labelled:
        """All of it, decoded."""
        return Labelled(self.images(torch.arange(len(self.files))), self.target)


class LazySplit:
    """Images on the disk; what `ImageSplit` does, after decoding."""

    def __init__(self, listing: Listing, finish: Finish) -> None:
        self.listing, self.finish = listing, finish

    def __len__(self) -> int:
        return len(self.listing.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs float32 (B, C, size, size), target (B,); `key` None leaves augmentation out."""
        return Batch(self.finish(self.listing.images(order), order, key), self.listing.target[order])


def decode_image(file: Path, *, channels: int, size: int) -> Tensor:
    """An image file as uint8 (channels, size, size): shorter side scaled to `size`, centre cut."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB" if channels == 3 else "L")
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{file} cannot be read as an image ({error}); mend it or leave it out") from error
    if image.size != (size, size):
        scale = size / min(image.size)
        wide, high = (max(size, round(side * scale)) for side in image.size)
        left, top = (wide - size) // 2, (high - size) // 2
        image = image.resize((wide, high), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    pixels = torch.from_numpy(np.array(image)).reshape(size, size, channels)
    return pixels.permute(2, 0, 1)  # (channels, size, size)
