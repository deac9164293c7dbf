"""Your own images in tar shards, as webdataset writes them: KEY.jpg and KEY.cls, one pair after the other.

Source: the format of webdataset
Reference: webdataset.WebDataset, webdataset.TarWriter

Shards whose names begin with train, val and test are those splits; a split without shards is drawn from the training
samples. Classes are the texts in the .cls files, sorted, numbers by their value. The headers of the archives are read
once and kept in the cache folder (BLOCKYARD_CACHE) until a shard's size or time of change differs, so that any image
can be read by its place: the order is that of all data sets, a function of seed, epoch and step, and a run resumes
exactly in the middle of an epoch. Images are decoded as by data=image_folder. A
sample is a seek of its own, which a local disk should do well.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from blockyard.contracts import DataSpec, Text
from blockyard.data.files.images import SUFFIXES
from blockyard.data.files.tar_index import TarIndex, read_index, shards_of
from blockyard.data.files.tar_shard import Member, MemberName, TarImages, read_member
from blockyard.data.splits.images import ImageFiles
from blockyard.data.splits.order import mix
from blockyard.data.splits.photographs import Photographs
from blockyard.data.splits.split import check_fractions, stratified


@dataclass(kw_only=True, eq=False)
class WebDataset(Photographs):
    """Image files in tar shards.

    Options:
        path: a .tar file, a folder of them, a glob, or a pattern such as data/train-{000..146}.tar
        label: ending of the files that hold the class, a number or a name
        test_fraction: share of the training samples that is the test split, where no shard is
        validation_fraction: share of the training samples that is the validation split, where no shard is
    """

    path: Text = "data/shards"
    label: Text = "cls"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions(self.validation_fraction, self.test_fraction)

    @property
    def spec(self) -> DataSpec:
        """Images of one size with a class each, called as the shards call it."""
        names = () if self.missing() else self._index.names
        return replace(super().spec, class_names=names)

    @property
    def classes(self) -> int | None:
        """Number of classes of the training shards; None without them."""
        return None if self.missing() else len(self._index.names)

    def missing(self) -> str | None:
        """Return a message that says that shards or the library are missing and the remedy, or None."""
        import importlib.util

        if importlib.util.find_spec("webdataset") is None:
            return "data=webdataset reads shards by the package webdataset: pip install 'blockyard[webdataset]'"
        if shards_of(self.path):
            return None
        return f"no shards at {Path(self.path).expanduser().absolute()}; set data.path=FOLDER with train-000.tar, ..."

    def parts(self) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
        """Return the images of each split. Raises UserError naming the shard and the member that cannot be used."""
        index = self._index
        parts = {name: self.image_files(*index.parts[name]) for name in index.parts}
        rest = parts["train"]
        for name, share, seed in (
            ("test", self.test_fraction, mix("test", self.split_seed)),
            ("validation", self.validation_fraction, self.split_seed),
        ):
            if name not in parts:
                kept, held_out = stratified(rest.target, share, seed)
                rest, parts[name] = rest.select(kept), rest.select(held_out)
        return rest, parts["validation"], parts["test"]

    def open(self, file: tuple[Path, Member]) -> tuple[io.BytesIO, object]:
        """Return the content of an image file, and its shard and name."""
        return io.BytesIO(read_member(*file)), MemberName(*file)

    def contents(self, files: TarImages) -> Sequence[str | Tensor]:
        """Return names and sizes of the shards, and the place of each image."""
        return [*(f"{shard.name} {shard.stat().st_size}" for shard in files.shards), files.where]

    @cached_property
    def _index(self) -> TarIndex:
        endings = frozenset(suffix[1:] for suffix in SUFFIXES)
        return read_index(shards_of(self.path), self.label, endings)
