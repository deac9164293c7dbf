"""Files in folders of data that are no data, and names of files as another system writes them."""

from __future__ import annotations

import json
import unicodedata
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from blockyard.data.captions import Captions
from blockyard.data.files.file_names import data_files, spelled
from blockyard.data.files.sounds import SoundFiles
from blockyard.data.files.tables import files_of
from blockyard.data.files.token_shards import token_files
from blockyard.data.image_folder import ImageFolder
from blockyard.data.rows.new_inputs import input_files
from blockyard.data.table import Table
from blockyard.data.text_file import TextFile
from blockyard.data.webdataset import WebDataset, shards_of
from blockyard.errors import UserError
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.patch import Patch
from tests.support.image_files import samples, write_images, write_shard

HIDDEN = ("._a{0}", ".ipynb_checkpoints/a{0}", ".DS_Store", "Thumbs.db", "desktop.ini", "@eaDir/a{0}/thumb{0}")


def strew(folder: Path, suffix: str) -> None:
    """Write what systems and programs leave in a folder of files with this suffix."""
    for name in HIDDEN:
        path = folder / name.format(suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no data")


def test_a_folder_of_images_leaves_out_what_is_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "blockyard")
    root = tmp_path / ".cache"  # the name of the root itself hides nothing
    write_images(root, {"train": 10, "val": 4, "test": 4})
    before = [sorted(part.files) for part in ImageFolder(root=str(root), size=8).parts()]
    for part in ("train", "val", "test"):
        strew(root / part, ".png")
        strew(root / part / "ant", ".png")
    (root / "train" / "ant" / "0.heic").write_bytes(b"of a phone")
    (root / "train" / "0.png").write_bytes(b"in no class")
    data = ImageFolder(root=str(root), size=8)
    assert [sorted(part.files) for part in data.parts()] == before
    assert data.names == ["ant", "bee"]
    assert (
        f"{root / 'train'}: files left out: 12 hidden or of the system, such as .DS_Store; "
        "1 of other formats, such as ant/0.heic" in caplog.text
    )
    assert f"{root / 'val'}: files left out: 12 hidden" in caplog.text
    assert f"{root / 'train'}: 1 images lie in no folder of a class and are left out" in caplog.text


def test_every_format_that_is_opened_is_found_in_a_folder(tmp_path: Path) -> None:
    names = ["0.gif", "1.jfif", "2.JPG", "3.pbm", "4.png"]
    for name in ("ant", "bee"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for file in names:
            form = {"gif": "GIF", "pbm": "PPM", "png": "PNG"}.get(file.rpartition(".")[2], "JPEG")
            Image.new("1", (8, 8)).save(tmp_path / "train" / name / file, form)
    parts = ImageFolder(root=str(tmp_path), size=8, test_fraction=0.2, validation_fraction=0.2).parts()
    assert sorted(file.name for part in parts for file in part.files) == sorted(names * 2)


def test_folders_of_splits_in_any_case(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 10, "val": 4, "test": 5})
    lower = [part.target for part in ImageFolder(root=str(tmp_path), size=8).parts()]
    for name, other in (("train", "Train"), ("val", "VAL"), ("test", "Test")):
        (tmp_path / name).rename(tmp_path / other)
    data = ImageFolder(root=str(tmp_path), size=8)
    assert data.missing() is None
    torch.testing.assert_close([part.target for part in data.parts()], lower)
    (tmp_path / "train").mkdir()
    if len(list(tmp_path.iterdir())) == 4:  # the disk tells cases apart
        with pytest.raises(UserError, match="has Train and train, all for training; keep one of them"):
            data.parts()


