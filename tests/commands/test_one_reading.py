"""A command reads the files of its data once, and again where they were written in between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockyard.cli import main
from blockyard.data import arrays
from blockyard.data.files import table_rows
from blockyard.data.hf import HuggingFace
from blockyard.data.splits import loaded
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.tokenizer.byte import Byte
from tests.support.tables import write_rows
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

SHORT = (*ON_CPU, *ONE_LAYER, "data.batch_size=8", "position=none", *steps(2, 2))
COLUMNS = ("data.columns=[a,b]", "tokenizer=columns")
ROWS = [{"a": n + 0.5, "b": n % 7, "label": ("no", "yes")[n % 2]} for n in range(60)]


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    loaded.forget()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every reading of a table, an array, or a split of a saved data set, in turn."""
    every: list[str] = []

    def counted(owner: object, name: str, label: Callable[..., str]) -> None:
        read = getattr(owner, name)

        def reading(*args: object) -> object:
            every.append(label(*args))
            return read(*args)

        monkeypatch.setattr(owner, name, reading)

    counted(table_rows, "read_file", lambda path, columns: path.name)
    counted(arrays, "read_array", lambda path, name, key: name)
    counted(HuggingFace, "_file_rows", lambda data, name, columns, file: name)
    return every


def long_ago(path: Path) -> Path:
    """Date a file, or all files of a folder, an hour back."""
    then = time.time() - 3600
    for each in [path, *path.rglob("*")]:
        os.utime(each, (then, then))
    return path


def table(folder: Path) -> tuple[Path, tuple[str, ...], list[str]]:
    return write_rows(folder / "x.csv", ROWS), ("data=table", *COLUMNS), ["x.csv"]


def parts(folder: Path) -> tuple[Path, tuple[str, ...], list[str]]:
    (folder / "parts").mkdir()
    for number in range(2):
        write_rows(folder / "parts" / f"{number}.csv", ROWS[number::2] + ROWS[: number + 1])
    return folder / "parts", ("data=table", *COLUMNS), ["0.csv", "1.csv"]


def npz(folder: Path) -> tuple[Path, tuple[str, ...], list[str]]:
    values = np.array([[row["a"], row["b"]] for row in ROWS])
    np.savez(folder / "x.npz", x=values, y=np.array([row["label"] for row in ROWS]))
    return folder / "x.npz", ("data=arrays", "tokenizer=columns"), ["x", "y"]


def saved(folder: Path) -> tuple[Path, tuple[str, ...], list[str]]:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(folder / "hf"))
    return folder / "hf", ("data=hf", *COLUMNS), [""]


@pytest.mark.parametrize("written", [table, pytest.param(parts, marks=pytest.mark.full), npz, saved])
def test_check_train_and_predict_read_once(
    written: Callable[[Path], tuple[Path, tuple[str, ...], list[str]]],
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path, options, once = written(tmp_path)
    config = (*SHORT, *options, f"data.path={long_ago(path)}")
    assert main(["check", *config]) == 0
    assert reads == once
    loaded.forget()  # as at the start of another process
    reads.clear()
    assert main(["train", *config, "name=once"]) == 0
    assert reads == once
    assert loaded._entry is None, "a run keeps its data alone"
    reads.clear()
    new = write_rows(tmp_path / "new.csv", [{"a": 1, "b": 2}])
    if options[0] == "data=arrays":
        new = tmp_path / "new.npy"
        np.save(new, np.zeros((1, 2)))
    assert main(["predict", "run=once", str(new)]) == 0
    assert [each for each in reads if not each.startswith("new")] == once


def texts(path: Path, *, column: str = "word") -> Path:
    return write_rows(path, [{"text": f"{column} {n}", "label": n % 2} for n in range(40)])


def test_a_file_that_changes_after_the_check_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    path = long_ago(texts(tmp_path / "x.csv"))
    first = Table(path=str(path))
    assert first.spec.class_names == ("0", "1")
    first_times = path.stat()
    texts(path, column="wore")  # of the same size, and then of the same time
    os.utime(path, ns=(first_times.st_atime_ns, first_times.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (first_times.st_size, first_times.st_mtime_ns)
    second = Table(path=str(path))
    assert second.rows.texts("text")[0] == "wore 0"
    second.load(Byte())
    first.load(Byte())
    assert first.fingerprint() != second.fingerprint()
    assert reads == ["x.csv"] * 2


def test_a_file_that_is_gone_or_damaged_after_the_check_is_noticed(tmp_path: Path) -> None:
    path = long_ago(texts(tmp_path / "x.csv"))
    assert Table(path=str(path)).spec.class_names
    path.write_text("text,label\n")
    with pytest.raises(UserError, match="has no rows"):
        Table(path=str(path)).load(Byte())
    path.unlink()
    assert "no file" in str(Table(path=str(path)).missing())


def test_a_file_that_joins_a_folder_is_read(tmp_path: Path) -> None:
    long_ago(texts(tmp_path / "0.csv"))
    assert len(Table(path=str(tmp_path)).rows) == 40
    long_ago(texts(tmp_path / "1.csv", column="more"))
    assert len(Table(path=str(tmp_path)).rows) == 80


def test_a_file_of_this_moment_and_other_options_are_read_anew(tmp_path: Path, reads: list[str]) -> None:
    path = texts(tmp_path / "x.csv")
    for _ in range(2):
        assert Table(path=str(path)).spec
    assert reads == ["x.csv"] * 2
    reads.clear()
    long_ago(path)
    for options in ({}, {}, {"text": "label"}, {}):
        assert Table(path=str(path), **options).rows
    assert reads == ["x.csv"] * 3  # one entry is kept


class Elsewhere(Table):
    """May read what neither its options nor its files tell."""


def test_a_class_from_elsewhere_always_reads(tmp_path: Path, reads: list[str]) -> None:
    path = long_ago(texts(tmp_path / "x.csv"))
    for _ in range(2):
        assert Elsewhere(path=str(path)).rows
    assert reads == ["x.csv"] * 2
