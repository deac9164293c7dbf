"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.isolation import isolate_environment, leave_unsynced, working_folder
from tests.support.paths import SHARED

isolate_environment()
leave_unsynced()

# A shell starts jobs in the background with SIGINT ignored, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Parametrized cases of one function that xdist schedules together.
CHUNK = 25

# The same examples every time: a failure that comes and goes belongs to no change.
settings.register_profile("blockyard", derandomize=True, deadline=None)
settings.load_profile("blockyard")


def pytest_collectstart() -> None:
    """What is collected stays to the end; the collector of garbage need not look through it again and again."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one worker, so that it is made once.

    Parametrized cases of one function are scheduled in chunks, because xdist's controller takes 1 ms per work item.
    """
    _mark_what_is_not_sampled(items)
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        if _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif (function := _parametrized_function(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(f"{function[0].stem}-{function[1]}-{cases[function] // CHUNK}"))
            cases[function] += 1


def _mark_what_is_not_sampled(items: list[pytest.Item]) -> None:
    """Of a function with `sampled(k)` the first case and one in k of the others stay in the default suite.

    The name of a case decides, so that a new case changes nothing for the others. A case that is full anyway is no
    first one.
    """
    seen: set[tuple[Path, str]] = set()
    for item in items:
        marker = item.get_closest_marker("sampled")
        function = _parametrized_function(item)
        if marker is None or function is None or item.get_closest_marker("full") is not None:
            continue
        if function in seen and zlib.crc32(item.name.encode()) % marker.args[0]:
            item.add_marker(pytest.mark.full)
        seen.add(function)


def _parametrized_function(item: pytest.Item) -> tuple[Path, str] | None:
    """The file and name of the function that an item is a case of; None if it is not parametrized."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    return item.path, item.originalname


def _shares_a_fixture(item: pytest.Item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return any(each.scope == "module" for several in fixtures for each in several)


def pytest_collection_finish() -> None:
    """All tests are known."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixtures of modules and of the session start in an empty folder too."""
    parent = tmp_path_factory.mktemp("working_folders")
    os.chdir(parent)
    return parent


@pytest.fixture(autouse=True)
def _own_folder(_no_checkout: Path) -> Iterator[None]:
    """A working folder for each test."""
    with working_folder(_no_checkout):
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """What a test attaches to the root logger writes to the output captured for it, which is closed afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [each for each in root.handlers if each in handlers]
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """The same random numbers in each test, whatever ran before it."""
    import torch

    # Without a GPU `torch.manual_seed` formats a stack for each kind of device, and keeps it for the device's start.
    seed = torch.manual_seed if torch.cuda.is_initialized() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(scope="session", autouse=True)
def _no_search_for_gpus() -> None:
    """Without a GPU the number of devices is known for the session.

    Lightning makes torch look for NVIDIA's library whenever it asks, which is at each step of an optimizer and at each
    operation that is traced: 4 % of the time of tests/components.
    """
    import torch

    if not torch.cuda.is_available():
        torch.cuda._cached_device_count = 0


@pytest.fixture(scope="session", autouse=True)
def _forked_servers(_no_checkout: Path) -> None:
    """Sweeps fork their server; see `tests/support/warm_servers.py`."""
    from tests.support.warm_servers import fork_servers

    fork_servers()


@pytest.fixture(scope="session", autouse=True)
def _computed_once() -> None:
    """Runs compute once what they share; see `tests/support/computed_once.py`."""
    from tests.support.computed_once import compute_once

    compute_once()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared data sets beside this checkout")
    return SHARED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The slowest files, and one plain line below all others where the browser tests were left out for want of one."""
    from tools.browser import LEFT_OUT

    yield
    if terminalreporter.config.option.durations is not None:
        _write_slowest_files(terminalreporter)
    left_out = [report for report in terminalreporter.stats.get("skipped", ()) if LEFT_OUT in str(report.longrepr)]
    if left_out:
        terminalreporter.write_line(
            f"{len(left_out)} BROWSER TESTS WERE LEFT OUT: {LEFT_OUT}; on Debian: apt-get install chromium",
            yellow=True,
            bold=True,
        )


def _write_slowest_files(terminalreporter: pytest.TerminalReporter) -> None:
    """The files whose tests took longest, with their fixtures, over all workers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("slowest files")
    for file, total in sorted(seconds.items(), key=lambda entry: -entry[1])[:20]:
        terminalreporter.write_line(f"{total:7.1f}s {file}")
