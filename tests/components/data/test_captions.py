"""Folders of images with captions: files and archives, splits, and every line that cannot be used."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from blockyard.cli import main
from blockyard.data.captions import Captions
from blockyard.errors import UserError
from blockyard.tokenizer.word import Word
from tests.support.captioned_files import picture, record, write_captions
from tests.support.paths import SHARED

EMOJI = SHARED / "emoji_captions"


def rewrite(folder: Path, **changes: Any) -> Path:
    """Change lines of metadata.jsonl, by `line_N`: a text, or keys of its object; None removes one."""
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    for key, change in changes.items():
        number = int(key.removeprefix("line_"))
        if isinstance(change, str):
            lines[number - 1] = change
        else:
            kept = {**json.loads(lines[number - 1]), **change}
            lines[number - 1] = json.dumps({name: value for name, value in kept.items() if value is not None})
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


def test_the_splits_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    """An image that moves from test to training is other data, and so is another draw."""
    prints = []
    for change in ("test", "train"):
        folder = rewrite(write_captions(tmp_path / change), line_1={"split": change})
        data = Captions(path=str(folder), size=10)
        data.load(Word())
        prints.append(data.fingerprint())
    for seed in (0, 1):
        folder = write_captions(tmp_path / str(seed))
        lines = {f"line_{number}": {"split": None} for number in range(1, 49)}
        data = Captions(path=str(rewrite(folder, **lines)), size=10, split_seed=seed)
        data.load(Word())
        prints.append(data.fingerprint())
    assert len(set(prints)) == 4


@pytest.mark.parametrize("archive", [False, True])
def test_images_belong_to_their_captions(archive: bool, tmp_path: Path) -> None:
    data, tokenizer = Captions(path=str(write_captions(tmp_path, archive=archive)), size=10), Word()
    splits = data.load(tokenizer)
    assert [len(split) for split in splits] == [24, 12, 12]
    for split, part in zip(splits, ("train", "val", "test"), strict=True):
        own = [number for number in range(48) if record(number)["split"] == part]
        batch = split.batch(torch.arange(len(own)), None)
        for row, number in enumerate(own):
            name, text = split.pairs[row]
            assert (name, text) == (record(number)["file_name"], record(number)["text"])
            shown = (batch.source[row] + 1) * 127.5
            torch.testing.assert_close(shown, picture(number).permute(2, 0, 1).float(), atol=1e-3, rtol=0)
            assert tokenizer.decode(batch.inputs[row, 1 : int(batch.lengths[row]) - 1].tolist()) == text
    assert data.spec.source.shape == (3, 10, 10)
    blank = Captions(path=str(tmp_path), size=10, blank=True).load(Word()).test.batch(torch.arange(3), None)
    assert float(blank.source.abs().max()) == 0


def test_without_splits_they_are_drawn(tmp_path: Path) -> None:
    write_captions(tmp_path)
    rewrite(tmp_path, **{f"line_{n + 1}": {"split": None} for n in range(48)})
    splits = Captions(path=str(tmp_path), test_fraction=0.25, validation_fraction=0.25).load(Word())
    assert [len(split) for split in splits] == [24, 12, 12]
    names = [{name for name, _ in split.pairs} for split in splits]
    assert len(names[0] | names[1] | names[2]) == 48


@pytest.mark.parametrize(
    ("mode", "pixel", "expected"),
    [("P", 1, (255, 0, 0)), ("RGBA", (255, 0, 0, 255), (255, 0, 0)), ("RGBA", (9, 9, 9, 0), (255, 255, 255))],
)
def test_other_modes_and_sizes_are_brought_to_one(mode: str, pixel: Any, expected: Any, tmp_path: Path) -> None:
    write_captions(tmp_path)
    image = Image.new(mode, (30, 20), pixel)
    if mode == "P":
        image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "pictures" / "0.png")
    source = Captions(path=str(tmp_path), size=8).load(Word()).train.batch(torch.tensor([0]), None).source
    shown = ((source[0] + 1) * 127.5).round()
    assert source.shape == (1, 3, 8, 8)
    torch.testing.assert_close(shown, torch.tensor(expected).float()[:, None, None].expand(3, 8, 8))


BAD = {
    "not valid JSON": {"line_3": "{"},
    "no file_name": {"line_3": {"file_name": None}},
    "an empty text": {"line_3": {"text": "  "}},
    "its image is named in an earlier line": {"line_3": {"file_name": "pictures/1.png"}},
    "its image is neither in the folder nor in a .zip": {"line_3": {"file_name": "pictures/none.png"}},
    "its split is none of train": {"line_3": {"split": "holdout"}},
}


@pytest.mark.parametrize(("problem", "changes"), BAD.items(), ids=BAD)
def test_a_line_that_cannot_be_used_is_named(
    problem: str, changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(write_captions(tmp_path / "own"), **changes)
    overrides = ["experiment=captions", f"data.path={tmp_path / 'own'}", "logger=none", f"outputs={tmp_path}"]
    assert main(["train", *overrides]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"metadata.jsonl, line 3: {problem}" in line


def test_all_lines_are_named_at_once(tmp_path: Path) -> None:
    changes = {"line_3": {"text": ""}, "line_7": {"text": None}, "line_9": {"file_name": "../9.png"}}
    rewrite(write_captions(tmp_path), **changes)
    with pytest.raises(UserError, match=r"lines 3, 7: an empty text.*line 9: its image is neither"):
        Captions(path=str(tmp_path)).load(Word())


def test_all_images_that_are_none_are_named_at_once(tmp_path: Path) -> None:
    write_captions(tmp_path)
    for number in (4, 9):
        (tmp_path / "pictures" / f"{number}.png").write_text("no image")
    with pytest.raises(UserError, match=r"pictures/4\.png cannot be read as an image.*pictures/9\.png cannot"):
        Captions(path=str(tmp_path)).load(Word())


def test_a_damaged_archive_and_an_unknown_key_are_refused(tmp_path: Path) -> None:
    write_captions(tmp_path, archive=True)
    with pytest.raises(
        UserError, match=r"data\.text=caption: .* has no such column; it has 'file_name', 'text', 'split'"
    ):
        Captions(path=str(tmp_path), text="caption").load(Word())
    (tmp_path / "images.zip").write_bytes((tmp_path / "images.zip").read_bytes()[:100])
    with pytest.raises(UserError, match=r"images\.zip cannot be read as an archive"):
        Captions(path=str(tmp_path)).load(Word())


def test_words_that_training_lacks_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(write_captions(tmp_path), line_4={"text": "a purple square"})  # of the test split
    with caplog.at_level(logging.WARNING, "blockyard"):
        Captions(path=str(tmp_path)).load(Word())
    assert "1 of 12 test captions have words that training lacks" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "blockyard"):
        Captions(path=str(tmp_path), context=4).load(Word())
    assert caplog.text.count("captions are left out") == 0
    with pytest.raises(UserError, match="no train caption has so few tokens"):
        Captions(path=str(tmp_path), context=3).load(Word())


@pytest.mark.full
@pytest.mark.skipif(not EMOJI.is_dir(), reason="no shared data beside the checkout")
def test_shared_emoji() -> None:
    data = Captions(path=str(EMOJI), size=16)
    splits = data.load(Word())
    assert sum(map(len, splits)) == 3812
    for split, part in zip(splits, ("train", "val", "test"), strict=True):
        lines = [json.loads(line) for line in (EMOJI / "metadata.jsonl").read_text().splitlines()]
        assert [text for _, text in split.pairs] == [each["text"] for each in lines if each["split"] == part]
    with zipfile.ZipFile(EMOJI / "images.zip") as archive:
        assert splits.test.pairs[0][0] in archive.namelist()
