"""The time announced for a sweep against the time taken: the line, the record, a record that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.sweep.execution.estimate import Estimate
from blockyard.sweep.execution.time_taken import FILE, read_times, record_time

ANNOUNCED = Estimate(4, 1e9, seconds=50.0, parallel=2, at_most=100.0, source="from 1 finished run on this host")


def test_the_ratio_is_taken_over_announced(tmp_path: Path) -> None:
    line = record_time(tmp_path, ANNOUNCED, 75.0)
    assert line == "took 75 s, announced were about 50 s: 1.50 times as long"
    (record,) = read_times(tmp_path)
    assert {key: value for key, value in record.items() if key != "ended"} == {
        "cells": 4,
        "parallel": 2,
        "announced_seconds": 50.0,
        "announced_at_most_seconds": 100.0,
        "taken_seconds": 75.0,
        "ratio": 1.5,
    }


def test_what_a_search_announces_is_an_upper_bound(tmp_path: Path) -> None:
    line = record_time(tmp_path, ANNOUNCED, 25.0, at_most=True)
    assert line == "took 25 s, announced were at most 50 s: 0.50 times as long"
    assert read_times(tmp_path)[0]["announced_at_most_seconds"] == 50.0


def test_without_a_time_announced_there_is_no_ratio(tmp_path: Path) -> None:
    line = record_time(tmp_path, Estimate(4, 1e9, None), 75.0)
    assert line == "took 75 s; no time was announced, because none of its cells had been measured"
    assert read_times(tmp_path)[0]["ratio"] is None


def test_where_nothing_was_left_nothing_is_recorded(tmp_path: Path) -> None:
    assert record_time(tmp_path, Estimate(0), 3.0) is None
    assert not (tmp_path / FILE).exists()


def test_records_follow_each_other_and_the_newest_are_kept(tmp_path: Path) -> None:
    for seconds in range(1, 53):
        record_time(tmp_path, ANNOUNCED, float(seconds))
    assert [each["taken_seconds"] for each in read_times(tmp_path)] == list(range(3, 53))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"commands": 3}', '{"commands": [1]}'])
def test_a_damaged_record_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert read_times(tmp_path) == []
    record_time(tmp_path, ANNOUNCED, 75.0)
    assert len(read_times(tmp_path)) == 1
