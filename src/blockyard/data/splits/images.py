"""Shared parts of image data sets: splitting, normalization, and batches without Python work per sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from blockyard.contracts import Batch, BatchSize, DataSpec, ImageTokenizer, Seed, Split, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.augment import LARGE, Augment, AugmentOptions
from blockyard.data.splits.image_tokens import token_splits
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import Fraction, stratified

Part = TypeVar("Part", bound="Selectable")
Images = TypeVar("Images")  # the images of one part, in memory or on the disk


class Selectable(Protocol):
    """Images with a class each. target: (n,) int64."""

    @property
    def target(self) -> Tensor:
        """The class of each image, (n,) int64."""

    def select(self, indices: Tensor) -> Self:
        """Return the samples `indices` (m,)."""


class LabelledImages(NamedTuple):
    """Images uint8 (n, C, height, width) and their classes int64 (n,)."""

    images: Tensor
    target: Tensor

    def select(self, indices: Tensor) -> LabelledImages:
        """Return the samples `indices` (m,)."""
        return LabelledImages(self.images[indices], self.target[indices])


class Moments(NamedTuple):
    """Mean and standard deviation of each channel over the training split, float32 (1, C, 1, 1)."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, images: Tensor) -> Moments:
        """Compute the moments of uint8 images (n, C, height, width), exact up to rounding."""
        counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in images.unbind(1)])
        levels, total = torch.arange(256, dtype=torch.float64), counts.sum(1).double()  # (256,), (C,)
        mean = (counts * levels).sum(1) / total
        variance = (counts * (levels - mean[:, None]) ** 2).sum(1) / total
        std = variance.sqrt().clamp_min(1e-6)
        return cls(mean.float().view(1, -1, 1, 1), std.float().view(1, -1, 1, 1))


