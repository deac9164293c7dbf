"""MNIST: 60,000 training and 10,000 test handwritten digits of 28 x 28 pixels, 10 classes.

Source: LeCun, Bottou, Bengio and Haffner 1998, Gradient-Based Learning Applied to Document Recognition.
Reference: torchvision.datasets.MNIST

Reads the idx files of root/MNIST/raw, plain or gzipped, and writes nothing, so the folder may be
read-only. The official test set is the test split; validation is held out from the training set.
"""

from __future__ import annotations

import gzip
import os
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Text
from blockyard.data.splits.images import ImageData, LabelledImages

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx(path: Path) -> Tensor:
    """Read the uint8 array of an idx file, plain or gzipped.

    torchvision's reader takes no gzipped file and asserts where this one raises ValueError: for a file
    that is damaged, truncated or of another type.

    Source: LeCun, the MNIST database: two zero bytes, type 8 (uint8), number of axes, each axis'
    length as a big-endian 32-bit integer, then the values.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error
    axes = data[3] if data[:3] == b"\x00\x00\x08" and len(data) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(data[offset : offset + 4], "big") for offset in range(4, start, 4)]
    values = torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8) if len(data) > start else None
    if not axes or values is None or values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path} is not an idx file of uint8 values, or it is truncated; fetch it again")
    return values.reshape(shape)


@dataclass(kw_only=True, eq=False)
class IdxData(ImageData):
    """Images in the four idx files of `root/FOLDER/raw`, the layout that torchvision writes.

    Options:
        root: the folder that holds the data set's own folder
        download: download missing files through torchvision
    """

    incidental = frozenset({"eval_batch_size", "root", "download"})
    shape = (1, 28, 28)
    classes = 10
    folder: ClassVar[str]  # under `root`, as torchvision names it

    root: Text = "data"
    download: bool = False

    @abstractmethod
    def fetch(self) -> None:
        """Download the files into `root` through torchvision."""

    def missing(self) -> str | None:
        """Return a message that names the missing files and the remedy, or None."""
        absent = [name for name in FILES if self._file(name) is None]
        if not absent or self.download:
            return None
        return (
            f"no {absent[0]} (nor .gz) in {self._raw.absolute()}; set data.root=FOLDER that holds "
            f"{self.folder}/raw, or data.download=true"
        )

    def to_download(self) -> bool:
        """Return whether files are missing and `download` is set."""
        return self.download and any(self._file(name) is None for name in FILES)

    def prepare(self) -> None:
        """Download missing files if `download` is set."""
        if self.to_download():
            self.fetch()

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Read the official training and test sets."""
        tensors = [self._read(name) for name in FILES]
        for images, target in (tensors[:2], tensors[2:]):
            if images.shape != (len(target), *self.shape[1:]):
                raise ValueError(
                    f"{self._raw} holds images {tuple(images.shape)} and {len(target)} classes; "
                    f"expected images of {self.shape[1]} x {self.shape[2]}, one class each"
                )
        train, test = ((images[:, None], target.long()) for images, target in (tensors[:2], tensors[2:]))
        return LabelledImages(*train), LabelledImages(*test)

    @property
    def _raw(self) -> Path:
        return Path(os.path.expanduser(self.root)) / self.folder / "raw"

    def _file(self, name: str) -> Path | None:
        """Return the plain file, else the gzipped one, else None."""
        return next((path for path in (self._raw / name, self._raw / f"{name}.gz") if path.is_file()), None)

    def _read(self, name: str) -> Tensor:
        path = self._file(name)
        if path is None:
            raise ValueError(self.missing() or f"no {name} in {self._raw} after the download; run it again")
        return read_idx(path)


class MNIST(IdxData):
    """Handwritten digits, read from a folder."""

    folder: ClassVar[str] = "MNIST"

    def fetch(self) -> None:
        """Download the files through torchvision."""
        from torchvision import datasets

        datasets.MNIST(str(Path(os.path.expanduser(self.root))), download=True)
