"""Seconds and memory from the command to the first training step, and to the answers that need no training.

The next job of `train -m` starts in a process that has imported everything: its seconds are those from its own start to
its first step. A process that imports PyTorch and does nothing else is the reference: most of a check is that import.

    python benchmarks/startup.py [--rounds 5] [--strict]

Needs blockyard and nothing else. Each figure is the median of several processes, after one that warms the disk
cache and compiles the modules, as an installation does; the memory is the largest resident set of the process and of
the ones that it starts. The bounds are for 2 free cores; CPU seconds vary less where the cores are busy. With --strict
the exit code is 1 where a figure is above its bound. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

RUN = ("trainer.max_steps=1", "trainer=cpu", "callbacks=quiet", "trainer.limit_val=1", "trainer.limit_test=1")
FIRST_STEP = "first step"
NEXT_JOB = "next job of -m"
REFERENCE = "python -c 'import torch'"
FINISHED = "dry run of a finished sweep"
SWEEP = f"""
claim: One is better
base: [{", ".join(RUN)}, logger=none]
arms: {{plain: [], rms: [norm=rms]}}
seeds: 1
"""


class Bound(NamedTuple):
    """The most seconds and MiB; None where there is no bound."""

    seconds: float | None = None
    mib: float | None = None

    def cells(self) -> tuple[str, str]:
        """Return both as texts; an empty one where there is no bound."""
        seconds = "" if self.seconds is None else str(self.seconds)
        mib = "" if self.mib is None else f"{self.mib:g}"
        return seconds, mib

    def is_exceeded(self, seconds: float, mib: float) -> bool:
        """Return whether one of two measured values is above its bound."""
        too_slow = self.seconds is not None and seconds > self.seconds
        too_large = self.mib is not None and mib > self.mib
        return too_slow or too_large


class Used(NamedTuple):
    """The seconds, the MiB and the CPU seconds of one process."""

    seconds: float
    mib: float
    cpu: float


BOUNDS = {
    FIRST_STEP: Bound(5.0),
    NEXT_JOB: Bound(1.0),
    REFERENCE: Bound(),
    "check": Bound(2.5),
    "list": Bound(0.5, 150),
    "list sweeps": Bound(1.0, 150),
    "explain token_mixer=attention": Bound(1.0, 150),
    "explain qk_norm": Bound(1.0, 150),
    "schema": Bound(1.0, 150),
    "train block=nope": Bound(1.0, 150),
    FINISHED: Bound(1.0, 150),
}


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args(arguments)
    columns = ("until", "median, s", "bound, s", "CPU, s", "memory, MiB", "bound, MiB", "seconds of each")
    sys.stdout.write(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
    with tempfile.TemporaryDirectory() as compiled:
        # Some machines tell Python to compile every module in every process.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        above = print_rows(args.rounds)
    return int(above and args.strict)


def print_rows(rounds: int) -> bool:
    """Print a row of each measurement; return whether one is above its bound."""
    above = False
    for name, bound in BOUNDS.items():
        measure(name)
        processes = sorted(measure(name) for _ in range(rounds))
        seconds = statistics.median(used.seconds for used in processes)
        mib = statistics.median(used.mib for used in processes)
        cpu = statistics.median(used.cpu for used in processes)
        above |= bound.is_exceeded(seconds, mib)
        most_seconds, most_mib = bound.cells()
        times = " ".join(f"{used.seconds:.2f}" for used in processes)
        sys.stdout.write(
            f"| {name} | {seconds:.2f} | {most_seconds} | {cpu:.2f} | {mib:.0f} | {most_mib} | {times} |\n"
        )
        sys.stdout.flush()
    return above


def measure(name: str) -> Used:
    """Return the seconds and the memory of one process, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if name == FIRST_STEP:
            return first_step(Path(folder))
        if name == NEXT_JOB:
            return first_step(Path(folder), "-m", "seed=0,1", seed=1)
        if name == FINISHED:
            Path(folder, "question.yaml").write_text(SWEEP, encoding="utf-8")
            run(["sweep", "question.yaml"], folder)
            return run(["sweep", "question.yaml", "--dry-run"], folder)
        if name == REFERENCE:
            return run_process([sys.executable, "-c", "import torch"], folder)
        return run(name.split(), folder, code=2 if name.endswith("nope") else 0)


def first_step(folder: Path, *more: str, seed: int = 0) -> Used:
    """Return the seconds until `blockyard train` has taken its first step, as the run itself records them."""
    used = run(["train", *more, *RUN, "outputs=outputs"], str(folder))
    summary = next(folder.glob(f"outputs/*/s{seed}/summary.json"))
    return used._replace(seconds=float(json.loads(summary.read_text())["seconds_to_first_step"]))


def run(arguments: Sequence[str], folder: str, code: int = 0) -> Used:
    """Return the seconds and the memory of a command of blockyard. Raises CalledProcessError for another exit code."""
    return run_process([sys.executable, "-m", "blockyard", *arguments], folder, code)


def run_process(command: Sequence[str], folder: str, code: int = 0) -> Used:
    """Return the seconds and the memory of a process. Raises CalledProcessError for another exit code."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise subprocess.CalledProcessError(process.returncode, command)
    kib = usage.ru_maxrss
    if sys.platform == "darwin":  # bytes there
        kib //= 1024
    return Used(seconds, kib / 1024, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
