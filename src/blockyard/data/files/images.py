"""Reading image files as pixels, with the reason where one cannot be read.

Reference: PIL.Image.open
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from blockyard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow reads other formats whatever a file's name; for one of them it starts another program.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
MAX_PIXELS = 89_478_485  # beyond it Pillow warns of an image made to exhaust memory
MAX_RESIZED = 2**24  # pixels
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def decode_image(file: Path, *, channels: int, size: int) -> Tensor:
    """Read an image file as uint8 (channels, size, size): resize the shorter side, then crop the center.

    Raises UserError naming the file where it is not an image of one of `FORMATS`, is damaged, or has too many pixels.
    """
    return decode_stream(file, file, channels=channels, size=size)


def read_picture(file: Path | BinaryIO, name: object = None, *, channels: int, size: int) -> Tensor:
    """Read an image as float32 (1, channels, size, size) from -1 (black) to 1; transparent pixels are white.

    name: of an open file, for messages. Raises UserError as `decode_image` does.
    """
    if isinstance(file, Path) and not file.is_file():
        raise UserError(f"{file}: no such file")
    return levels_to_floats(decode_stream(file, name or file, channels=channels, size=size, on_white=True)[None])


def levels_to_floats(images: Tensor) -> Tensor:
    """Return uint8 images as float32 from -1 (black) to 1."""
    return images.float() / 127.5 - 1


def decode_stream(stream: Path | BinaryIO, name: object, *, channels: int, size: int, on_white: bool = False) -> Tensor:
    """As `decode_image`, of an open file that messages call `name`. on_white: what transparent pixels show."""
    return to_tensor(centred(open_image(stream, name, channels=channels, on_white=on_white), size))


def open_image(stream: Path | BinaryIO, name: object, *, channels: int, on_white: bool = False) -> Image:
    """Read an image in its own size, with 3 or 1 channels. Raises UserError as `decode_image` does."""
    from PIL import Image

    try:
        with Image.open(stream, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(f"{opened.width} x {opened.height} pixels, at most {MAX_PIXELS:,} are allowed")
            shown: Image.Image = opened
            if on_white and opened.has_transparency_data:
                clear = opened.convert("RGBA")
                shown = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
            if shown.mode == "I" and opened.format == "PPM":  # Pillow has scaled its 16 bits to 0..65535
                shown = Image.fromarray((np.asarray(shown) >> 8).astype(np.uint8))
            if shown.mode in ("I", "F"):
                raise ValueError("its pixels are 32-bit numbers of no known range; save it with 8 or 16 bits")
            if shown.mode.startswith("I;16"):  # Pillow would cut all above 255 off
                shown = Image.fromarray((np.asarray(shown) >> 8).astype(np.uint8))
            mode = "RGB" if channels == 3 else "L"
            if shown.mode != mode:
                return shown.convert(mode)
            shown.load()  # `convert` would copy it
            return shown
    except Exception as error:  # decoders raise nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} cannot be read as an image ({reason}); repair or remove it") from error


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
    right, bottom = min((left + size) * across, image.width), min((top + size) * down, image.height)
    return image.resize((size, size), Image.Resampling.BILINEAR, (left * across, top * down, right, bottom))


def to_tensor(image: Image) -> Tensor:
    """Return the pixels of an image with 1 or 3 channels, uint8 (C, height, width)."""
    import numpy as np

    pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
    return pixels.permute(2, 0, 1)  # (C, height, width)
