"""Image files as batches of what a run reads, and the split that knows how it prepares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from blockyard.contracts import Batch
from blockyard.data._decode import SUFFIXES, decode_image
from blockyard.errors import UserError, shortened
from blockyard.evaluate.predict_rows import BATCH
from blockyard.runs.load import Loaded

if TYPE_CHECKING:
    from torch import Tensor


_BYTES = 256  # gray levels of an image file as it is read


@runtime_checkable
class Preprocessed(Protocol):
    """A split that turns stored bytes into what a model reads, as the splits of images do."""

    def preprocess(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Maps images uint8 (B, C, height, width) to inputs float32; a key of None draws nothing."""
        ...


def image_batches(loaded: Loaded, paths: Sequence[str]) -> tuple[list[str], Iterator[Batch]]:
    """Returns the image files that the paths name, and batches of them. Raises UserError."""
    files = [file for path in paths for file in _files_of(Path(path))]
    split = _split(loaded)
    channels, height, width = loaded.data.spec.shape
    levels = loaded.data.spec.levels or _BYTES
    if height != width:
        raise UserError(f"{loaded.folder.name} reads images of {height} x {width}; predict resizes to squares only")

    def batches() -> Iterator[Batch]:
        import torch

        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            images = torch.stack([decode_image(file, channels=channels, size=height) for file in some])
            if levels != _BYTES:  # data of fewer gray levels, such as the 17 of the digits, is stored as it is
                images = (images.double() * (levels - 1) / (_BYTES - 1)).round().to(torch.uint8)
            yield Batch(split.preprocess(images, torch.arange(len(some)), None))

    return [str(file) for file in files], batches()


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise UserError(f"{path}: no image in this folder (of {', '.join(sorted(SUFFIXES))})")
        return files
    if not path.is_file():
        raise UserError(f"no file or folder {shortened(str(path))}; a run on images reads image files")
    return [path]


def test_split(loaded: Loaded) -> Any:
    """The run's test split, which knows how values are standardized."""
    missing = loaded.data.missing()
    if missing:
        raise UserError(f"{loaded.data.spec.things} are standardized as the training split was: {missing}")
    loaded.data.prepare()
    return loaded.components.load().test


def _split(loaded: Loaded) -> Any:
    """The run's test split, which knows how images are normalized."""
    split = test_split(loaded)
    if not isinstance(split, Preprocessed):
        raise UserError(f"{loaded.folder.name}: {type(split).__name__} does not say how images become inputs")
    return split
