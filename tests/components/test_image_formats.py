"""Only images of a few formats are opened, whatever a file's name: for others Pillow starts programs or reads files."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blockyard.data.files.images import FORMATS, decode_image, open_image
from blockyard.errors import UserError
from tests.support.paths import ROOT

# Formats that are read only; the beginning of a file of each.
READ_ONLY = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n",
    "FITS": b"SIMPLE  =                    T" + b" " * 2850,
    "WMF": b"\xd7\xcd\xc6\x9a" + bytes(100),
    "PSD": b"8BPS\x00\x01" + bytes(100),
    "FLI": bytes(4) + b"\x11\xaf" + bytes(122),
}


def content_of(form: str) -> bytes:
    """A small image in a format; nothing where Pillow cannot write it."""
    for mode in ("RGB", "L", "1"):
        buffer = io.BytesIO()
        try:
            Image.new(mode, (16, 16)).save(buffer, format=form)
            return buffer.getvalue()
        except (OSError, ValueError, KeyError, RuntimeError, AttributeError, TypeError):
            continue
    return b""


Image.init()
# An MPO of one image is a JPEG.
OTHERS = sorted(form for form in set(Image.SAVE) & set(Image.OPEN) - {*FORMATS, *READ_ONLY, "MPO"} if content_of(form))


@pytest.mark.parametrize("form", [*OTHERS, *READ_ONLY])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_another_format_is_refused_by_the_name_of_the_file(form: str, suffix: str, tmp_path: Path) -> None:
    """A file that Pillow would open as one of its other formats is refused, under the name of an allowed one."""
    path = tmp_path / f"x{suffix}"
    path.write_bytes(READ_ONLY.get(form) or content_of(form))
    with pytest.raises(UserError, match=re.escape(f"x{suffix} cannot be read as an image")):
        decode_image(path, channels=3, size=8)


@pytest.mark.parametrize("form", FORMATS)
def test_an_allowed_format_is_read(form: str) -> None:
    assert open_image(io.BytesIO(content_of(form)), "x", channels=3).size == (16, 16)


def test_sixteen_bits_of_a_pgm_are_read(tmp_path: Path) -> None:
    values = (np.arange(64).reshape(8, 8) * 1000).astype(">u2")
    (tmp_path / "x.pgm").write_bytes(b"P5\n8 8\n65535\n" + values.tobytes())
    read = decode_image(tmp_path / "x.pgm", channels=1, size=8)
    assert read[0].tolist() == (values >> 8).tolist()


def test_every_image_is_opened_with_a_list_of_formats() -> None:
    """Each `Image.open` in the package says which formats it reads; another would open all of them."""
    opened = [
        (path.name, call)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for call in re.findall(r"Image\.open\(([^)]*)\)", path.read_text(encoding="utf-8"))
    ]
    assert opened
    assert [name for name, call in opened if "formats=" not in call] == []
