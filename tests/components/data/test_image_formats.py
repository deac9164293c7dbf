"""Image files: which formats are opened, whatever a file's name, and the pixels that every reader shows.

Only images of a few formats are opened: for others Pillow starts programs or reads files.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps
from PIL.ExifTags import Base
from torch import Tensor

from blockyard.contracts import Tokenizer
from blockyard.data.captions import Captions
from blockyard.data.files.images import FORMATS, SUFFIXES, decode_image, displayed, open_image
from blockyard.data.image_folder import ImageFolder
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.table import Table
from blockyard.data.webdataset import WebDataset
from blockyard.errors import UserError
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.patch import Patch
from tests.support.image_files import write_shard
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


def test_the_suffixes_are_those_that_pillow_has_for_the_formats() -> None:
    assert {suffix for suffix, form in Image.registered_extensions().items() if form in FORMATS} == SUFFIXES


# An image as a viewer shows it: turned by its EXIF orientation, and composited on white where it is transparent.

CORNERS = np.array([[0, 60, 120], [180, 220, 255]], dtype=np.uint8).repeat(8, 0).repeat(8, 1)  # (16, 24)


def saved(image: Image.Image, form: str, orientation: int | None = None) -> bytes:
    """The content of a file of an image, without loss where the format has a way."""
    exif = Image.Exif()
    if orientation is not None:
        exif[Base.Orientation] = orientation
    file = io.BytesIO()
    image.save(file, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_turned_by_its_orientation(form: str, orientation: int, channels: int) -> None:
    content = saved(Image.fromarray(CORNERS).convert("RGB"), form, orientation)
    with Image.open(io.BytesIO(content)) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored).convert("L"), dtype=int)
    read = np.asarray(open_image(io.BytesIO(content), "x", channels=channels), dtype=int)
    assert_array_equal(read.reshape(*expected.shape, -1)[..., 0], expected)
    assert (expected.shape == CORNERS.shape) == (orientation < 5)


@pytest.mark.parametrize(
    "exif", [b"no EXIF data", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"II*\0\x08\0\0\0\x01\0\x12\x01"]
)
def test_damaged_exif_data_leave_the_pixels_as_they_are(exif: bytes) -> None:
    file = io.BytesIO()
    Image.fromarray(CORNERS).save(file, "PNG", exif=exif)
    with warnings.catch_warnings(action="ignore"):  # Pillow's, of truncated data
        assert_array_equal(np.asarray(open_image(file, "x", channels=1)), CORNERS)


def hidden_colours(mode: str, colour: int) -> Image.Image:
    """An image whose left half is transparent with a hidden colour, and whose right half is gray."""
    levels = np.full((4, 8), 80, np.uint8)
    levels[:, :4] = colour
    alpha = np.full((4, 8), 255, np.uint8)
    alpha[:, :4] = 0
    if mode in ("P", "L", "RGB"):  # one colour is transparent
        image = Image.fromarray(levels).convert(mode)
        image.info["transparency"] = (colour,) * 3 if mode == "RGB" else image.getpixel((0, 0))
        return image
    return Image.merge("LA", [Image.fromarray(levels), Image.fromarray(alpha)]).convert(mode)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P", "L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("colour", [0, 200])
def test_transparent_pixels_are_white(mode: str, channels: int, colour: int) -> None:
    read = np.asarray(open_image(io.BytesIO(saved(hidden_colours(mode, colour), "PNG")), "x", channels=channels))
    assert (read[:, :4] == 255).all()
    assert (read[:, 4:] == 80).all()


def test_a_palette_with_alpha_values_and_16_bits_are_composited_on_white() -> None:
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    palette.putpalette([250, 0, 0, 0, 250, 0, 0, 0, 250])
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=bytes([0, 255, 255]))
    assert np.asarray(open_image(file, "x", channels=3))[0].tolist() == [[255] * 3, [0, 250, 0], [0, 0, 250]]

    file = io.BytesIO()
    Image.fromarray(np.array([[4660, 4661]], np.uint16)).save(file, "PNG", transparency=4660)
    assert np.asarray(open_image(file, "x", channels=1)).tolist() == [[255, 18]]


def test_half_transparent_colours_are_mixed_with_white() -> None:
    image = Image.new("RGBA", (1, 1), (0, 100, 200, 51))  # an alpha of 0.2
    assert open_image(io.BytesIO(saved(image, "PNG")), "x", channels=3).getpixel((0, 0)) == (204, 224, 244)


def test_images_that_show_what_they_store_are_told_from_others() -> None:
    opaque = Image.new("RGBA", (2, 2), (1, 2, 3, 255))
    files = [
        saved(Image.fromarray(CORNERS), "JPEG"),
        saved(Image.fromarray(CORNERS), "JPEG", 1),
        saved(Image.fromarray(CORNERS), "TIFF", 6),  # Pillow has always turned them
        saved(opaque, "PNG"),
    ]
    assert displayed((io.BytesIO(file), "x") for file in files) == []
    files += [saved(Image.fromarray(CORNERS), "JPEG", 6), saved(hidden_colours("LA", 9), "PNG")]
    assert displayed((io.BytesIO(file), "x") for file in files) == ["4 has orientation 6", "5 is transparent"]


# Every reader of image files shows an image in the same way.


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with two files that store different pixels and show the same image."""
    root = tmp_path / "pair"
    root.mkdir()
    gray = np.full((8, 8), 255, np.uint8)
    gray[2:6, :3] = 90
    upright = Image.fromarray(gray)
    alpha = Image.fromarray(np.where(gray == 255, 0, 255).astype(np.uint8))
    lying = upright.transpose(Image.Transpose.ROTATE_90).point(lambda level: 0 if level == 255 else level)
    turned = Image.merge("LA", [lying, alpha.transpose(Image.Transpose.ROTATE_90)])
    (root / "stored.png").write_bytes(saved(turned, "PNG", 6))
    (root / "shown.png").write_bytes(saved(upright, "PNG"))
    return root / "stored.png", root / "shown.png"


