"""data=webdataset: the samples of webdataset's own reader in our order, and bad shards named with the member."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from blockyard.data.files import tar_shard
from blockyard.data.files.tar_shard import TarSample, read_shard
from blockyard.data.image_folder import ImageFolder
from blockyard.data.webdataset import MOST_SHARDS, WebDataset, _count, shards_of
from blockyard.errors import UserError
from blockyard.tokenizer.patch import Patch
from tests.support.image_files import samples, write_shard


def loaded(path: Path, **options: object) -> WebDataset:
    return WebDataset(path=str(path), size=12, **options)  # type: ignore[arg-type]


def test_samples_are_those_of_the_library(tmp_path: Path) -> None:
    import webdataset
    from PIL import Image

    write_shard(tmp_path / "train-000.tar", samples(0, 9) | {"__meta__/x.png": b"", "readme.txt": b"text"})
    write_shard(tmp_path / "train-001.tar", samples(9, 6) | {"photos/1.v2.seg.png": b"no image", "photos/1.cls": b"1"})
    write_shard(tmp_path / "test.tar", samples(15, 4))
    with pytest.raises(UserError, match=r"train-000\.tar: readme has no \.cls, which holds its class"):
        loaded(tmp_path).parts()
    write_shard(tmp_path / "train-000.tar", samples(0, 9) | {"__meta__/x.png": b""})
    write_shard(tmp_path / "train-001.tar", samples(9, 6))
    data = loaded(tmp_path, validation_fraction=0.2)
    train, validation, test = data.parts()
    assert [len(part.target) for part in (train, validation, test)] == [12, 3, 4]
    assert (data.spec.classes, data.spec.class_names) == (2, ("0", "1"))
    ours = {}
    for part in (train, validation):
        decoded = part.decode_all()
        ours |= {image.numpy().tobytes(): label for image, label in zip(*decoded, strict=True)}
    shards = [str(shard) for shard in shards_of(f"{tmp_path}/train-{{000..001}}.tar")]
    theirs = webdataset.WebDataset(shards, shardshuffle=False).to_tuple("png", "cls")
    seen = 0
    for png, label in theirs:
        image = Image.open(io.BytesIO(png))
        left = round((image.width - 12) / 2 - 0.25)
        pixels = torch.frombuffer(bytearray(image.crop((left, 0, left + 12, 12)).tobytes()), dtype=torch.uint8)
        key = pixels.view(12, 12, 3).permute(2, 0, 1).contiguous().numpy().tobytes()
        assert ours[key] == int(label)
        seen += 1
    assert seen == len(ours) == 15


def test_shards_and_a_folder_of_the_same_images_are_the_same(tmp_path: Path) -> None:
    pairs = samples(0, 40)
    write_shard(tmp_path / "a.tar", pairs)
    for name, content in pairs.items():
        if name.endswith(".png"):
            folder = tmp_path / "train" / pairs[name.replace(".png", ".cls")].decode().strip()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / Path(name).name).write_bytes(content)
    contents = []
    for data in (WebDataset(path=str(tmp_path / "a.tar"), size=8), ImageFolder(root=str(tmp_path), size=8)):
        parts = [part.decode_all() for part in data.parts()]
        pairs = [pair for part in parts for pair in zip(*part, strict=True)]
        contents.append({image.numpy().tobytes(): int(label) for image, label in pairs})
        assert [len(part.target) for part in parts] == [33, 3, 4]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 40


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:4000])


def _without_end(file: Path) -> None:
    file.write_bytes(file.read_bytes().rstrip(b"\0") + bytes(-len(file.read_bytes().rstrip(b"\0")) % 512))


def _bad_header(file: Path) -> None:
    content = bytearray(file.read_bytes())
    place = content.index(b"photos/0003.cls")
    content[place + 100 : place + 156] = b"x" * 56
    file.write_bytes(bytes(content))


def _of(*changes: tuple[str, bytes | None]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        files = samples(0, 8)
        for name, content in changes:
            if content is None:
                del files[name]
            else:
                files[name] = content
        write_shard(file, files)

    return write


def _declares(size: int) -> Callable[[Path], None]:
    """Return what puts a header of an extended format first, by which the member after it has `size` bytes."""

    def write(file: Path) -> None:
        info = tarfile.TarInfo("__left_out__")
        info.pax_headers = {"size": str(size)}
        file.write_bytes(info.tobuf(tarfile.PAX_FORMAT) + file.read_bytes())

    return write


def _long_name(file: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**60
    file.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + file.read_bytes())


def _long_names(kind: bytes) -> Callable[[Path], None]:
    """Return what puts 3,000 headers of long names in a row before the first file."""

    def write(file: Path) -> None:
        info = tarfile.TarInfo("././@LongLink")
        text = b"a" * 200 + bytes(1) if kind == tarfile.GNUTYPE_LONGNAME else b"21 path=" + b"a" * 12 + b"\n"
        info.type, info.size = kind, len(text)
        header = info.tobuf(tarfile.GNU_FORMAT) + text + bytes(-len(text) % 512)
        file.write_bytes(3_000 * header + file.read_bytes())

    return write


@pytest.mark.timeout(60)  # a size that leads back to its own header was read for ever
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_declares(2**60), r"train-0\.tar is damaged .*declares 1,152,921,504,606,846,976 bytes"),
        (_declares(-1536), r"train-0\.tar is damaged .*declares -1,536 bytes"),
        (_long_name, r"train-0\.tar is damaged or truncated after its beginning"),
        (_long_names(tarfile.GNUTYPE_LONGNAME), r"train-0\.tar is damaged .*headers for long names .*write it again$"),
        (_long_names(tarfile.XHDTYPE), r"train-0\.tar is damaged .*headers for long names .*write it again$"),
        (_cut, r"train-0\.tar is damaged or truncated after photos/0001\.\w+ \(.* end of"),
        (_without_end, r"train-0\.tar is damaged or truncated after photos/0007\.cls \(.*end"),
        (_bad_header, r"train-0\.tar is damaged or truncated after photos/0003\.png \(no end of the archive\)"),
        (
            lambda file: file.write_bytes(b""),
            r"train-0\.tar is damaged or truncated after its beginning \(empty file\)",
        ),
        (lambda file: file.write_bytes(b"no tar" * 200), r"train-0\.tar is damaged .*shards must not be compressed"),
        (lambda file: write_shard(file, {}), r"train-0\.tar has no samples; remove it"),
        (_of(("photos/0002.cls", None)), r"train-0\.tar: photos/0002 has no \.cls, which holds its class, only \.png"),
        (_of(("photos/0002.cls", b" ")), r"train-0\.tar: photos/0002\.cls is empty"),
        (_of(("photos/0002.cls", b"\xff")), r"train-0\.tar: photos/0002\.cls is not UTF-8 text"),
        (_of(("photos/0002.png", None)), r"train-0\.tar: photos/0002 has 0 images beside its class \(nothing else\)"),
        (_of(("photos/0007.jpg", b"")), r"train-0\.tar: photos/0007 has 2 images beside its class \(\.png, \.jpg\)"),
        (_of(("photos/0002.png", b"bad")), r"train-0\.tar: photos/0002\.png cannot be read as an image"),
    ],
)
def test_a_bad_shard_is_refused_by_name(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "train-0.tar", samples(0, 8))
    write_shard(tmp_path / "train-1.tar", samples(8, 30))
    damage(shard)
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, validation_fraction=0.3).load(Patch())


def test_classes_of_validation_are_those_of_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shard(tmp_path / "train.tar", samples(0, 20))
    write_shard(tmp_path / "val.tar", samples(18, 6) | {"new.png": b"", "new.cls": b"7"})
    with pytest.raises(UserError, match=r"val\.tar: new has the class '7', which no training sample has; classes: 0"):
        loaded(tmp_path).parts()
    write_shard(tmp_path / "val.tar", samples(18, 6))
    loaded(tmp_path).parts()
    assert "2 of 6 validation samples have names of training samples" in caplog.text
    write_shard(tmp_path / "more.tar", samples(30, 6))
    with pytest.raises(UserError, match=r"more\.tar does not say its split, and other shards do"):
        loaded(tmp_path).parts()


def test_class_numbers_are_sorted_by_value_and_names_by_letter(tmp_path: Path) -> None:
    files = samples(0, 12)
    classes = {name: b"%d" % (9 + int(name[7:11]) % 3) for name in files if name.endswith(".cls")}
    write_shard(tmp_path / "a.tar", files | classes)
    assert loaded(tmp_path / "a.tar").spec.class_names == ("9", "10", "11")
    write_shard(tmp_path / "a.tar", files | {name: b"class" + label for name, label in classes.items()})
    assert loaded(tmp_path / "a.tar").spec.class_names == ("class10", "class11", "class9")


def test_classes_that_look_alike_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = (b"cat", b"Cat", b"dog")
    pairs = samples(0, 30)
    for number, name in enumerate(name for name in pairs if name.endswith(".cls")):
        pairs[name] = labels[number % 3]
    write_shard(tmp_path / "train.tar", pairs)
    assert loaded(tmp_path).spec.class_names == ("Cat", "cat", "dog")
    assert "has classes that look alike: 'cat' (10) and 'Cat' (10); write them alike" in caplog.text


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "set data.path=FOLDER with train-000.tar" in str(loaded(tmp_path).missing())
    write_shard(tmp_path / "train-0.tar", samples(0, 8))
    with pytest.raises(UserError, match=r"train-1\.tar does not exist; 1 of the shards do"):
        loaded(tmp_path / "train-{0..1}.tar").missing()


@pytest.mark.parametrize("path", ["{", "{a,b", "shards/train-{0..3.tar"])
def test_braces_that_do_not_close_are_refused(path: str) -> None:
    with pytest.raises(UserError, match=r"data\.path=.*a pattern is such as"):
        shards_of(path)


def test_a_shard_that_becomes_shorter_in_training_is_named(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "train.tar", samples(0, 40))
    splits = loaded(tmp_path, memory_limit=0).load(Patch())
    shard.write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.tar is shorter than it was"):
        splits.train.batch(torch.tensor([0]), None)


def _headers_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gathers the names of the shards whose headers are read from now on."""
    read: list[str] = []

    def spy(shard: Path, label: str) -> Iterator[TarSample]:
        read.append(shard.name)
        return read_shard(shard, label)

    monkeypatch.setattr(tar_shard, "read_shard", spy)
    return read