@dataclass(frozen=True)
class Preprocess:
    """Turns stored bytes into model inputs, augmented and normalized. Without moments they stay bytes."""

    moments: Moments | None
    augment: Augment

    def __call__(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Map images uint8 (B, C, height, width) with sample indices `order` (B,) to float32 or uint8."""
        shifted = self.augment.change_bytes(images, order, key)
        if self.moments is None:
            return self.augment.change_floats(shifted.float(), order, key).round_().to(torch.uint8)
        return self.augment.change_floats(_normalized(shifted, self.moments), order, key)


def _normalized(images: Tensor, moments: Moments) -> Tensor:
    """Return uint8 images (B, C, height, width) as float32 with the moments taken out."""
    if not len(images) or images[0].numel() < LARGE:
        return images.float().sub_(moments.mean).div_(moments.std)
    from torch.utils.data import default_collate

    # Image by image it stays in the cache, and in a worker process the batch is made in shared memory at once.
    mean, std = moments.mean[0], moments.std[0]
    batch: Tensor = default_collate([image.float().sub_(mean).div_(std) for image in images])
    return batch


class ImageSplit:
    """A split of images in memory, stored as bytes and normalized batch by batch."""

    def __init__(self, data: LabelledImages, preprocess: Preprocess) -> None:
        self.images, self.target = data
        self.preprocess = preprocess

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, C, height, width) and target (B,); `key` None disables augmentation."""
        return Batch(self.preprocess(self.images.index_select(0, order), order, key), self.target[order])


@dataclass(kw_only=True, eq=False)
class ImageData(AugmentOptions, LoadedData):
    """Labelled images. Subclasses set `shape` and `classes` and implement `read`.

    levels: gray levels of each channel, from 0

    Options:
        validation_fraction: share of the training images held out for validation, stratified by class
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
    """

    levels: ClassVar[int] = 256

    batch_size: BatchSize = 128
    eval_batch_size: BatchSize = 512
    validation_fraction: Fraction = 0.1
    split_seed: Seed = 0

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    @property
    @abstractmethod
    def classes(self) -> int | None:
        """Number of classes; None if it is not known yet."""

    @property
    def spec(self) -> DataSpec:
        """Images of one size with a class each."""
        return DataSpec("image", self.shape, target="class", classes=self.classes, levels=self.levels)

    @abstractmethod
    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Read all training images and all test images; called after `prepare`."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the images and hold out the validation split."""
        rest, test = self.read()
        kept, held_out = stratified(rest.target, self.validation_fraction, self.split_seed)
        train, validation, test = self.sized(rest.select(kept), rest.select(held_out), test)
        self._fingerprint = sha256(tensor for split in (train, validation, test) for tensor in split)
        return self.splits(ImageSplit, (train, validation, test), train.images, tokenizer)

    def splits(
        self, kind: Callable[[Images, Preprocess], Split], parts: Sequence[Images], images: Tensor, tokenizer: Tokenizer
    ) -> Splits:
        """Return a split of each part, as `image_splits` does."""
        augment = self.augmentation(self.shape[0], self.levels)
        return image_splits(kind, parts, images, augment, tokenizer, self.spec)

    def sized(self, *parts: Part) -> Iterator[Part]:
        """Yield as many images of each part as the options keep. Raises UserError if there are fewer."""
        for number, part in enumerate(parts):
            yield part.select(self.kept(number, len(part.target), part.target))


def image_splits(
    kind: Callable[[Images, Preprocess], Split],
    parts: Sequence[Images],
    images: Tensor,
    augment: Augment,
    tokenizer: Tokenizer,
    spec: DataSpec,
) -> Splits:
    """Return a split of each part, of token ids where the tokenizer makes them. Only training images are augmented.

    images: uint8 (n, C, height, width) of the training part, whose statistics normalize all parts
    """
    moments = None if isinstance(tokenizer, ImageTokenizer) else Moments.of(images)
    augments = (augment, Augment(), Augment())
    splits = [kind(part, Preprocess(moments, part_augment)) for part, part_augment in zip(parts, augments, strict=True)]
    if isinstance(tokenizer, ImageTokenizer):
        return token_splits(splits, tokenizer, images, spec)
    return Splits(*splits)


class Selection(Protocol):
    """The images of a part by name: their files, or members of archives."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...

    def select(self, indices: Tensor) -> Self:
        """Return the files of the samples `indices` (m,)."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files, or what names them, with their classes int64 (n,), decoded on access by `workers` threads.

    decode: returns one image uint8 (C, size, size)
    decode_random: the same with a seed, for training; None where all images are decoded in one way
    """

    files: Sequence[Any] | Selection
    target: Tensor
    decode: Callable[[Any], Tensor]
    workers: int
    decode_random: Callable[[Any, int], Tensor] | None = None

    def select(self, indices: Tensor) -> ImageFiles:
        """Return the samples `indices` (m,)."""
        files = self.files
        chosen = [files[i] for i in indices.tolist()] if isinstance(files, list) else files.select(indices)  # type: ignore[union-attr]
        return replace(self, files=chosen, target=self.target[indices])

    def images(self, indices: Tensor, key: int | None = None) -> Tensor:
        """Decode the samples `indices` (m,) to uint8 (m, C, size, size), with a key as `decode_random` does."""
        files = [self.files[i] for i in indices.tolist()]
        if key is None or self.decode_random is None:
            return self._stack(self.decode, files)
        return self._stack(self.decode_random, files, [mix("decode", key, i) for i in indices.tolist()])

    def _stack(self, decode: Callable[..., Tensor], *arguments: Sequence[Any]) -> Tensor:
        if self.workers < 2:
            return torch.stack(list(map(decode, *arguments)))
        # Threads are enough: decoding and resizing release the interpreter's lock.
        with ThreadPoolExecutor(self.workers) as pool:
            return torch.stack(list(pool.map(decode, *arguments)))

    def decode_all(self) -> LabelledImages:
        """Decode every image."""
        return LabelledImages(self.images(torch.arange(len(self.files))), self.target)


class LazyImageSplit:
    """A split whose images stay on disk; otherwise the same as `ImageSplit`."""

    def __init__(self, source: ImageFiles, preprocess: Preprocess) -> None:
        self.source, self.preprocess, self.target = source, preprocess, source.target

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs float32 (B, C, size, size) and target (B,); `key` None disables augmentation."""
        return Batch(self.preprocess(self.source.images(order, key), order, key), self.target[order])