def test_every_reader_shows_an_image_alike(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The same pixels come from a file that stores them upright, and from a lying one with transparent pixels."""
    contents = [file.read_bytes() for file in pair]
    for number in range(20):
        for name, content in zip(("a", "b"), contents, strict=True):
            folder = tmp_path / "folder" / "train" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.png").write_bytes(content)
    rows = [f"{name}/{number}.png,{name},{name} {number}" for number in range(20) for name in ("a", "b")]
    table = tmp_path / "folder" / "train" / "t.csv"
    table.write_text("\n".join(["file,label,words", *rows]) + "\n")
    lines = [json.dumps({"file_name": f"{name}/{n}.png", "text": f"{name} {n}"}) for n in range(20) for name in "ab"]
    (table.parent / "metadata.jsonl").write_text("\n".join(lines))
    members: dict[str, bytes] = {}
    for number in range(40):
        members |= {f"{number:03}.png": contents[number % 2], f"{number:03}.cls": b"%d" % (number % 2)}
    shard = write_shard(tmp_path / "train.tar", members)

    def batch(data: LoadedData, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
        """The images of the training split, and which of the two files each is of."""
        train = data.load(tokenizer).train
        batch = train.batch(torch.arange(len(train)), None)
        images = batch.inputs if batch.source is None else batch.source
        return images, batch.inputs[:, 1] if batch.target is None else batch.target  # the first letter of a caption

    options = {"size": 8, "channels": 1}
    sets = [
        (ImageFolder(root=str(tmp_path / "folder"), **options), Patch(size=4)),
        (ImageFolder(root=str(tmp_path / "folder"), **options, memory_limit=0), Patch(size=4)),
        (ImageFolder(root=str(tmp_path / "folder"), **options, resized_crop=1.0), Patch(size=4)),
        (Table(path=str(table), image="file", text=None, **options), Patch(size=4)),
        (Table(path=str(table), image="file", text=None, **options, memory_limit=0), Patch(size=4)),
        (Table(path=str(table), image="file", text="words", **options), Char()),
        (Table(path=str(table), image="file", text="words", label=None, **options), Char()),
        (Captions(path=str(table.parent), **options), Char()),
        (WebDataset(path=str(shard), **options), Patch(size=4)),
    ]
    for data, tokenizer in sets:
        images, target = batch(data, tokenizer)
        assert len(target.unique()) == 2
        torch.testing.assert_close(images, images[:1].expand_as(images), rtol=0, atol=0)
    new = [decode_image(file, channels=1, size=8) for file in pair]  # as `predict` reads files
    torch.testing.assert_close(new[0], new[1], rtol=0, atol=0)
    source = sets[-2][0]
    torch.testing.assert_close(*(source.read_source(str(file)) for file in pair), rtol=0, atol=0)


@pytest.mark.parametrize("limit", [0, 10])
def test_a_fingerprint_changes_with_the_pixels_that_are_shown(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory and on the disk: the one of data that show what they store is kept, any other is a new one."""
    upright = saved(Image.fromarray(CORNERS), "JPEG", 1)
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "train" / name / f"{number}.jpg").write_bytes(upright)

    def fingerprint() -> str:
        data = ImageFolder(root=str(tmp_path), size=8, memory_limit=limit)
        data.load(Patch(size=4))
        return data.fingerprint()

    def as_stored() -> str:
        with monkeypatch.context() as patch:
            patch.setattr("blockyard.data.files.images._TURNS", {})
            return fingerprint()

    assert fingerprint() == as_stored()
    (tmp_path / "train" / "b" / "3.jpg").write_bytes(saved(Image.fromarray(CORNERS), "JPEG", 6))
    assert fingerprint() != as_stored()
