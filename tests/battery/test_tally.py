"""The table of batteries counts what passed; a battery that is short or failed fails `make battery`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.battery.cases import cases
from tests.battery.conftest import _Tally
from tests.battery.table import BATTERIES


def _report(name: str, *, passed: bool = True, when: str = "call", **properties: object) -> SimpleNamespace:
    return SimpleNamespace(user_properties=[("battery", name), *properties.items()], passed=passed, when=when)


def test_a_battery_that_reaches_its_number_is_complete() -> None:
    tally = _Tally()
    for name, row in BATTERIES.items():
        tally.pytest_runtest_logreport(_report(name, cases=row.required))  # type: ignore[arg-type]
    assert tally.missing() == []


@pytest.mark.parametrize(
    "report",
    [
        _report("soak", passed=False),
        _report("soak", passed=False, when="setup"),  # skipped, or its fixture failed
        SimpleNamespace(user_properties=[("battery", "soak")], passed=True, when="call", wasxfail="known"),
    ],
)
def test_a_failure_is_not_made_up_for_by_others(report: SimpleNamespace) -> None:
    tally = _Tally()
    tally.pytest_runtest_logreport(_report("soak", cases=1))  # type: ignore[arg-type]
    tally.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    assert "soak" in tally.missing()


def test_a_short_battery_is_missing() -> None:
    tally = _Tally()
    tally.pytest_runtest_logreport(_report("loggers"))  # type: ignore[arg-type]
    assert "loggers" in tally.missing()


def test_the_short_form_is_spread_over_all_cases() -> None:
    kept = [param.values[0] for param in cases(range(100), short=4) if not param.marks]
    assert kept == [0, 25, 50, 75]
