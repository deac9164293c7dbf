"""Tables as CSV, which spreadsheets open."""

from __future__ import annotations

import pytest

from blockyard.report.render.csv import _cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1+1"])
def test_no_text_is_computed_by_a_spreadsheet(text: str) -> None:
    assert _cell(text) == f"'{text}"


@pytest.mark.parametrize(("value", "expected"), [(-1.5, -1.5), (None, ""), ("norm=rms", "norm=rms")])
def test_other_values_stay(value: object, expected: object) -> None:
    assert _cell(value) == expected
