"""The contents of a file: the data that reads it, its target, and a sample of one that is too large."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from blockyard.ask import sample as samples
from blockyard.ask.look import look
from tests.ask import files

# The writer of a file -> overrides by which it is read, without its path.
EXPECTED: dict[str, tuple[files.Writer, set[str]]] = {
    "texts": (
        files.write_texts,
        {"data=table", "data.text=review", "data.label=kind", "data.test_fraction=0.3"},
    ),
    "numbers": (
        files.write_numbers,
        {"data=table", "data.columns=[width,height]", "data.label=size", "data.test_fraction=0.3"},
    ),
    "real values": (
        partial(files.write_numbers, real=True),
        {"data=table", "data.columns=[width,height]", "data.target=[size]", "data.test_fraction=0.3"},
    ),
    "time series": (files.write_steps, {"data=series_file", "data.time=day"}),
    "a series of years": (partial(files.write_steps, time="year"), {"data=series_file", "data.time=year"}),
    "translations": (files.write_translations, {"data=translation", "data.source=en", "data.target=de"}),
    "molecules": (files.write_molecules, {"data=molecules", "data.split=null"}),
    "arrays": (files.write_arrays, {"data=arrays", "data.test_fraction=0.3"}),
    "series": (files.write_series, {"data=series_table"}),
    "running text": (files.write_play, {"data=text_file"}),
    "images": (files.write_folder, {"data=image_folder", "data.test_fraction=0.3"}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_is_read_as_what_it_holds(tmp_path: Path, name: str) -> None:
    write, expected = EXPECTED[name]
    path = write(tmp_path)
    settings = look(path, {}, tmp_path).settings
    overrides = {setting.override for setting in settings if setting.key not in ("data.path", "data.root")}
    assert overrides == expected
    assert [setting.value for setting in settings if setting.key in ("data.path", "data.root")] == [str(path)]


def test_a_folder_of_recordings_is_read_by_its_table(tmp_path: Path) -> None:
    (tmp_path / "en").mkdir()
    lines = ["path\ttext"]
    for number in range(80):
        (tmp_path / f"en/{number}.wav").touch()
        lines.append(f"en/{number}.wav\tthe words of recording {number}")
    (tmp_path / "manifest.tsv").write_text("\n".join(lines), encoding="utf-8")
    settings = {setting.key: setting.value for setting in look(tmp_path, {}, tmp_path).settings}
    assert settings["data"] == "speech"
    assert settings["data.path"] == str(tmp_path / "manifest.tsv")


def test_typed_overrides_are_not_chosen(tmp_path: Path) -> None:
    path = files.write_numbers(tmp_path)
    settings = look(path, {"data.target": "[height]"}, tmp_path).settings
    overrides = {setting.override for setting in settings}
    assert "data.columns=[width]" in overrides
    assert not any(setting.key in ("data.label", "data.target") for setting in settings)


def test_numbers_with_points_are_no_dates(tmp_path: Path) -> None:
    """12.50 in the first column is a number, 12.5.2024 a date."""
    numbers = tmp_path / "numbers.csv"
    _write_lines(numbers, "width,height,depth", (f"{n}.25,{n / 7:.3f},{n / 3:.3f}" for n in range(80)))
    settings = {setting.key: setting.value for setting in look(numbers, {}, tmp_path).settings}
    assert settings["data"] == "table"
    assert settings["data.columns"] == ["width", "height"]
    dates = tmp_path / "dates.csv"
    _write_lines(dates, "day,sold", (f"{1 + n % 28}.{1 + n // 28}.2024,{n / 3:.3f}" for n in range(80)))
    assert look(dates, {}, tmp_path).settings[0].override == "data=series_file"


def test_a_column_that_is_left_out_for_one_cell_is_named_with_it(tmp_path: Path) -> None:
    path = tmp_path / "marks.csv"
    _write_lines(path, "a,b,kind", (f"{'n/a' if n == 70 else n / 7},{n / 3},{'xy'[n % 2]}" for n in range(80)))
    reasons = [setting.reason for setting in look(path, {}, tmp_path).settings if setting.key == "data.columns"]
    assert reasons == ["the columns of numbers; left out: a, where 'n/a' is not a number"]


def test_several_typed_labels_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    _write_lines(path, "text,red,round", (f"some words about number {n},{n % 2},{n // 2 % 2}" for n in range(80)))
    contents = look(path, {"data.label": "[red,round]"}, tmp_path)
    assert contents.summary == "80 texts with several targets each: red, round"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".csv.gz", ".parquet"])
def test_a_large_table_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """The sample has whole rows of the table, in order, of all its parts; twice the same ones."""
    rows = [{"text": f'row {number} "said"' + " so" * 20, "label": "ab"[number % 2]} for number in range(4000)]
    path = tmp_path / f"large{suffix}"
    _write(path, rows)
    size = path.stat().st_size * (samples.PACKED if suffix.endswith(".gz") else 1)
    monkeypatch.setattr(samples, "MOST_BYTES", size // 2)
    monkeypatch.setattr(samples, "SAMPLED_BYTES", size // 4)
    assert samples.is_large(path)
    folders = [tmp_path / "first", tmp_path / "second"]
    drawn = []
    for folder in folders:
        folder.mkdir()
        drawn.append(samples.sample_table(path, folder))
    first, second = drawn
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.of_rows == 4000
    kept = _read(first.path)
    assert len(kept) == first.num_rows == pytest.approx(1000, abs=110)  # four standard deviations
    numbers = [int(row["text"].split()[1]) for row in kept]
    assert [rows[number] for number in numbers] == kept
    assert numbers == sorted(numbers)
    assert sum(number < 2000 for number in numbers) == pytest.approx(500, abs=90)


def test_a_sampled_table_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.write_texts(tmp_path, count=4000)
    monkeypatch.setattr(samples, "MOST_BYTES", 1000)
    monkeypatch.setattr(samples, "SAMPLED_BYTES", path.stat().st_size // 10)
    folder = tmp_path / "samples"
    folder.mkdir()
    subject = look(path, {}, folder)
    assert subject.sample is not None
    assert subject.sample.path == folder / "texts-sample.tsv"
    assert f"{subject.sample.num_rows:,} texts" in subject.summary


def _write_lines(path: Path, header: str, lines: Iterable[str]) -> None:
    path.write_text("\n".join([header, *lines]), encoding="utf-8")


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        elif path.suffix == ".tsv":
            file.write("text\tlabel\n")
            file.writelines(f"{row['text']}\t{row['label']}\n" for row in rows)
        else:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows)


def _read(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows: list[dict[str, str]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    if path.suffix == ".tsv":
        return [dict(zip(("text", "label"), line.split("\t"), strict=True)) for line in lines[1:]]
    return list(csv.DictReader(lines))
