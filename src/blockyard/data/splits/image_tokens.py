"""Splits of images as sequences that a decoder writes: a start token and the tokens of the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, ImageTokenizer, Split, Splits

CHUNK = 1024  # images that are encoded at a time


class ImageTokenSplit:
    """A split of images, encoded batch by batch.

    units: what a number stands for, ("dim",) or ("code",)
    frequencies: float32 (M, V), how often each id or level occurs in the training split, for each of the M numbers of
        an image: its N ids, or all values of its N tokens one after another
    """

    def __init__(self, images: Split, tokenizer: ImageTokenizer, frequencies: Tensor) -> None:
        self.images, self.tokenizer, self.frequencies = images, tokenizer, frequencies
        self.units = (tokenizer.unit,)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs int64 (B, N + 1, *item), the start token first; `key` None disables augmentation."""
        batch = self.images.batch(order, key)
        assert isinstance(batch.target, Tensor)
        start = self.tokenizer.start(batch.target)[:, None]
        tokens = torch.cat([start, self.tokenizer.encode(batch.inputs)], 1)
        return Batch(tokens, source=batch.source, source_lengths=batch.source_lengths)

    @cached_property
    def reconstruction_mse(self) -> float:
        """The mean squared difference of pixels, from 0 to 1, between images and their decoded tokens."""
        total, count = 0.0, 0
        for order in torch.arange(len(self)).split(CHUNK):
            images = self.images.batch(order, None).inputs
            difference = (self.tokenizer.decode(self.tokenizer.encode(images)).float() - images.float()).double()
            total, count = total + float(difference.square().sum()), count + difference.numel()
        return total / count / (self.tokenizer.levels - 1) ** 2


def token_splits(
    splits: Sequence[Split],
    tokenizer: ImageTokenizer,
    images: Tensor,
    spec: DataSpec,
    kind: Callable[[Any, ImageTokenizer, Tensor], ImageTokenSplit] = ImageTokenSplit,
) -> Splits:
    """Return splits of token ids, each a `kind`: of training, validation and test images.

    The tokenizer learns from `images` of the training split, uint8 (n, C, height, width), unless its state was loaded.
    """
    tokenizer.spec(spec)
    if not tokenizer.state():
        tokenizer.fit(images)
    encoded = torch.cat([tokenizer.encode(chunk) for chunk in images.split(CHUNK)]).flatten(1)  # (n, M)
    count, width = encoded.shape
    cells = torch.arange(width) * tokenizer.codes + encoded
    counts = torch.bincount(cells.flatten(), minlength=width * tokenizer.codes).view(width, -1)
    # One more of each, so that no token is impossible.
    frequencies = (counts + 1) / (count + tokenizer.codes)
    return Splits(*(kind(split, tokenizer, frequencies) for split in splits))
