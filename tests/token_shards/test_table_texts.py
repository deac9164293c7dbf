"""`blockyard tokenize` of a table's column: the shards of a plain file with the same texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from blockyard.cli import main

LINES = [f"{n} \u2014 na\u00efve \u65e5\u672c {n * n}" for n in range(200)]


def write_table(path: Path) -> Path:
    """The lines as column `body` of a table."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"id": list(range(len(LINES))), "body": LINES}), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("\n".join(["id,body", *(f"{n},{x}" for n, x in enumerate(LINES))]).encode()))
    else:
        path.write_text("".join(json.dumps({"id": 1, "body": line}) + "\n" for line in LINES))
    return path


def tokenize(*arguments: object) -> int:
    return main(["tokenize", *map(str, arguments), "tokenizer=byte", "workers=1"])


@pytest.mark.sampled(100)
@pytest.mark.parametrize("name", ["x.jsonl", "x.csv.gz", "x.parquet"])
def test_the_shards_are_those_of_a_plain_file(tmp_path: Path, name: str) -> None:
    table, plain = write_table(tmp_path / name), tmp_path / "plain.txt"
    plain.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="")
    assert tokenize(table, f"out={tmp_path / 'a'}", "column=body") == 0
    assert tokenize(plain, f"out={tmp_path / 'b'}") == 0
    assert not (tmp_path / "a.texts").exists()
    for split in ("train", "validation", "test"):
        ours, expected = ((tmp_path / out / f"{split}-00000.bin").read_bytes() for out in ("a", "b"))
        assert ours == expected != b""
    before = (tmp_path / "a" / "manifest.json").read_bytes()
    assert tokenize(table, f"out={tmp_path / 'a'}", "column=body") == 0
    assert (tmp_path / "a" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("x.jsonl", None, "x.jsonl is a table; name the column of its texts"),
        ("x.jsonl", "text", "text"),
        ("plain.txt", "body", "column=body has no effect"),
        ("empty.jsonl", "body", "empty.jsonl, line 2: no body"),
        ("x.json", "body", "x.json is JSON"),
    ],
)
def test_bad_input_is_refused(
    name: str, column: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "x.jsonl")
    (tmp_path / "plain.txt").write_text("a text")
    (tmp_path / "empty.jsonl").write_text('{"body": "a"}\n{"body": " "}\n')
    (tmp_path / "x.json").write_text("{}")
    assert tokenize(tmp_path / name, f"out={tmp_path / 'out'}", *([f"column={column}"] if column else [])) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_folder_of_the_same_name_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The texts of tables lie in OUT.texts, whose other files are not removed with them."""
    mine = tmp_path / "a.texts" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("x")
    assert tokenize(write_table(tmp_path / "x.jsonl"), f"out={tmp_path / 'a'}", "column=body") == 2
    assert "a.texts" in capsys.readouterr().err
    assert mine.read_text() == "x"
