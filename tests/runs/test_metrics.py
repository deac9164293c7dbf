"""metrics.csv: no step twice, no half row believed, no row lost to a kill or a full disk."""

from __future__ import annotations

import csv
import errno
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from blockyard.runs import metrics
from blockyard.runs.metrics import MetricsWriter, read_metrics


def _steps(path: Path) -> list[int]:
    with path.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def test_rows_columns_and_numbers_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    writer.append(1, {"train/loss": 0.1})
    writer.append(2, {"train/loss": 1 / 3, 'odd, "name"': 2})
    writer.append(2, {"val/loss": math.inf})
    writer.append(5, {"train/loss": math.nan})
    writer.close()
    rows = read_metrics(path)
    assert rows[:2] == [
        {"step": 1, "train/loss": 0.1},
        {"step": 2, "train/loss": 1 / 3, 'odd, "name"': 2.0, "val/loss": math.inf},
    ]
    assert math.isnan(rows[2]["train/loss"])
    assert _steps(path) == [1, 2, 5]


def test_steps_go_forward(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.csv")
    writer.append(3, {"a": 1})
    with pytest.raises(ValueError, match="step 2 come after those of step 3"):
        writer.append(2, {"a": 1})


@pytest.mark.parametrize("cut", [0, 3, 4, 7, 100])
def test_a_resumed_run_says_no_step_twice(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    for step in range(1, 8):
        writer.append(step, {"a": step / 7})
        if step % 3 == 0:
            writer.append(step, {"val": step})
    again = MetricsWriter(path)  # the first was killed: never closed
    again.truncate_after(cut)
    for step in range(cut + 1, 12):
        again.append(step, {"a": step / 7, "late": 1})
    again.close()
    assert _steps(path) == list(range(1, 12 if cut < 12 else 8))
    assert [row["a"] for row in read_metrics(path)] == [step / 7 for step in _steps(path)]


def test_a_file_cut_anywhere_gives_whole_rows_and_can_be_written_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    for step in range(10):
        writer.append(step, {"a": step / 7, "b": 10**step})
    whole, rows = path.read_bytes(), read_metrics(path)
    writer.close()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        read = read_metrics(path)
        assert read == rows[: max(0, whole[:cut].count(b"\n") - 1)]
        again = MetricsWriter(path)
        assert again.last_step == (read[-1]["step"] if read else None)
        again.append(99, {"a": 1})
        again.close()
        assert read_metrics(path) == [*read, {"step": 99, "a": 1.0}]


def test_damage_in_the_middle_is_left_out_and_the_file_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a\n1,1\n2,x\n2,2,2\n3,3\n1,1\n4,4\n")
    writer = MetricsWriter(path)
    assert [row["step"] for row in writer.rows()] == [1, 3, 4]
    writer.append(5, {"a": 5})
    assert _steps(path) == [1, 3, 4, 5]
    assert "2,2,2" in (tmp_path / "metrics.damaged.csv").read_text()
    assert "damaged" in caplog.text


def test_random_words_of_a_run_end_as_a_dictionary_would(tmp_path: Path) -> None:
    path, chance, model = tmp_path / "metrics.csv", random.Random(0), {}
    writer, step = MetricsWriter(path), 0
    for _ in range(400):
        act = chance.random()
        if act < 0.05:
            writer.close() if chance.random() < 0.5 else None
            writer = MetricsWriter(path)
        elif act < 0.1:
            step = chance.randint(0, step)
            writer.truncate_after(step)
            model = {key: value for key, value in model.items() if key <= step}
        else:
            step += chance.randint(0, 2)
            values = {
                chance.choice("abcdef"): chance.choice([0.5, 1e9, 3, -1 / 3]) for _ in range(chance.randint(1, 3))
            }
            writer.append(step, values)
            model.setdefault(step, {}).update(values)
    assert read_metrics(path) == [{"step": step, **row} for step, row in sorted(model.items())]


def test_a_full_disk_delays_rows_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    writer = MetricsWriter(path)
    writer.append(1, {"a": 1})
    real, room = os.pwrite, [7]

    def full(handle: int, data: bytes, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, room[0] = data[: room[0]], max(0, room[0] - len(data))
        return real(handle, taken, at)

    monkeypatch.setattr(metrics.os, "pwrite", full)
    for step in range(2, 8):
        writer.append(step, {"a": step / 3})
    assert caplog.text.count("cannot write") == 1
    with pytest.raises(OSError, match="No space"):
        MetricsWriter.close(writer)
    monkeypatch.setattr(metrics.os, "pwrite", real)
    writer.append(8, {"a": 8})
    assert [row["step"] for row in read_metrics(path)] == list(range(1, 9))


def test_the_planted_bug_of_appending_alone_is_seen(tmp_path: Path) -> None:
    class Forgetful(MetricsWriter):
        def truncate_after(self, step: int) -> None:
            self._last = None

    path: Any = tmp_path / "metrics.csv"
    writer = Forgetful(path)
    for step in (1, 2, 3):
        writer.append(step, {"a": 1})
    writer.truncate_after(1)
    writer.append(2, {"a": 1})
    assert _steps(path) != [1, 2]
