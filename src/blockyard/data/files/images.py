"""Reading image files as pixels, with the reason where one cannot be read.

Reference: PIL.Image.open
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from blockyard.errors import UserError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow reads other formats whatever a file's name; for one of them it starts another program.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
MAX_PIXELS = 89_478_485  # beyond it Pillow warns of an image made to exhaust memory
MAX_RESIZED = 2**24  # pixels
# EXIF orientation -> the name of Pillow's operation that turns the stored pixels upright.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
# The suffixes that Pillow has for `FORMATS`.
SUFFIXES = frozenset({".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".gif"}) | {
    *(".pbm", ".pgm", ".ppm", ".pnm", ".pfm")
}


def decode_image(stream: Path | BinaryIO, name: object = None, *, channels: int, size: int) -> Tensor:
    """Read an image as uint8 (channels, size, size): resize the shorter side, then crop the center.

    name: of an open file, for messages. Raises UserError naming the file where it is not an image of one of `FORMATS`,
    is damaged, or has too many pixels.
    """
    return to_tensor(centred(open_image(stream, name, channels=channels), size))


def read_picture(file: Path, *, channels: int, size: int) -> Tensor:
    """Read an image as float32 (1, channels, size, size) from -1 (black) to 1. Raises UserError as `decode_image`."""
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    return levels_to_floats(decode_image(file, channels=channels, size=size)[None])


def levels_to_floats(images: Tensor) -> Tensor:
    """Return uint8 images as float32 from -1 (black) to 1."""
    return images.float() / 127.5 - 1


def open_image(stream: Path | BinaryIO, name: object = None, *, channels: int) -> Image:
    """Read an image as a viewer shows it, in its own size, with 3 or 1 channels.

    It is turned by its EXIF orientation, and composited on white where it is transparent. Every reader of image files
    calls this function. Raises UserError as `decode_image` does.
    """
    with _opened(stream, name) as stored:
        stored.load()
        shown = _on_white(_of_8_bits(_turned(stored), stored.format))
        mode = "RGB" if channels == 3 else "L"
        return shown if shown.mode == mode else shown.convert(mode)  # `convert` would copy it


def displayed(images: Iterable[tuple[Path | BinaryIO, object]]) -> list[str]:
    """Return how images differ from the pixels that they store, by their number; images that do not are left out.

    images: each with its name, as `open_image` takes them; only images with an alpha channel are decoded
    """
    differences = []
    for number, (stream, name) in enumerate(images):
        with _opened(stream, name) as stored:
            orientation = _orientation(stored)
            if orientation in _TURNS:
                differences.append(f"{number} has orientation {orientation}")
            if _is_transparent(stored):
                differences.append(f"{number} is transparent")
    return differences


@contextmanager
def _opened(stream: Path | BinaryIO, name: object) -> Iterator[Image]:
    """Open an image file. Raises UserError with the reason for any error inside."""
    from PIL import Image

    try:
        with Image.open(stream, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(f"{opened.width} x {opened.height} pixels, at most {MAX_PIXELS:,} are allowed")
            yield opened
    except Exception as error:  # decoders raise nearly anything on a damaged file
        reason = first_line(error)
        raise UserError(f"{name or stream} cannot be read as an image ({reason}); repair or remove it") from error


def _turned(stored: Image) -> Image:
    from PIL.Image import Transpose

    # ImageOps.exif_transpose fails for sound pixels with damaged EXIF data, which it writes again.
    transpose = _TURNS.get(_orientation(stored))
    if transpose is None:
        return stored
    return stored.transpose(Transpose[transpose])


def _orientation(stored: Image) -> int:
    """Return the EXIF orientation of the pixels of an image, 1 where they are upright."""
    from PIL.ExifTags import Base
    from PIL.Image import Image

    if stored.format == "TIFF":  # Pillow turns its pixels
        return 1
    try:
        # PNG images have a method of their own, which decodes them to look for EXIF data behind the pixels.
        orientation: int = Image.getexif(stored).get(Base.Orientation, 1)
    except (SyntaxError, struct.error, OSError, ValueError, LookupError, TypeError):  # of damaged EXIF data
        return 1
    return orientation


def _of_8_bits(image: Image, form: str | None) -> Image:
    """Return an image of 16 bits with 8, which Pillow's `convert` would cut, and any other as it is."""
    from PIL import Image

    is_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and form == "PPM")  # Pillow has scaled it to 65535
    if is_16_bits:
        values = np.asarray(image)
        clear = image.info.get("transparency")  # one level that stands for transparent pixels
        if clear is not None:
            values = np.where(values == clear, 65535, values)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels are 32-bit numbers of no known range; save it with 8 or 16 bits")
    return image


def _on_white(image: Image) -> Image:
    from PIL import Image

    if not _is_transparent(image):
        return image
    clear = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)


def _is_transparent(image: Image) -> bool:
    """Return whether a pixel of an image is not opaque."""
    if not image.has_transparency_data:
        return False
    alpha = np.asarray(image.convert("RGBA").getchannel("A"))
    return bool((alpha < 255).any())


def centred(image: Image, size: int) -> Image:
    """Return the image with its shorter side resized to `size` and its center cropped to `size` x `size`."""
    from PIL import Image

    if image.size == (size, size):
        return image
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    if width * height <= MAX_RESIZED:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        return image.crop((left, top, left + size, top + size))
    # A thin image would be huge: only its crop is computed, which rounds some pixels differently.
    across, down = image.width / width, image.height / height
    # Rounding may put an edge beyond the image, which Pillow refuses.
    right = min((left + size) * across, image.width)
    bottom = min((top + size) * down, image.height)
    return image.resize((size, size), Image.Resampling.BILINEAR, (left * across, top * down, right, bottom))


def to_tensor(image: Image) -> Tensor:
    """Return the pixels of an image with 1 or 3 channels, uint8 (C, height, width)."""
    import numpy as np

    pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
    return pixels.permute(2, 0, 1)  # (C, height, width)