def _age(*shards: Path, seconds: float = 100) -> None:
    for shard in shards:
        os.utime(shard, (time.time() - seconds,) * 2)


def test_headers_are_read_once_until_a_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "shards"
    folder.mkdir()
    shards = [write_shard(folder / f"train-{n}.tar", samples(10 * n, 10)) for n in range(2)]
    read = _headers_read(monkeypatch)
    for _ in range(2):  # changed a moment ago: not cached
        loaded(folder).parts()
    assert read == ["train-0.tar", "train-1.tar"] * 2
    _age(*shards)
    first, second = ([part.decode_all() for part in loaded(folder).parts()] for _ in range(2))
    assert len(read) == 6
    torch.testing.assert_close(second, first, rtol=0, atol=0)

    # The same size and another time; then another size and the same time.
    ones = {name: b"1\n" for name in samples(10, 10) if name.endswith(".cls")}
    size, time_ns = shards[1].stat().st_size, shards[1].stat().st_mtime_ns
    write_shard(shards[1], samples(10, 10) | ones)
    assert shards[1].stat().st_size == size
    _age(shards[1], seconds=50)
    assert sum(int(part.target.sum()) for part in loaded(folder).parts()) == 15
    assert read[6:] == ["train-1.tar"]
    write_shard(shards[0], samples(0, 30))
    os.utime(shards[0], ns=(time_ns, time_ns))
    assert sum(len(part.target) for part in loaded(folder).parts()) == 40
    assert read[7:] == ["train-0.tar"]
    with pytest.raises(UserError, match=r"photos/0000 has no \.label"):  # another ending is another entry
        loaded(folder, label="label").parts()


