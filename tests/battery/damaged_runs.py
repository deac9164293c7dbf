"""Runs and sweeps whose files are damaged one at a time, and the commands that then read them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.battery import killed_runs
from tests.battery.damage import MARKER
from tests.battery.file_operations import Kill
from tests.battery.killed_runs import Job
from tests.support.fork import blockyard, forked

LIMIT = 120  # seconds of one command on a busy machine; the longest takes one on a free core

SWEEP = """
claim: The place of the norm matters
source: a test
base: [{base}]
baseline: pre
arms:
  pre: [block=pre_norm]
  post: [block=post_norm]
seeds: 1
metric: test/accuracy
{more}"""
SEARCH = "search: {trials: 1, sampler: random, space: {optimizer.lr: {low: 1e-3, high: 1e-2, log: true}}}\n"


class Result(NamedTuple):
    """What a command answered. hung: whether it was ended after LIMIT seconds."""

    code: int
    out: str
    err: str
    hung: bool


class _Hang(BaseException):
    pass


def make(kind: str, folder: Path) -> Path:
    """A folder with a run or a sweep in it: done, killed before the end, of text, a sweep, a search."""
    if kind in ("sweep", "search"):
        _sweep(kind, folder)
    elif kind == "killed":
        _killed(folder)
    else:
        assert killed_runs.train(Job({"done": "logged", "text": "text"}[kind], folder)) == 0
    return folder


def _killed(folder: Path) -> None:
    """Killed in step 4: last.ckpt is of step 3, previous.ckpt and best.ckpt of step 2."""
    with tempfile.TemporaryDirectory() as scratch:
        operations = killed_runs.operations("logged", Path(scratch), Path(scratch) / "log.json")
    saves = [number for number, operation in enumerate(operations) if operation.startswith("torch.save")]
    killed_runs.kill_all([(Job("logged", folder), Kill(saves[3], after=False))])


def _sweep(kind: str, folder: Path) -> None:
    more = SEARCH if kind == "search" else ""
    base = ", ".join(override for override in killed_runs.SHORT if not override.startswith("data.shift"))
    (folder / "tiny.yaml").write_text(SWEEP.format(base=base, more=more))
    done = blockyard(folder, "sweep", "tiny.yaml", "executor.workers=1", limit=900)
    assert done.returncode == 0, done.stderr


def arguments_of(command: str, kind: str) -> list[str]:
    """The arguments of a command in a folder of this kind."""
    config = killed_runs.CONFIGS["text" if kind == "text" else "logged"]
    return {
        "train": ["train", *config, "outputs=outputs"],
        "resume": ["train", "resume=last"],
        "eval": ["eval", "run=last"],
        "eval last": ["eval", "run=last", "which=last"],
        "generate": ["generate", "run=last", "prompt=def ", "max_tokens=8", "temperature=0"],
        "compare": ["compare", "tiny" if kind in ("sweep", "search") else "outputs"],
        "sweep": ["sweep", "tiny.yaml", "executor.workers=1"],
    }[command]


def run(folders: Sequence[Path], arguments: Sequence[list[str]]) -> list[Result]:
    """The answers of commands, each in its folder, one after another in one process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        answers = Path(scratch) / "answers.json"

        def work() -> int:
            answers.write_text(json.dumps([_answer(*each) for each in zip(folders, arguments, strict=True)]))
            return 0

        assert forked(work, LIMIT * len(folders)) == 0
        return [Result(*each) for each in json.loads(answers.read_text())]


def _answer(folder: Path, arguments: list[str]) -> list[Any]:
    from blockyard.cli import main
    from blockyard.engine.callbacks.stopwatch import Stopwatch

    if not hasattr(Stopwatch, "real_lap"):
        Stopwatch.real_lap = Stopwatch.lap  # type: ignore[attr-defined]
        Stopwatch.lap = lambda self: self.real_lap() * 0 + self.state.step  # type: ignore[attr-defined,method-assign]

    def hang(*_: Any) -> None:
        raise _Hang

    os.chdir(folder)
    os.environ["BLOCKYARD_CACHE"] = str(folder.parent / "cache")
    streams = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
    for number, stream in enumerate(streams, start=1):
        handle = os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    code, hung = 1, False
    signal.signal(signal.SIGALRM, hang)
    signal.alarm(LIMIT)
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except _Hang:
        hung = True
    except BaseException:
        traceback.print_exc()
    finally:
        signal.alarm(0)
        sys.stdout.flush()
        sys.stderr.flush()
    return [code, *(stream.read_text(errors="replace") for stream in streams), hung]


def copy(source: Path, target: Path) -> Path:
    """Copy a folder; what is one file under two names stays one."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def harmless(folder: Path, result: Result) -> list[str]:
    """What no damage may lead to, whatever the command answers."""
    problems = ["it hangs"] if result.hung else []
    if "Traceback (most recent call last)" in result.out + result.err:
        problems.append("a traceback")
    if any(folder.rglob(MARKER)):
        problems.append("code of the file was executed")
    if left := [path.name for path in folder.rglob(".tmp-*")]:
        problems.append(f"left over: {left}")
    if result.code not in (0, 1, 2):
        problems.append(f"exit code {result.code}")
    return problems


def remove(folder: Path) -> None:
    """Remove a folder and what its command wrote beside it."""
    shutil.rmtree(folder)
    for stream in ("out", "err"):
        folder.with_name(f"{folder.name}.{stream}").unlink(missing_ok=True)
