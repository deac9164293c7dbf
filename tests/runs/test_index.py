"""A listing of runs is what their folders say, however old or damaged the index is."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from blockyard.atomic_files import write_json
from blockyard.errors import UserError
from blockyard.runs import index
from blockyard.runs.index import FILE, records
from blockyard.runs.record import RunRecord, read_record
from tests.runs.run_folders import run_folder


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    run_folder(tmp_path, "vit-aaaa/s0", 0.7, position="rope")
    run_folder(tmp_path, "vit-aaaa/s1", 0.8, position="rope")
    run_folder(tmp_path, "gpt-bbbb/s0", 0.4, optimizer={"lr": 0.01})
    return tmp_path


def test_records_are_what_the_folders_say(outputs: Path) -> None:
    result = records(outputs)
    assert [each.run for each in result] == ["gpt-bbbb/s0", "vit-aaaa/s1", "vit-aaaa/s0"]  # the latest first
    assert result == [read_record(outputs / each.run) for each in result]
    assert result[0].value("optimizer.lr") == 0.01
    assert result[1].value("position") == "rope"
    assert result[1].value("test/accuracy") == 0.8
    assert result[1].value("parameters") == 7
    assert result[0].seconds == 3420


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
    with sqlite3.connect(outputs / FILE) as connection:
        assert connection.execute("SELECT COUNT(*) FROM runs").fetchone() == (2,)


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


_WRONG = {
    "run": "vit-aaaa/s0",
    "state": "gone",
    "started": 5,
    "seconds": "long",
    "steps": [1],
    "metrics": {"test/accuracy": "high"},
    "directions": [],
    "choices": {"block": {"a": 1}},
    "tags": [7],
    "note": None,
    "archived": "no",
    "damage": 1,
}


@pytest.mark.parametrize("key", _WRONG)
def test_a_row_with_a_value_of_another_type_is_read_from_its_folder(outputs: Path, key: str) -> None:
    """The index is a cache that may come from a stranger: each field has its type, or the folder is read."""
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as connection:
        (text,) = connection.execute("SELECT record FROM runs WHERE run = 'gpt-bbbb/s0'").fetchone()
        connection.execute(
            "UPDATE runs SET record = ? WHERE run = 'gpt-bbbb/s0'", (json.dumps(json.loads(text) | {key: _WRONG[key]}),)
        )
    assert records(outputs) == expected


@pytest.mark.parametrize("config", [None, b"{}"])
def test_a_row_whose_config_is_not_text_is_read_from_its_folder(outputs: Path, config: bytes | None) -> None:
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as connection:
        connection.execute("UPDATE runs SET config = ? WHERE run = 'gpt-bbbb/s0'", (config,))
    assert records(outputs) == expected


def test_a_listing_parses_no_config(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config is most of a record: thousands are listed from the index without a look into it, escaped or not."""
    expected = records(outputs)
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr("json.loads", lambda text, **more: parsed.append(text) or loads(text, **more))
    assert records(outputs) == expected
    assert parsed
    assert not [text for text in parsed if "optimizer" in text]


def test_a_config_in_the_index_that_is_none_is_refused(outputs: Path) -> None:
    (record,) = [each for each in records(outputs) if each.run == "gpt-bbbb/s0"]
    with pytest.raises(UserError, match=r"remove \.runs\.sqlite3"):
        replace(record, config_json="[" * 100_000).value("model.dim")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
        "CREATE VIEW other AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "ALTER TABLE runs ADD COLUMN more",
    ],
)
def test_an_index_with_more_than_its_table_is_made_again(outputs: Path, statement: str) -> None:
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as rows:
        rows.execute(statement)
    assert records(outputs) == expected
    with sqlite3.connect(outputs / FILE) as rows:
        assert [row[0] for row in rows.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")] == ["runs"]


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
@pytest.mark.parametrize("kind", ["link", "dangling", "second name", "another user"])
def test_an_index_that_leads_elsewhere_is_neither_read_nor_written(
    outputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, suffix: str
) -> None:
    """A link in a stranger's folder of runs changes and creates no file, and the runs are listed all the same."""
    expected = [read_record(outputs / each.run) for each in records(outputs)]
    victim, index_file = tmp_path / "victim.db", outputs / f"{FILE}{suffix}"
    index_file.unlink(missing_ok=True)
    if kind != "dangling":
        with sqlite3.connect(victim) as rows:
            rows.execute("CREATE TABLE runs (secret)")
    if kind in ("link", "dangling"):
        index_file.symlink_to(victim)
    else:
        os.link(victim, index_file)
    if kind == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        victim.unlink()
        os.chown(index_file, 12345, 12345)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert records(outputs) == expected
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert "is not used" in caplog.text


def test_a_listing_that_is_stopped_goes_on_where_it_was(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listing of many runs saves in parts, so that an interruption loses one part only."""
    monkeypatch.setattr(index, "_PART", 1)
    read: list[Path] = []

    def interrupted(path: Path) -> RunRecord:
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(path)
        return read_record(path)

    monkeypatch.setattr(index, "read_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        records(outputs)
    monkeypatch.setattr(index, "read_record", lambda path: read.append(path) or read_record(path))
    assert len(records(outputs)) == 3
    assert len(read) == 3


@pytest.mark.parametrize(("terminal", "line"), [(True, "\rreading runs: 1 of 3"), (False, "reading runs: 1 of 3\n")])
def test_a_long_first_listing_shows_how_far_it_is(
    terminal: bool, line: str, outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The standard error counts the runs that are read: in one line of a terminal, and now and then in a log."""
    monkeypatch.setattr(index, "_PART", 1)
    monkeypatch.setattr(index, "_LIVE", -1.0)
    monkeypatch.setattr(index, "_PIPED", -1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    records(outputs)
    assert line in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    records(outputs)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"run": 1}', '{"tags": []}', '{"tags": 3, "run": "x"}', "[" * 100_000]
)
def test_a_damaged_row_is_read_from_its_folder(outputs: Path, text: str) -> None:
    expected = records(outputs)
    with sqlite3.connect(outputs / FILE) as connection:
        connection.execute("UPDATE runs SET record = ? WHERE run = 'gpt-bbbb/s0'", (text,))
    assert records(outputs) == expected


def test_a_folder_in_the_place_of_the_index_costs_only_time(outputs: Path) -> None:
    (outputs / FILE).mkdir()
    assert len(records(outputs)) == 3


def test_a_damaged_file_is_told_and_the_others_are_read(outputs: Path) -> None:
    (outputs / "gpt-bbbb" / "s0" / "summary.json").write_text("{")
    (result,) = [each for each in records(outputs) if each.damage]
    assert "summary.json is damaged" in str(result.damage)
    assert result.metrics == {}
    assert result.value("model.dim") == 32


def test_a_running_run_without_a_process_is_interrupted(outputs: Path) -> None:
    run_folder(outputs, "vit-cccc/s0", None, state="running")
    assert records(outputs)[0].state == "interrupted"
    assert records(outputs)[0].state == "interrupted"


def test_no_folder_has_no_runs(tmp_path: Path) -> None:
    assert records(tmp_path / "none") == []