@pytest.mark.parametrize("damage", ["", "{}", "[]", "cut", "changed"])
def test_a_damaged_index_is_computed_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path / "cache"))
    _age(write_shard(tmp_path / "train.tar", samples(0, 20)))
    expected = [part.files.where for part in loaded(tmp_path / "train.tar").parts()]
    (entry,) = (tmp_path / "cache" / "shards").iterdir()
    whole = entry.read_text()
    texts = {"cut": whole[:200], "changed": whole.replace("photos/0003", "photos/0004")}
    entry.write_text(texts.get(damage, damage))
    read = _headers_read(monkeypatch)
    for _ in range(2):
        torch.testing.assert_close([part.files.where for part in loaded(tmp_path / "train.tar").parts()], expected)
    assert read == ["train.tar"]
    assert entry.read_text() == whole


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path / "file"))
    _age(write_shard(tmp_path / "train.tar", samples(0, 20)))
    assert sum(len(part.target) for part in loaded(tmp_path / "train.tar").parts()) == 20
    assert "the index of shards is not cached" in caplog.text
    assert "set BLOCKYARD_CACHE=FOLDER" in caplog.text


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "a{0..9}",
        "{07..10..2}x{a,b}",
        "{a,{b,c},{1..3}d}",
        "{a..e..2}{Z..a}",
        "{ab}",
        "x{1{2,3}}",
        "\\{a,{b,c}",
        "{5..1}",
        "{,a}{}",
    ],
)
def test_patterns_are_counted_as_they_expand(pattern: str) -> None:
    """The number of names is known before any is made, and is that of braceexpand."""
    from braceexpand import braceexpand

    assert _count(pattern) == len(list(braceexpand(pattern)))


@pytest.mark.parametrize(
    "path",
    [
        "{a,b}" * 22,
        "a{0..99999999999}.tar",
        "{0..99}" * 9,
        "{",
        "a}",
        "{a,{b}",
        "{" * 2000 + "a,b" + "}" * 2000,
        f"{{1..{'9' * 5000}}}",
    ],
    ids=range(8),
)
def test_a_pattern_of_too_many_shards_is_refused_before_it_is_expanded(path: str) -> None:
    """Neither time nor memory is spent on a pattern of more shards than there can be, or with a brace too few."""
    with pytest.raises(UserError, match=r"data\.path="):
        shards_of(path)
    assert MOST_SHARDS == 1_000_000
