"""A PNG file with images side by side."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.generate.images import GeneratedImages

_SIDE = 64  # pixels of the picture that an image has at least
_GROUP = 10  # completions side by side
_GAP = 2  # pixels of an image between two
_PAPER = 255
_ABSENT = 128  # the gray of pixels that were not given


def write_grid(result: GeneratedImages, path: Path) -> Path:
    """Write the images row by row; completions as three rows: what was given, the completion, the true image."""
    images = bytes_of(result.images, result.levels)
    if result.true is None:
        columns = _columns(len(images))
        lines = images.split(columns)
    else:
        true = bytes_of(result.true, result.levels)
        shown = torch.where(result.given, true, torch.full_like(true, _ABSENT))
        groups = zip(*(each.split(_GROUP) for each in (shown, images, true)), strict=True)
        lines = tuple(line for group in groups for line in group)
    return save(paste(lines), path)


def bytes_of(images: Tensor, levels: int) -> Tensor:
    """Returns images (n, C, height, width) of `levels` gray levels as bytes from black to white."""
    return (images.float() * 255 / (levels - 1)).round().to(torch.uint8)


def _columns(count: int) -> int:
    """Images in a row: ten where that fills the rows, as there are ten classes often, else a square."""
    return 10 if count % 10 == 0 else min(count, max(1, round(count**0.5)))


def paste(lines: tuple[Tensor, ...]) -> Tensor:
    """Rows of images (n, C, height, width) uint8 -> one picture (height, width, C), white between them."""
    channels, height, width = lines[0].shape[1:]
    most = max(map(len, lines))
    picture = torch.full((channels, len(lines) * (height + _GAP) - _GAP, most * (width + _GAP) - _GAP), _PAPER)
    for row, line in enumerate(lines):
        for column, image in enumerate(line):
            top, left = row * (height + _GAP), column * (width + _GAP)
            picture[:, top : top + height, left : left + width] = image
    scale = max(1, -(-_SIDE // max(height, width)))
    return picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2).permute(1, 2, 0).to(torch.uint8)


def save(picture: Tensor, path: Path) -> Path:
    """Write a picture (height, width, 1 or 3) uint8 as PNG; never a partial file."""
    from PIL import Image

    shown = picture[..., 0] if picture.shape[2] == 1 else picture
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        Image.fromarray(shown.contiguous().numpy()).save(temporary, format="PNG")
    return path
