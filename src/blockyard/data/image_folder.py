"""Your own images, one folder per class: root/train/CLASS/*.png and root/test/CLASS/*.png.

Source: the folder layout of torchvision
Reference: torchvision.datasets.ImageFolder

Classes are the folder names under train, sorted. Without root/test a test split is held out from the
training images. Images are brought to `size` x `size`: the shorter side is resized, then the center cropped.
A data set that fits `memory_limit` is decoded once and kept in memory; `workers` threads decode a larger one
batch by batch; channel statistics, and tokens that are learned, then come from 2,000 of its training images.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from blockyard.contracts import CountOrZero, DataSpec, Side, Splits, Text, Tokenizer, Workers
from blockyard.data._decode import SUFFIXES, ImageFiles, LazyImageSplit, decode_image
from blockyard.data._images import ImageData, LabelledImages
from blockyard.data._order import mix
from blockyard.data._split import Fraction, sha256, stratified
from blockyard.errors import UserError

SAMPLE = 2000  # images that give the channel statistics of a data set too large for memory


@dataclass(kw_only=True, eq=False)
class ImageFolder(ImageData):
    """Image files in one folder per class.

    Options:
        root: the folder that holds train/ and optionally test/
        size: side of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        test_fraction: share of the training images that is the test split, without a test/ folder
        memory_limit: megabytes of pixels up to which all images are decoded into memory
        workers: threads that decode
    """

    incidental = frozenset({"eval_batch_size", "memory_limit", "workers"})

    root: Text = "data/images"
    size: Side = 32
    channels: Literal[1, 3] = 3
    test_fraction: Fraction = 0.1
    memory_limit: CountOrZero = 2048
    workers: Workers = 2

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a resized image."""
        return (self.channels, self.size, self.size)

    @property
    def names(self) -> list[str]:
        """Class names: the folders under root/train, sorted."""
        train = self._root / "train"
        return sorted(path.name for path in train.iterdir() if path.is_dir()) if train.is_dir() else []

    @property
    def classes(self) -> int | None:
        """Number of folders under root/train; None if there are none."""
        return len(self.names) or None

    @property
    def spec(self) -> DataSpec:
        """Images of one size with a class each, called as its folder."""
        return replace(super().spec, class_names=tuple(self.names))

    def missing(self) -> str | None:
        """Returns why no classes were found and what to do about it, or None."""
        if self.names:
            return None
        archives = sorted(self._root.glob("*.zip")) if self._root.is_dir() else []
        unpack = f"unpack {archives[0].name} and " if archives else ""
        train = (self._root / "train").absolute()
        return f"no folder of images in {train}; {unpack}set data.root=FOLDER with train/CLASS/*.png"

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Decodes the images into memory if they fit `memory_limit`, else lists their files."""
        rest, test = self.image_files()
        pixels = torch.Size(self.shape).numel() * (len(rest.files) + len(test.files))
        if pixels <= self.memory_limit * 2**20:
            return super().load(tokenizer)
        kept, held_out = stratified(rest.target, self.validation_fraction, self.split_seed)
        splits = tuple(self.sized(rest.select(kept), rest.select(held_out), test))
        # Hashing the bytes of all files would take as long as training on them.
        names = [[f"{file.relative_to(self._root)} {file.stat().st_size}" for file in s.files] for s in splits]
        self._fingerprint = sha256(text for part in names for text in (str(len(part)), *part))
        train, validation, test = splits
        sample = torch.linspace(0, len(train.files) - 1, min(SAMPLE, len(train.files))).long()
        return self.splits(LazyImageSplit, (train, validation, test), train.images(sample), tokenizer)

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Decodes all images."""
        rest, test = self.image_files()
        return rest.decode_all(), test.decode_all()

    def image_files(self) -> tuple[ImageFiles, ImageFiles]:
        """Lists the files of the training and of the test split. Raises ValueError if one is empty."""
        rest = self._list("train")
        if (self._root / "test").is_dir():
            return rest, self._list("test")
        kept, held_out = stratified(rest.target, self.test_fraction, mix("test", self.split_seed))
        return rest.select(kept), rest.select(held_out)

    def _list(self, part: str) -> ImageFiles:
        folder, names = self._root / part, self.names
        unknown = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(names))
        if unknown:
            raise ValueError(f"{folder} has classes that train/ lacks: {', '.join(unknown)}")
        files = [
            (file, label)
            for label, name in enumerate(names)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES and not file.is_dir()
        ]
        special = next((file for file, _ in files if not file.is_file()), None)
        if special is not None:
            raise UserError(f"{special} is not a regular file; remove it")
        if not files:
            raise ValueError(f"no images in {folder}; expected {folder}/CLASS/*.png")
        decode = partial(decode_image, channels=self.shape[0], size=self.shape[1])
        labels = torch.tensor([label for _, label in files])
        return ImageFiles([file for file, _ in files], labels, decode, self.workers)

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self.root))
