"""MNIST and data sets of its form: idx files, packed with gzip or not, read in memory."""

from __future__ import annotations

import gzip
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Count, CountOrZero, Rate
from blockyard.data._images import ImageData, Labelled
from blockyard.data._split import Fraction

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class IdxData(ImageData):
    """Images in the four idx files of `root/FOLDER/raw`, the layout that torchvision writes.

    Options:
        root: the folder that holds the data set's own folder
        download: fetch the files through torchvision where they are missing
    """

    incidental = frozenset({"eval_batch_size", "root", "download"})
    shape = (1, 28, 28)
    classes = 10
    folder: ClassVar[str]  # under `root`, as torchvision names it

    def __init__(
        self,
        *,
        root: str = "data",
        download: bool = False,
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
        self.root, self.download = Path(root).expanduser(), download

    @abstractmethod
    def fetch(self) -> None:
        """Have torchvision download the files into `root`."""

    def missing(self) -> str | None:
        """Which files are not there."""
        absent = [name for name in FILES if self._file(name) is None]
        if not absent or self.download:
            return None
        return (
            f"no {absent[0]} (nor .gz) in {self._raw.absolute()}; set data.root=FOLDER that holds "
            f"{self.folder}/raw, or data.download=true"
        )

    def prepare(self) -> None:
        """Download what is missing, where that was asked for."""
        if self.download and any(self._file(name) is None for name in FILES):
            self.fetch()

    def read(self) -> tuple[Labelled, Labelled]:
        """Both official parts."""
        tensors = [self._read(name) for name in FILES]
        for images, target in (tensors[:2], tensors[2:]):
            if images.shape != (len(target), *self.shape[1:]):
                raise ValueError(
                    f"{self._raw} holds images {tuple(images.shape)} and {len(target)} classes; "
                    f"expected images of {self.shape[1]} x {self.shape[2]}, one class each"
                )
        train, test = ((images[:, None], target.long()) for images, target in (tensors[:2], tensors[2:]))
        return Labelled(*train), Labelled(*test)

    @property
    def _raw(self) -> Path:
        return self.root / self.folder / "raw"

    def _file(self, name: str) -> Path | None:
        """The file under its plain name, else packed."""
        return next((path for path in (self._raw / name, self._raw / f"{name}.gz") if path.is_file()), None)

    def _read(self, name: str) -> Tensor:
        path = self._file(name)
        if path is None:
            raise ValueError(self.missing() or f"no {name} in {self._raw}, though it was to be downloaded")
        return read_idx(path)


def read_idx(path: Path) -> Tensor:
    """The uint8 array of an idx file. Raises ValueError where it is damaged or of another type.

    Source: LeCun, the MNIST database: two zero bytes, type 8 (uint8), number of axes, each axis'
    length as a big-endian 32-bit integer, then the values.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error
    axes = data[3] if data[:3] == b"\x00\x00\x08" and len(data) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    values = torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8) if len(data) > start else None
    if not axes or values is None or values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path} is no idx file of bytes, or a cut one; fetch it again")
    return values.reshape(shape)
