"""Images of your own, a folder per class: root/train/CLASS/*.png and root/test/CLASS/*.png.

Source: the folder layout of torchvision
Reference: torchvision.datasets.ImageFolder

Classes are the names of the folders under train, in sorted order. Without root/test a test part is
cut from the training images. Images are brought to `size` x `size`: shorter side scaled, centre cut.
What fits `memory_limit` is decoded once and held; a larger set is decoded batch by batch by
`workers` threads, with channel statistics from 2,000 of its training images.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import torch

from blockyard.contracts import Count, CountOrZero, Rate, Splits, Tokenizer
from blockyard.data._augment import Augment
from blockyard.data._decode import SUFFIXES, LazySplit, Listing, decode_image
from blockyard.data._images import Finish, ImageData, Labelled, Moments
from blockyard.data._order import mix
from blockyard.data._split import Fraction, sha256, stratified

SAMPLE = 2000  # images that give the statistics of a set too large to hold


class ImageFolder(ImageData):
    """Image files in a folder per class.

    Options:
        root: the folder that holds train/ and, if there is one, test/
        size: side of an image in pixels, after scaling
        channels: 3 for colour, 1 for grey
        test_fraction: share of the training images that is the test part, where there is no test/
        memory_limit: megabytes of pixels up to which all images are held decoded
        workers: threads that decode
    """

    incidental = frozenset({"eval_batch_size", "memory_limit", "workers"})

    def __init__(
        self,
        *,
        root: str = "data/images",
        size: Count = 32,
        channels: Literal[1, 3] = 3,
        test_fraction: Fraction = 0.1,
        memory_limit: CountOrZero = 2048,
        workers: CountOrZero = 2,
        batch_size: Count = 128,
        eval_batch_size: Count = 512,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        shift: CountOrZero = 0,
        crop: Rate = 0.0,
        flip: bool = False,
        train_size: Count | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            shift=shift,
            crop=crop,
            flip=flip,
            train_size=train_size,
        )
        self.root, self.shape = Path(root).expanduser(), (channels, size, size)
        self.test_fraction, self.memory_limit, self.workers = test_fraction, memory_limit, workers

    @property
    def names(self) -> list[str]:
        """The classes: the folders under root/train, sorted."""
        train = self.root / "train"
        return sorted(path.name for path in train.iterdir() if path.is_dir()) if train.is_dir() else []

    @property
    def classes(self) -> int | None:  # type: ignore[override]
        """How many folders there are under root/train; None where there are none."""
        return len(self.names) or None

    def missing(self) -> str | None:
        """Whether there are classes to learn."""
        if self.names:
            return None
        packed = sorted(self.root.glob("*.zip")) if self.root.is_dir() else []
        unpack = f"unpack {packed[0].name} and " if packed else ""
        where = (self.root / "train").absolute()
        return f"no folder of images in {where}; {unpack}set data.root=FOLDER with train/CLASS/*.png"

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Hold the images where they fit `memory_limit`, else list them."""
        rest, test = self.listings()
        pixels = torch.Size(self.shape).numel() * (len(rest.files) + len(test.files))
        if pixels <= self.memory_limit * 2**20:
            return super().load(tokenizer)
        kept, taken = stratified(rest.target, self.validation_fraction, self.split_seed)
        train, validation = rest.pick(self.fewer(rest.target, kept)), rest.pick(taken)
        # The bytes of all files would take as long to hash as to train on.
        parts = [[f"{f.relative_to(self.root)} {f.stat().st_size}" for f in p.files] for p in (train, validation, test)]
        self._fingerprint = sha256(name for part in parts for name in (str(len(part)), *part))
        some = torch.linspace(0, len(train.files) - 1, min(SAMPLE, len(train.files))).long()
        moments = Moments.of(train.images(some))
        return Splits(
            LazySplit(train, Finish(moments, self.augment)),
            LazySplit(validation, Finish(moments, Augment())),
            LazySplit(test, Finish(moments, Augment())),
        )

    def read(self) -> tuple[Labelled, Labelled]:
        """All images, decoded."""
        rest, test = self.listings()
        return rest.held(), test.held()

    def listings(self) -> tuple[Listing, Listing]:
        """The files of the training and of the test part. Raises ValueError where a part has none."""
        rest = self._list("train")
        if (self.root / "test").is_dir():
            return rest, self._list("test")
        kept, taken = stratified(rest.target, self.test_fraction, mix("test", self.split_seed))
        return rest.pick(kept), rest.pick(taken)

    def _list(self, part: str) -> Listing:
        folder, names = self.root / part, self.names
        strangers = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(names))
        if strangers:
            raise ValueError(f"{folder} has classes that train/ lacks: {', '.join(strangers)}")
        found = [
            (file, number)
            for number, name in enumerate(names)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not found:
            raise ValueError(f"no images in {folder}; expected {folder}/CLASS/*.png")
        decode = partial(decode_image, channels=self.shape[0], size=self.shape[1])
        return Listing([f for f, _ in found], torch.tensor([n for _, n in found]), decode, self.workers)
