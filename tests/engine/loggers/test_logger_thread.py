"""The thread of a logger: what it calls, and a start that cannot hang."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.engine.loggers.run_log import LoggerThread
from tests.support.engine_runs import assert_same_bits, run


def test_it_runs_and_ends() -> None:
    proceed, threads = threading.Event(), []

    def target() -> None:
        threads.append(threading.get_ident())
        proceed.wait(60)

    thread = LoggerThread(target)
    assert not thread.is_alive()
    thread.start()
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    proceed.set()
    thread.join(60)
    assert not thread.is_alive()
    assert threads != [threading.get_ident()]


def test_a_thread_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda run, arguments: late.append(run))
    calls: list[int] = []
    thread = LoggerThread(lambda: calls.append(1))
    with pytest.raises(MemoryError, match="did not start within 0 s"):
        thread.start(0.01)
    late[0]()  # begins after all
    assert not calls
    assert not thread.is_alive()


@pytest.mark.full
def test_a_run_continues_without_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = run(tmp_path / "plain")

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LoggerThread, "start", refused)
    assert_same_bits(run(tmp_path / "logged", "logger=tensorboard"), plain)
    assert "failed to start a thread" in caplog.text
    assert "can't start new thread" in caplog.text
