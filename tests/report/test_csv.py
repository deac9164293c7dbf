"""Tables as CSV, which spreadsheets open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.atomic_files.csv_text import Formatted, cell
from blockyard.report.render import columns


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1+1"])
def test_no_text_is_computed_by_a_spreadsheet(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize(
    ("value", "expected"), [(-1.5, -1.5), (None, ""), ("norm=rms", "norm=rms"), (Formatted("-1.5"), "-1.5")]
)
def test_other_values_stay(value: object, expected: object) -> None:
    assert cell(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.10000000149011612, 0.1),  # 0.1 in single precision
        (-1.2345678806304932, -1.2345679),
        (0.1, 0.1),  # of double precision
        (1 / 3, 1 / 3),
        (16777217.0, 16777217.0),
        (276258, 276258),
        (0.5, 0.5),
    ],
)
def test_numbers_of_single_precision_have_no_more_digits_than_they_need(value: float, expected: float) -> None:
    assert repr(cell(value)) == repr(expected)


def test_tiny_means_are_shown_with_the_digits_that_they_have() -> None:
    arms: Any = [SimpleNamespace(mean=5e-8, interval=(4e-8, 6e-8), difference=None)]
    assert columns.mean_with_interval(5e-8, (4e-8, 6e-8), columns.decimals(arms)) == "0.000000050 ± 0.000000010"
    ordinary: Any = [SimpleNamespace(mean=0.9, interval=(0.9 - 1e-9, 0.9 + 1e-9), difference=None)]
    assert columns.decimals(ordinary) == 6
