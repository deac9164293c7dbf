"""Commands in spoilt surroundings: forked from a warm process, or started as a shell does."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.atomic_files import TEMPORARY, read_json, read_yaml
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from tests.battery.sweep_scene import fork_the_server
from tests.support.engine_runs import assert_same_bits
from tests.support.fork import forked, typed
from tests.support.paths import ROOT

_PR_SET_CHILD_SUBREAPER = 36
_LIMIT = 300.0  # seconds for a command
TINY = (
    *("experiment=vit_digits", "debug=fast", "model.depth=1", "model.dim=16", "model.heads=2", "logger=none"),
    *(
        "callbacks=quiet",
        "trainer=cpu",
        "data.batch_size=32",
        "trainer.max_steps=4",
        "trainer.eval_every=2",
        "trainer.threads=1",
    ),
)
SWEEP = """
claim: RMSNorm is better than LayerNorm
base: [{base}]
arms: {{plain: [], rms: [norm=rms]}}
seeds: 1
metric: test/loss
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it) and what it printed."""

    code: int
    output: str


def run_forked(
    folder: str | Path,
    arguments: Sequence[str],
    spoil: Callable[[], object] | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> Ended:
    """Run `blockyard WORDS` in a fork of a warm process.

    spoil: called in the command's process before it begins
    environment: variables that are set, or with None removed
    """

    def spoil_all() -> None:
        tempfile.tempdir = None  # as in a process that has not used it yet
        for name, value in (environment or {}).items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        time.tzset()
        if spoil is not None:
            spoil()

    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"

        def watch() -> int:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            receive, send = os.pipe()
            pid = os.fork()
            if pid == 0:
                _work(str(folder), tuple(arguments), spoil_all, send, receive)
            os.close(send)
            output = bytearray()
            while chunk := os.read(receive, 1 << 16):
                output += chunk
            _, status = os.waitpid(pid, 0)
            report.write_text(json.dumps([os.waitstatus_to_exitcode(status), output.decode(errors="replace")]))
            return 0

        assert forked(watch, _LIMIT) == 0
        return Ended(*json.loads(report.read_text()))


def _work(folder: str, arguments: tuple[str, ...], spoil: Callable[[], object], send: int, receive: int) -> None:
    code = 1
    try:
        os.close(receive)
        fork_the_server()
        os.chdir(folder)
        for number in (1, 2):
            os.dup2(send, number)
        os.close(send)
        spoil()
        code = typed(None, arguments, [])
    finally:
        os._exit(code)


def run_started(
    folder: str | Path,
    arguments: Sequence[str],
    spoil: Callable[[], object] | None = None,
    environment: Mapping[str, str | None] | None = None,
    streams: Mapping[str, int | str] | None = None,
) -> Ended:
    """Run `python -m blockyard WORDS` as a shell starts it.

    environment: variables that are set, or with None removed; streams: stdin, stdout or stderr by path or handle
    """
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})}
    with contextlib.ExitStack() as stack:
        opened = {
            name: stack.enter_context(open(where, "r+b", buffering=0)) if isinstance(where, str) else where
            for name, where in (streams or {}).items()
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "blockyard", *arguments],
            cwd=folder,
            env={name: value for name, value in variables.items() if value is not None},
            preexec_fn=spoil,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **opened},
        )
        try:
            output = process.communicate(timeout=_LIMIT)[0] or b""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ended(process.returncode, output.decode(errors="replace"))


def run_together(folder: Path, commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run several commands at the same time, each in a fork."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"

        def watch() -> int:
            pids = {}
            for number, arguments in enumerate(commands):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        fork_the_server()
                        code = typed(folder, tuple(arguments), [f"{scratch}/{number}", f"{scratch}/{number}"])
                    finally:
                        os._exit(code)
                pids[pid] = number
            codes = [0] * len(commands)
            for pid, number in pids.items():
                codes[number] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            report.write_text(json.dumps(codes))
            return 0

        assert forked(watch, _LIMIT) == 0
        outputs = [Path(f"{scratch}/{number}").read_text(errors="replace") for number in range(len(commands))]
        return [Ended(code, output) for code, output in zip(json.loads(report.read_text()), outputs, strict=True)]


# -- file systems ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    """A file system in memory at a path, for root only."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", str(path)], check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, f"{path} is busy"
            time.sleep(0.2)


def remount(path: Path, options: str) -> None:
    """Change the options of a mounted file system."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


# -- what a run has left ----------------------------------------------------------------------------------


def check_whole(folder: Path) -> None:
    """No file below a folder is torn: each is as it was before a write, or as after it."""
    for path in folder.rglob("*"):
        if path.name.startswith(TEMPORARY) or not path.is_file():
            continue
        if path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".ckpt":
            read(path)
        elif path.name == "config.yaml":
            read_yaml(path)


def runs_below(outputs: Path) -> list[RunFolder]:
    """The runs below a folder."""
    return [RunFolder.open(path.parent) for path in sorted(outputs.glob("*/s[0-9]*/config.yaml"))]


def only_run(outputs: Path) -> RunFolder:
    """The run below a folder, which has one."""
    (run,) = runs_below(outputs)
    return run


def check_same(outputs: Path, reference: RunFolder) -> None:
    """The run below a folder has ended with the bits of another, and no temporary file is left."""
    run = only_run(outputs)
    assert run.status.state == "done", run.status
    assert_same_bits(run, reference)
    assert not [path for path in outputs.rglob("*") if path.name.startswith((TEMPORARY, ".replaced-"))]
