"""Texts that runs wrote, side by side."""

from __future__ import annotations

import json
from pathlib import Path

from blockyard.report.arms.written_texts import FILE, MAX_ROWS, MAX_TEXT, written_texts
from blockyard.report.load.run_record import LoadedRun


def record(folder: Path, arm: str, texts: list[tuple[str, str, str]] | None, seed: int = 0) -> LoadedRun:
    path = folder / arm / f"s{seed}"
    path.mkdir(parents=True)
    if texts is not None:
        samples = [{"source": a, "reference": b, "written": c, "exact": b == c} for a, b, c in texts]
        (path / FILE).write_text("".join(json.dumps(row) + "\n" for row in ({"scores": {}}, *samples)))
    return LoadedRun(arm, seed, path, "done")


def test_texts_of_the_same_sources_stand_side_by_side(tmp_path: Path) -> None:
    sources = [("1", "one"), ("2", "two"), ("3", "three")]
    records = [
        record(tmp_path, "a", None),
        record(tmp_path, "a", [(s, r, r) for s, r in sources], seed=1),
        record(tmp_path, "b", [(s, r, "two") for s, r in sources]),
        record(tmp_path, "c", [("9", "nine", "nine")]),
        record(tmp_path, "d", None),
    ]
    result = written_texts(records)
    assert result is not None
    assert result.arms == {"a": 1, "b": 0}
    assert [row.source for row in result.rows] == ["1", "3", "2"]  # what b got wrong comes first
    assert result.rows[0].written == {"a": ["one", True], "b": ["two", False]}
    assert result.left_out == ["c/s0: other sources"]
    assert written_texts(records[:1]) is None


def test_texts_of_other_weights_are_left_out(tmp_path: Path) -> None:
    own = record(tmp_path, "a", [("1", "one", "one")])
    own.summary["weights"] = "best.ckpt"
    assert written_texts([own]) is not None
    lines = (own.path / FILE).read_text().splitlines()
    for weights, left_out in (("best.ckpt", []), ("last.ckpt", [f"a/s0: {FILE} is of last.ckpt, and the run's "])):
        (own.path / FILE).write_text("\n".join([json.dumps({"weights": weights}), *lines[1:]]) + "\n")
        result = written_texts([own])
        assert result is not None
        assert [text[: len(start)] for text, start in zip(result.left_out, left_out, strict=True)] == left_out


def test_a_text_may_hold_any_end_of_a_line(tmp_path: Path) -> None:
    own = record(tmp_path, "a", None)
    text = "one\u2028two\u0085three"
    sample = {"source": text, "reference": text, "written": text, "exact": True}
    (own.path / FILE).write_text('{"scores": {}}\n' + json.dumps(sample, ensure_ascii=False) + "\n")
    result = written_texts([own])
    assert result is not None
    assert result.left_out == []
    assert result.rows[0].source == text


def test_a_damaged_file_is_named_and_long_ones_are_cut(tmp_path: Path) -> None:
    damaged = record(tmp_path, "a", [("1", "one", "one")])
    (damaged.path / FILE).write_text('{"scores": {}}\n{"source": 1}\n')
    result = written_texts([damaged])
    assert result is not None
    assert "damaged in line 2" in result.left_out[0]
    result = written_texts([record(tmp_path, "b", [("x" * 1000, "y", "z")] * 100)])
    assert result is not None
    assert len(result.rows) == MAX_ROWS
    assert len(result.rows[0].source) == MAX_TEXT
    assert result.of == 100
