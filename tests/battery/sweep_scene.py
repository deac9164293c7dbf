"""`blockyard sweep` in forks of a warm process, watched to the end of its last descendant."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blockyard.atomic_files import TEMPORARY
from blockyard.runs.lock import held
from blockyard.runs.metrics import read_metrics
from tests.battery.strikes import Strike, arm, note
from tests.support.fork import forked, typed

_PR_SET_CHILD_SUBREAPER = 36
_LIMIT = 300.0  # seconds for the commands of a batch
_ORPHANS = 60.0  # seconds in which all descendants of a command must have ended
_OF_AN_ARM = ("name", "n", "planned", "failed", "values", "mean", "interval", "difference", "verdict", "words")


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: negative where a signal killed it; orphans: that had to be killed."""

    code: int
    output: str
    orphans: int


def sweep(
    folder: Path, *arguments: str, strike: Strike | None = None, patch: Callable[[], None] | None = None
) -> Ended:
    """Run `blockyard sweep WORDS` in a folder and wait until it and all its descendants have ended.

    strike: a signal at one point; `folder/struck` exists afterwards if it was reached
    patch: called in the command's process before it begins
    """
    return sweeps(folder, [[arguments]], strike=strike, patch=patch)[0][0]


def sweeps(
    folder: Path,
    batches: Sequence[Sequence[Sequence[str]]],
    *,
    strike: Strike | None = None,
    patch: Callable[[], None] | None = None,
    daemon: Callable[[], None] | None = None,
) -> list[list[Ended]]:
    """Run batches one after another, each of several commands at the same time; the very first one is struck.

    daemon: what runs in a process of its own all the time, whose children are not orphans
    """
    report, marker = folder / "ended.json", folder / "struck"
    marker.unlink(missing_ok=True)

    def watch() -> int:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        apart = ForkedProcess(daemon) if daemon else None
        results = []
        for batch in batches:
            first = strike if not results else None
            pids = [
                _start(folder, arguments, folder / f"output-{number}", None if number else first, marker, patch)
                for number, arguments in enumerate(batch)
            ]
            codes, orphans = _reap(pids, apart.pid if apart else 0)
            outputs = [(folder / f"output-{number}") for number in range(len(batch))]
            results.append(
                [[code, out.read_text(errors="replace"), orphans] for code, out in zip(codes, outputs, strict=True)]
            )
            for output in outputs:
                output.unlink()
        if apart:
            apart.kill()
        report.write_text(json.dumps(results))
        return 0

    assert forked(watch, len(batches) * (_LIMIT + _ORPHANS) + 30) == 0
    results = json.loads(report.read_text())
    report.unlink()
    return [[Ended(*ended) for ended in batch] for batch in results]


def _start(
    folder: Path,
    arguments: Sequence[str],
    output: Path,
    strike: Strike | None,
    marker: Path,
    patch: Callable[[], None] | None,
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        note("planner")
        fork_the_server()
        if patch is not None:
            patch()
        if strike is not None:
            arm(strike, marker)
        code = typed(folder, ("sweep", *arguments), [str(output), str(output)])
    except KeyboardInterrupt:  # as Python ends a process
        code = 130
    finally:
        os._exit(code)


def _reap(pids: list[int], apart: int) -> tuple[list[int], int]:
    """The exit code of each command, and how many descendants had not ended a minute after the last one.

    apart: a child whose descendants are left alone
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + _LIMIT
    while time.monotonic() < deadline:
        pid, status = 0, 0
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pid] = os.waitstatus_to_exitcode(status)
            if len(codes) == len(pids):
                deadline = time.monotonic() + _ORPHANS
        if not pid:
            if len(codes) == len(pids) and not _descendants(apart):
                break
            time.sleep(0.05)
    left = _descendants(apart)
    for each in left:
        os.kill(each, signal.SIGKILL)
    return [codes.get(pid, -999) for pid in pids], len(left)


def _descendants(apart: int) -> list[int]:
    """The living processes below this one, without one child and what is below that."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    descendants, new = [], [os.getpid()]
    while new:
        parent = new.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent and pid != apart]
        descendants += children
        new += children
    return descendants


def fork_the_server() -> None:
    """Fork the local executor's server instead of starting Python anew, which takes ten times as long."""
    from blockyard.sweep.executor import _server_process
    from blockyard.sweep.executor._fork_server import ForkServer, set_threads

    def started(self: _server_process.ServerProcess, handle: int) -> Any:
        return ForkedProcess(lambda: serve(handle, self.threads))

    def serve(handle: int, threads: int) -> None:
        os.setsid()
        note("server")
        set_threads(threads)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, handle)
        os.closerange(handle + 1, 256)
        ForkServer(Connection(handle)).serve()

    _server_process.ServerProcess._started = started  # type: ignore[method-assign]


class ForkedProcess:
    """A forked process with the methods of `subprocess.Popen` that an executor calls."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        deadline = time.monotonic() + (timeout or 1e9)
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            else:
                time.sleep(0.005)
        return self.code

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


# -- what a sweep has left ------------------------------------------------------------------------------


def result(outputs: Path, name: str) -> dict[str, Any]:
    """What a sweep has found, without times: every run's metrics, and the comparison's arms and answer."""
    comparison = json.loads((outputs / "sweeps" / name / "comparison.json").read_text())
    assert not comparison["stale"]
    arms = [{key: arm[key] for key in _OF_AN_ARM} for arm in comparison["arms"]]
    return {"runs": runs(outputs), "answer": comparison["answer"], "arms": arms, "tuning": comparison["tuning"]}


def runs(outputs: Path) -> dict[str, Any]:
    """The state, the rows of metrics and the final metrics of every run below a folder."""
    files = {}
    for path in sorted(outputs.glob("*/s[0-9]*")):
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(path / "metrics.csv")]
        summary = path / "summary.json"
        state = json.loads((path / "status.json").read_text())["state"]
        metrics = json.loads(summary.read_text())["metrics"] if summary.exists() else None
        files[f"{path.parent.name}/{path.name}"] = (state, rows, metrics)
    return files


def litter(outputs: Path) -> list[str]:
    """Files that no finished sweep may leave, and locks that are still held."""
    names = []
    for path in sorted(outputs.rglob("*")):
        name = path.name
        if name.startswith((TEMPORARY, ".replaced-", ".search-")) or "damaged" in name:
            names.append(str(path.relative_to(outputs)))
        if name.endswith(".lock") and held(path.parent / name.removeprefix(".").removesuffix(".lock")):
            names.append(f"held: {path.relative_to(outputs)}")
    return names
