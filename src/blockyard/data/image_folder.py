"""Your own images, one folder per class: root/CLASS/*.png, or root/train/CLASS/*.png and the same below val and test.

Source: the folder layout of torchvision
Reference: torchvision.datasets.ImageFolder

Classes are the folder names under train, sorted; where root has no folder of a split, its own folders are the classes.
The validation images are those of root/val, root/valid or root/validation. Without such a folder, or without root/test,
that split is held out from the training images. A test/ without folders of classes, as ImageNet's, is left out, and so
are hidden files and folders, whose number is logged. Images are brought to `size` x `size`: the shorter side is
resized, then the center cropped. A data set that fits `memory_limit` is decoded once and kept in memory; a larger one,
and one with `resized_crop`, is decoded batch by batch, by `workers` threads in each of the processes of
`trainer.num_workers`; channel statistics, and tokens that are learned, then come from 2,000 of its training images.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import DataSpec, Text
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.file_names import data_files, is_hidden
from blockyard.data.files.images import SUFFIXES
from blockyard.data.splits.images import ImageFiles
from blockyard.data.splits.order import mix
from blockyard.data.splits.photographs import Photographs
from blockyard.data.splits.split import refuse_untrained, stratified
from blockyard.errors import UserError

log = logging.getLogger("blockyard")

# The names that the folder of a split may have, in any case.
FOLDERS = {"training": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(kw_only=True, eq=False)
class ImageFolder(Photographs):
    """Image files in one folder per class.

    Options:
        root: the folder that holds train/ and optionally val/ and test/, or a folder for each class
        test_fraction: share of the training images that is the test split, without a test/ folder
        validation_fraction: share of the training images that is the validation split, without a val/ folder
    """

    root: Text = "data/images"

    @property
    def names(self) -> list[str]:
        """Class names: the folders under root/train, or under root where no folder is of a split; sorted."""
        train = self._folder("training")
        names = [] if train is None else _classes(train)
        for name in names:
            try:
                name.encode()  # the files of a run are UTF-8
            except UnicodeEncodeError:
                problem = f"{train}: the class folder {name!a} has a name that is not UTF-8; rename it"
                raise UserError(problem) from None
        return names

    @property
    def classes(self) -> int | None:
        """Number of classes; None if there are none."""
        return len(self.names) or None

    @property
    def spec(self) -> DataSpec:
        """Images of one size with a class each, called as its folder."""
        return replace(super().spec, class_names=tuple(self.names))

    def missing(self) -> str | None:
        """Return a message that says why there are no classes and the remedy, or None."""
        if self.names:
            return None
        archives = sorted(self._root.glob("*.zip")) if self._root.is_dir() else []
        unpack = f"unpack {archives[0].name} and " if archives else ""
        train = (self._root / "train").absolute()
        return f"no folder of images in {train}; {unpack}set data.root=FOLDER with CLASS/*.png or train/CLASS/*.png"

    def parts(self) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
        """List the files of each split. Raises ValueError if the folder of a split is empty, or has several names."""
        folders = self._folders()
        log.info("%s", self._summary(folders))
        train = folders.pop("training")
        rest = self._list(train)
        counts = rest.target.bincount(minlength=len(self.names)).tolist()
        warn_of_names(train, dict(zip(self.names, counts, strict=True)))
        listed = {split: self._list(folder) for split, folder in folders.items()}
        # The test split first: it does not depend on the validation fraction, nor on a folder of validation images.
        for split, share, seed in (
            ("test", self.test_fraction, mix("test", self.split_seed)),
            ("validation", self.validation_fraction, self.split_seed),
        ):
            if split not in listed:
                kept, held_out = stratified(rest.target, share, seed)
                listed[split] = rest.select(held_out)
                rest = rest.select(kept)
        refuse_untrained(rest.target, self.names, self._root)
        return rest, listed["validation"], listed["test"]

    def open(self, file: Path) -> tuple[Path | io.BytesIO, str]:
        """Return an image file and its name."""
        return file, str(file)

    def contents(self, files: Sequence[Path]) -> Sequence[str | Tensor]:
        """Return names and sizes."""
        return [f"{file.relative_to(self._root)} {file.stat().st_size}" for file in files]

    def _list(self, folder: Path) -> ImageFiles:
        """Return the images of the folder of a split, with their classes."""
        names = self.names
        unknown = sorted(set(_classes(folder)) - set(names))
        if unknown:
            raise ValueError(f"{folder} has classes that train/ lacks: {', '.join(unknown)}")
        images = data_files(folder, _files_below(folder), SUFFIXES)
        files = [file for file in images if file.parent != folder]
        if len(files) < len(images):
            log.warning("%s: %d images lie in no folder of a class and are left out", folder, len(images) - len(files))
        special = next((file for file in files if not file.is_file()), None)
        if special is not None:
            raise UserError(f"{special} is not a regular file; remove it")
        if not files:
            raise ValueError(f"no images in {folder}; expected {folder}/CLASS/*.png")
        numbers = {name: number for number, name in enumerate(names)}
        depth = len(folder.parts)
        return self.image_files(files, torch.tensor([numbers[file.parts[depth]] for file in files]))

    def _folder(self, split: str) -> Path | None:
        """Return the folder of a split, None without one. Raises UserError where several have its names."""
        if not self._root.is_dir():
            return None
        folders = []
        for path in sorted(self._root.iterdir()):
            if path.name.lower() in FOLDERS[split] and path.is_dir():
                folders.append(path)
        if len(folders) > 1:
            names = " and ".join(path.name for path in folders)
            raise UserError(f"{self._root} has {names}, all for {split}; keep one of them")
        if folders:
            return folders[0]
        if split == "training" and not any(map(self._folder, ("validation", "test"))):
            return self._root
        return None

    def _folders(self) -> dict[str, Path]:
        """Return the folders by split, without splits that are held out from the training images."""
        folders = {}
        for split in FOLDERS:
            folder = self._folder(split)
            if folder is not None:
                folders[split] = folder
        if "test" in folders:
            shown = [path for path in folders["test"].iterdir() if not is_hidden(path.name)]
            # Unlabelled test images, as ImageNet's, are no split.
            if shown and not any(path.is_dir() for path in shown):
                del folders["test"]
        return folders

    def _summary(self, folders: dict[str, Path]) -> str:
        """Return the sentence that says where each split comes from."""
        train = folders["training"].name
        texts = [f"{self._root}: training images of {train}/"]
        if folders["training"] == self._root:
            texts = [f"{self._root}: no folder of a split, so that its folders are the classes"]
        for split, share in (("validation", self.validation_fraction), ("test", self.test_fraction)):
            source = f"of {folders[split].name}/" if split in folders else f"{share:g} of {train}/"
            texts.append(f"{split} images {source}")
        test = self._folder("test")
        if test is not None and "test" not in folders:
            texts[-1] += f"; {test.name}/ has no folders of classes and is left out"
        return ", ".join(texts)

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self.root))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files in `folder` and below, also behind links to class folders, which `rglob` does not follow."""
    for entry in folder.iterdir():
        for path in (entry, *entry.rglob("*")):
            if not path.is_dir():
                yield path


def _classes(folder: Path) -> list[str]:
    """Return the names of the folders of classes, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