def test_other_folders_leave_out_what_is_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Recordings, shards, token ids, tables, texts and new inputs, each with one line that counts the others."""
    caplog.set_level("INFO", "blockyard")
    for suffix in (".wav", ".tar", ".bin", ".csv", ".txt", ".png"):
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        (folder / f"train{suffix}").write_bytes(b"x")
        strew(folder, suffix)
    with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
        for name in ("a.wav", "__MACOSX/._a.wav"):
            archive.writestr(name, b"x")
    assert SoundFiles(tmp_path / "wav").names() == ["train.wav"]
    assert SoundFiles(tmp_path / "sounds.zip").names() == ["a.wav"]
    assert shards_of(str(tmp_path / "tar")) == [tmp_path / "tar" / "train.tar"]
    assert token_files(tmp_path / "bin") == [tmp_path / "bin" / "train.bin"]
    assert files_of(str(tmp_path / "csv")) == [tmp_path / "csv" / "train.csv"]
    assert TextFile(path=str(tmp_path / "txt"))._files() == [tmp_path / "txt" / "train.txt"]
    assert input_files(tmp_path / "png", {".png"}, "image") == [tmp_path / "png" / "train.png"]
    token_files(tmp_path / "bin")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == 7
    assert [line for line in lines if ": files left out: " not in line] == []


def test_a_name_is_found_in_its_other_spellings() -> None:
    composed, decomposed = (unicodedata.normalize(form, "épée/café.png") for form in ("NFC", "NFD"))
    for disk in (composed, decomposed):
        for name in (composed, decomposed, composed.replace("/", "\\"), decomposed.replace("/", "\\")):
            assert spelled(name, {disk}.__contains__) == disk
    assert spelled("cafe.png", {composed}.__contains__) is None
    assert spelled("a\\0.png", {"a\\0.png", "a/0.png"}.__contains__) == "a\\0.png"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_tables_name_files_as_another_system_does(form: str, tmp_path: Path) -> None:
    other = "NFD" if form == "NFC" else "NFC"
    (tmp_path / "a").mkdir()
    rows = []
    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / "a" / unicodedata.normalize(form, f"é{number}.png"))
        rows.append((unicodedata.normalize(other, f"a\\é{number}.png"), "ab"[number % 2]))
    (tmp_path / "t.csv").write_text("\n".join(["image,label", *map(",".join, rows)]), encoding="utf-8")
    lines = [json.dumps({"file_name": name, "text": text}) for name, text in rows]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    table = Table(path=str(tmp_path / "t.csv"), image="image", text=None, size=8).load(Patch(size=4))
    captions = Captions(path=str(tmp_path), size=8).load(Char())
    assert [len(split) for split in table] == [len(split) for split in captions] == [16, 2, 2]
    (tmp_path / "0.wav").write_bytes(b"x")
    name = unicodedata.normalize(form, "é.wav")
    (tmp_path / "a" / name).write_bytes(b"sound")
    with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
        archive.writestr(f"a/{name}", b"sound")
    for root in (tmp_path, tmp_path / "sounds.zip"):
        assert SoundFiles(root).content(unicodedata.normalize(other, "a\\é.wav")) == b"sound"


def test_a_name_that_leads_out_of_the_folder_is_no_image_of_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "out.png")
    (tmp_path / "in" / "metadata.jsonl").write_text(json.dumps({"file_name": "..\\out.png", "text": "x"}))
    with pytest.raises(UserError, match="its image is neither in the folder nor in a"):
        Captions(path=str(tmp_path / "in"), size=8).load(Char())


def test_a_sample_whose_name_has_a_dot_is_explained(tmp_path: Path) -> None:
    """The name of a sample of webdataset ends at its first dot, whatever the files are called."""
    files = {f"22.{number:02}.{ending}": b"1" for number in range(3) for ending in ("png", "cls")}
    shard = write_shard(tmp_path / "train.tar", files)
    explained = "a sample's name ends at its first dot: 22.00.png is the file .00.png of the sample 22"
    with pytest.raises(UserError, match=f"22 has no .cls.*; {explained}"):
        WebDataset(path=str(shard)).parts()
    shard = write_shard(tmp_path / "images.tar", {"22.cls": b"1", "22.00.png": b"", "22.01.png": b""})
    with pytest.raises(UserError, match=f"22 has 2 images beside its class.*; {explained}"):
        WebDataset(path=str(shard)).parts()
    shard = write_shard(tmp_path / "none.tar", {"22.png": b""})
    with pytest.raises(UserError, match=r"22 has no .cls, which holds its class, only .png; set data.label$"):
        WebDataset(path=str(shard)).parts()
    assert len(WebDataset(path=str(write_shard(tmp_path / "sound.tar", samples(0, 30)))).parts()[0].target)


def test_sorted_files_of_a_folder(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b/1.png", "a/2.png", "a/10.png")]
    assert data_files(tmp_path, files) == sorted(files)
