"""A listing of runs is what their folders say, however old or damaged the index is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from blockyard.atomic_files import write_json
from blockyard.runs import index
from blockyard.runs.index import FILE, records
from blockyard.runs.record import read_record
from tests.runs.run_folders import run_folder


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    run_folder(tmp_path, "vit-aaaa/s0", 0.7, position="rope")
    run_folder(tmp_path, "vit-aaaa/s1", 0.8, position="rope")
    run_folder(tmp_path, "gpt-bbbb/s0", 0.4, optimizer={"lr": 0.01})
    return tmp_path


def test_records_are_what_the_folders_say(outputs: Path) -> None:
    found = records(outputs)
    assert [each.run for each in found] == ["gpt-bbbb/s0", "vit-aaaa/s1", "vit-aaaa/s0"]  # the latest first
    assert found == [read_record(outputs / each.run) for each in found]
    assert found[0].value("optimizer.lr") == 0.01
    assert found[1].value("position") == "rope"
    assert found[1].value("test/accuracy") == 0.8
    assert found[1].value("parameters") == 7
    assert found[0].seconds == 3420


def test_only_runs_that_changed_are_read_again(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records(outputs)
    read: list[str] = []
    monkeypatch.setattr(index, "read_record", lambda path: read.append(path.parent.name) or read_record(path))
    before = records(outputs)
    assert read == []
    write_json(outputs / "gpt-bbbb" / "s0" / "summary.json", {"metrics": {"test/accuracy": 0.9}})
    (changed,) = [each for each in records(outputs) if each not in before]
    assert read == ["gpt-bbbb"]
    assert changed.metrics == {"test/accuracy": 0.9}


def test_a_run_that_is_gone_leaves_the_index(outputs: Path) -> None:
    records(outputs)
    os.rename(outputs / "gpt-bbbb", outputs / ".gone")
    assert {each.run for each in records(outputs)} == {"vit-aaaa/s0", "vit-aaaa/s1"}
    with sqlite3.connect(outputs / FILE) as rows:
        assert rows.execute("SELECT COUNT(*) FROM runs").fetchone() == (2,)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_index_is_made_again(outputs: Path, content: bytes) -> None:
    expected = records(outputs)
    (outputs / FILE).write_bytes(content)
    assert records(outputs) == expected
    assert records(outputs) == expected


def test_an_index_of_another_version_is_made_again(outputs: Path) -> None:
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as rows:
        rows.execute("PRAGMA user_version = 99")
        rows.execute("DROP TABLE runs")
    assert records(outputs) == expected


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"run": 1}', '{"tags": []}', '{"tags": 3, "run": "x"}'])
def test_a_damaged_row_is_read_from_its_folder(outputs: Path, text: str) -> None:
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as rows:
        rows.execute("UPDATE runs SET record = ? WHERE run = 'gpt-bbbb/s0'", (text,))
    assert records(outputs) == expected


def test_a_folder_in_the_place_of_the_index_costs_only_time(outputs: Path) -> None:
    (outputs / FILE).mkdir()
    assert len(records(outputs)) == 3


def test_a_damaged_file_is_told_and_the_others_are_read(outputs: Path) -> None:
    (outputs / "gpt-bbbb" / "s0" / "summary.json").write_text("{")
    (found,) = [each for each in records(outputs) if each.damage]
    assert "summary.json is damaged" in str(found.damage)
    assert found.metrics == {}
    assert found.value("model.dim") == 32


def test_a_running_run_without_a_process_is_interrupted(outputs: Path) -> None:
    run_folder(outputs, "vit-cccc/s0", None, state="running")
    assert records(outputs)[0].state == "interrupted"
    assert records(outputs)[0].state == "interrupted"


def test_no_folder_has_no_runs(tmp_path: Path) -> None:
    assert records(tmp_path / "none") == []
