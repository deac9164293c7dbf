"""Bad data: `check` or `train` ends with exit code 2 and one message that names file, row and column."""

from __future__ import annotations

import csv
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.cli import main
from blockyard.runs.changed_data import named_files
from tests.support.tables import write_pictures, write_rows
from tests.support.tiny import ON_CPU, ONE_LAYER

TEXT = ("data=table", "tokenizer=byte", "data.context=16")
NUMBERS = ("data=table", "data.columns=[a,b]", "tokenizer=columns", "position=none")
IMAGES = ("data=table", "data.image=file", "data.size=8", "tokenizer=patch")
VECTORS = ("data=arrays", "tokenizer=columns", "position=none")


def texts(**changed: Any) -> list[dict[str, Any]]:
    """Rows of text, label, split and id; `row_COLUMN` changes a cell."""
    rows = [
        {"text": f"t{n}", "label": n % 2, "split": ("train", "val", "test")[n // 2 % 3], "id": n} for n in range(24)
    ]
    return _changed(rows, changed)


def numbers(**changed: Any) -> list[dict[str, Any]]:
    return _changed([{"a": n % 5, "b": n % 3, "y": n / 2, "label": n % 2} for n in range(24)], changed)


def _changed(rows: list[Any], changed: dict[str, Any]) -> list[dict[str, Any]]:
    for key, value in changed.items():
        number, _, column = key.removeprefix("row").partition("_")
        rows[int(number)][column] = value
    return rows


def table(rows: list[dict[str, Any]]) -> Callable[[Path], Path]:
    return lambda folder: write_rows(folder / "x.csv", rows)


def bytes_of(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def pictures(damage: bool) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = write_pictures(folder, 24)
        if damage:
            (folder / "3.png").write_bytes(b"no image")
            return path
        with path.open() as file:
            rows = list(csv.DictReader(file))
        rows[5]["file"] = "gone.png"
        return write_rows(path, rows)

    return write


def arrays(**content: np.ndarray) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / "x.npz", **content)
        return folder / "x.npz"

    return write


RAGGED = np.array([[1.0], [1.0, 2.0]], dtype=object)
BAD: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], str]] = {
    "empty file": (bytes_of("x.csv", b""), TEXT, "x.csv is empty"),
    "missing column": (table(texts()), (*TEXT, "data.label=kind"), "data.label=kind: FOLDER/x.csv has no such column"),
    "unseen label": (table(texts(row2_label=7)), TEXT, "x.csv, line 4: no training row has the label '7'"),
    "nan target": (table(numbers(row3_y="nan")), (*NUMBERS, "data.target=[y]", "objective=regress"), "line 5: no y"),
    "unreadable image": (pictures(True), IMAGES, "pictures.csv, line 5, file: FOLDER/3.png cannot be read as an image"),
    "missing image": (
        pictures(False),
        IMAGES,
        "pictures.csv, line 7: file names a missing file, such as FOLDER/gone.png",
    ),
    "mixed dtypes": (table(numbers(row4_b="three")), NUMBERS, "x.csv, line 6: b is not a number, such as 'three'"),
    "wrong encoding": (
        bytes_of("x.csv", b"text,label\nab,1\n\xffb,0\n"),
        TEXT,
        "x.csv, line 3: text is not UTF-8 text",
    ),
    "ragged rows": (bytes_of("x.csv", b"text,label\na,1,2\nb,0\n"), TEXT, "x.csv, line 2: more cells than the 2 of"),
    "ragged arrays": (arrays(x=RAGGED, y=np.arange(2)), VECTORS, "x.npz, x: an array of objects, such as rows of"),
    "nan in an array": (arrays(x=np.ones((4, 2)), y=np.array([0, 1, np.nan, 1])), VECTORS, "x.npz, y, rows 2 (from 0)"),
    "duplicated ids": (table(texts(row2_id=0)), (*TEXT, "data.group=id"), "lines 2, 4: 1 of the id are in several spl"),
    "damaged parquet": (bytes_of("x.parquet", b"PAR1"), TEXT, "x.parquet cannot be read"),
}


@pytest.mark.parametrize(("write", "overrides", "message"), BAD.values(), ids=BAD)
def test_bad_data_is_refused_with_its_place(
    write: Callable[[Path], Path],
    overrides: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path)
    every = (*overrides, f"data.path={path}", f"outputs={tmp_path / 'outputs'}", *ON_CPU, *ONE_LAYER)
    assert main(["train", *every, "trainer.max_steps=1"]) == 2
    error = capsys.readouterr().err
    assert message.replace("FOLDER", str(tmp_path)) in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("write", "option", "names"),
    [
        (table(texts(row2_label=7)), "data.label=label", ("x.csv", "label", "'7'")),
        (table(texts()), "data.label=kind", ("x.csv", "data.label=kind")),
        (table(texts()), "data.text=body", ("x.csv", "data.text=body")),
    ],
    ids=["class without rows", "missing label", "missing text"],
)
def test_check_reads_the_table(
    write: Callable[[Path], Path],
    option: str,
    names: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`check` refuses a class without a training row and a column that the table lacks, and names them."""
    assert main(["check", *TEXT, option, f"data.path={write(tmp_path)}", *ON_CPU, *ONE_LAYER]) == 2
    error = capsys.readouterr().err
    assert [name for name in names if name not in error] == []


def test_a_folder_that_cannot_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a run has a folder, with exit code 2: whatever the file system refuses, root is refused it as well."""

    def refused(self: Path, pattern: str) -> list[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", f"{self}/private")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "rglob", refused)
    overrides = ("data=text_file", f"data.path={tmp_path}", "model=decoder", "objective=next_token", "head=token")
    assert main(["train", *overrides, "tokenizer=byte", *ON_CPU, *ONE_LAYER]) == 2
    assert f"{tmp_path}/private cannot be read: Permission denied" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_goes_while_its_folder_is_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("x")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert [each.st_size for each in named_files({"path": str(tmp_path)}) if each.st_size == 1] == [1]
