"""Short runs of which every file operation is known, killed at one of them and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blockyard.atomic_files import TEMPORARY, read_json
from blockyard.engine.baselines import FOLDER as BASELINES
from blockyard.engine.baselines import LOST
from blockyard.runs.checkpoint import verify
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.not_started import AlreadyDoneError
from tests.battery.file_operations import FileOperations, Kill
from tests.support.engine_runs import config, state
from tests.support.fork import forked
from tests.support.tiny import TEXT, TINY, steps

# Saves at step 2, which is evaluated, 3, which is not, and 4, the last one and the best.
_SHORT = (*TINY, *steps(4, 2), "optimizer.lr=0.01", "callbacks.checkpoint.every=3")
SHORT = (*_SHORT, "trainer.log_every=2")
LOGGED = (*_SHORT, "trainer.log_every=1")
WORDS = (*TEXT, "tokenizer=bpe", "tokenizer.vocab_size=260", *steps(2, 1), "trainer.log_every=1")
CONFIGS: dict[str, tuple[str, ...]] = {"image": SHORT, "logged": LOGGED, "text": WORDS}
LIMIT = 300.0  # seconds of a run of five steps, on a busy machine


class Job(NamedTuple):
    """A run to train: the name of its config, and the folder of its outputs and caches."""

    config: str
    outputs: Path
    force: bool = False

    def plain(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its complete config and choices."""
        complete, choices = config(self.outputs / "outputs", base=CONFIGS[self.config])
        return complete | {"force": self.force}, choices


def train(job: Job, *, log: Path | None = None) -> int:
    """Start or resume a run in a process of its own. log: where its operations are written, as JSON."""
    plain, choices = job.plain()
    return forked(lambda: _train(plain, choices, job.outputs, None, log), LIMIT)


def train_all(jobs: Sequence[Job]) -> list[int]:
    """Start or resume runs, one after another in one process, and return their exit codes."""
    plain = [job.plain() for job in jobs]
    with tempfile.TemporaryDirectory() as scratch:
        codes = Path(scratch) / "codes.json"

        def work() -> int:
            ended = [_train(*each, job.outputs) for job, each in zip(jobs, plain, strict=True)]
            codes.write_text(json.dumps(ended))
            return 0

        assert forked(work, LIMIT * len(jobs)) == 0
        return list(json.loads(codes.read_text()))


def kill_all(jobs: Sequence[tuple[Job, Kill]]) -> None:
    """Train each in a process of its own until it is killed there. Raises AssertionError for one that is not."""
    plain = [job.plain() for job, _ in jobs]

    def work() -> int:
        _warm_up(*plain[0])
        for (job, kill), each in zip(jobs, plain, strict=True):
            process = os.fork()
            if not process:
                os._exit(_train(*each, job.outputs, kill))
            deadline = time.monotonic() + LIMIT
            while not (status := os.waitpid(process, os.WNOHANG))[0]:
                time.sleep(0.01)
                if time.monotonic() > deadline:
                    os.kill(process, signal.SIGSTOP)
                    return 1
            if status[1] != signal.SIGKILL:
                sys.stderr.write(f"{job} was not killed at {kill}: {status[1]}\n")
                return 1
        return 0

    assert forked(work, LIMIT * len(jobs)) == 0


def _warm_up(plain: dict[str, Any], choices: dict[str, Any]) -> None:
    """Import and read what every run needs, so that the processes forked from this one need not. Takes no step."""
    from blockyard.engine.faults.interrupts import Interrupts
    from blockyard.engine.setup import ignore_metrics, prepare
    from blockyard.runs.start import create_run

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["BLOCKYARD_CACHE"] = f"{scratch}/cache"
        with create_run(plain | {"outputs": scratch}, command=["test"], choices=choices) as folder:
            prepare(folder, ignore_metrics, Interrupts(), resume=False)


def _train(
    plain: dict[str, Any], choices: dict[str, Any], outputs: Path, kill: Kill | None = None, log: Path | None = None
) -> int:
    from blockyard.engine.callbacks.stopwatch import Stopwatch
    from blockyard.engine.run import train as train_run
    from blockyard.runs.start import create_run

    os.environ["BLOCKYARD_CACHE"] = str(outputs / "cache")
    if not hasattr(Stopwatch, "real_lap"):
        # The clock is the only thing in metrics.csv that differs between two runs.
        Stopwatch.real_lap = Stopwatch.lap  # type: ignore[attr-defined]
        Stopwatch.lap = lambda self: self.real_lap() * 0 + self.state.step  # type: ignore[attr-defined,method-assign]
    operations = FileOperations(outputs, kill).install() if kill or log else None
    try:
        with create_run(plain, command=["test"], choices=choices) as folder:
            code = train_run(folder, resume=folder.resumes)
    except AlreadyDoneError:
        code = 0
    if log is not None and operations is not None:
        log.write_text(json.dumps({"done": operations.done, "missed": operations.missed()}))
    return code


def operations(name: str, outputs: Path, log: Path, *, force: bool = False) -> list[str]:
    """Train, and return every file operation of it in order."""
    assert train(Job(name, outputs, force), log=log) == 0
    recorded = json.loads(log.read_text())
    assert not recorded["missed"], f"file operations that are not counted: {recorded['missed']}"
    return list(recorded["done"])


def only_run(outputs: Path) -> RunFolder:
    """The one run of an outputs folder."""
    (config_file,) = outputs.glob("outputs/*/s0/config.yaml")
    return RunFolder.open(config_file.parent)


def files(outputs: Path) -> list[str]:
    """Every file and folder, relative; not what waits in a cache to be removed, as others may be writing it."""
    caches = {"cache", ".baselines"}
    paths = [path for path in outputs.rglob("*") if not (path.name.startswith(TEMPORARY) and caches & {*path.parts})]
    return sorted(str(path.relative_to(outputs)) for path in paths)


def assert_as_undisturbed(outputs: Path, whole: Path) -> None:
    """The run is done with the same files: weights, optimizer and metrics to the last bit; nothing is left over."""
    ours, theirs = only_run(outputs), only_run(whole)
    assert ours.status.state == "done"
    assert not held(ours.path)
    apart = {*files(outputs)} ^ {*files(whole)}
    # A kill after the run is done leaves its baselines for the next run, and says so.
    if LOST in ours.summary().get("baselines_missing", {}).values():
        apart = {path for path in apart if BASELINES not in Path(path).parts}
    assert not apart, sorted(apart)
    assert (ours.path / "metrics.csv").read_bytes() == (theirs.path / "metrics.csv").read_bytes()
    for checkpoint in ("last.ckpt", "best.ckpt", "previous.ckpt"):
        left, right = state(ours, checkpoint), state(theirs, checkpoint)
        assert verify(ours.checkpoints / checkpoint).step == verify(theirs.checkpoints / checkpoint).step, checkpoint
        assert left.keys() == right.keys()
        assert [name for name in left if not _same(left[name], right[name])] == [], checkpoint
    summaries = [read_json(run.path / "summary.json") for run in (ours, theirs)]
    for key in ("metrics", "best", "final", "steps", "weights"):
        assert summaries[0][key] == summaries[1][key], key


def _same(left: Any, right: Any) -> bool:
    import torch

    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
