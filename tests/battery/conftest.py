"""Counts the cases of each battery, prints the table, and fails `make battery` where a number is not reached.

A test counts as one case; one that tries several records their number with `record_property("cases", number)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.battery.table import BATTERIES


class _Tally:
    """Cases that passed and failed, by battery."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        name = properties.get("battery")
        if name is None or (report.when != "call" and report.passed):
            return
        if report.passed and not hasattr(report, "wasxfail"):
            self.passed[str(name)] += int(str(properties.get("cases", 1)))
        else:  # an expected failure and a skipped case count as failures: neither was survived
            self.failed[str(name)] += 1

    def missing(self) -> list[str]:
        """Batteries that failed or fell short of their number."""
        return [name for name, row in BATTERIES.items() if self.failed[name] or self.passed[name] < row.required]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-battery", action="store_true", help="fail unless every battery reaches its number")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Tally(), "battery-tally")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("battery_name")
        if marker is not None:
            item.user_properties.append(("battery", marker.args[0]))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail the session of `make battery` where a battery is incomplete."""
    yield
    config = session.config
    if config.getoption("--whole-battery", default=False) and not hasattr(config, "workerinput"):
        tally: _Tally = config.pluginmanager.get_plugin("battery-tally")
        if tally.missing() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tally: _Tally = config.pluginmanager.get_plugin("battery-tally")
    if not config.getoption("--whole-battery", default=False):
        return
    terminalreporter.section("battery")
    short = set(tally.missing())
    for name, row in BATTERIES.items():
        counts = f"{tally.passed[name]:5} passed {tally.failed[name]:3} failed, {row.required:4} required"
        terminalreporter.write_line(f"{name:22} {counts}: {row.what}", red=name in short)


@pytest.fixture(scope="session")
def data_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in every format that the shipped components read from a disk."""
    from tests.battery.data_files import write_data

    return write_data(tmp_path_factory.mktemp("data_files"))
