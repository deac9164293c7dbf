"""Seconds from the command to the first training step, to the answer of `check`, and to the list of choices.

The next job of `train -m` starts in a process that has imported everything: its seconds are those from its own start to
its first step.

    python benchmarks/startup.py [--rounds 5] [--strict]

Needs blockyard and nothing else. Each figure is the median of several processes, after one that warms the disk
cache. The bounds are for 2 free cores; with --strict the exit code is 1 where a figure is above its bound. The answer
is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = ("trainer.max_steps=1", "trainer=cpu", "callbacks=quiet", "trainer.limit_val=1", "trainer.limit_test=1")
BOUNDS = {"first step": 5.0, "next job of -m": 1.0, "check": 2.5, "list": 0.5}


def first_step(*more: str, seed: int = 0) -> float:
    """Of `blockyard train` as a user types it: the run itself records when its process had taken the first step."""
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, "-m", "blockyard", "train", *more, *RUN, f"outputs={outputs}"]
        subprocess.run(command, check=True, capture_output=True)
        summary = next(Path(outputs).glob(f"*/s{seed}/summary.json"))
        return float(json.loads(summary.read_text())["seconds_to_first_step"])


def command(verb: str) -> float:
    """Of a whole command."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "blockyard", verb], check=True, capture_output=True)
    return time.perf_counter() - start


def measure(name: str) -> float:
    """One process."""
    if name == "next job of -m":
        return first_step("-m", "seed=0,1", seed=1)
    return first_step() if name == "first step" else command(name)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args(arguments)
    sys.stdout.write("| until | median, s | bound, s | each |\n|---|---|---|---|\n")
    slow = False
    for name, bound in BOUNDS.items():
        measure(name)
        seconds = sorted(measure(name) for _ in range(args.rounds))
        median = statistics.median(seconds)
        slow |= median > bound
        each = " ".join(f"{value:.2f}" for value in seconds)
        sys.stdout.write(f"| {name} | {median:.2f} | {bound} | {each} |\n")
        sys.stdout.flush()
    return int(slow and args.strict)


if __name__ == "__main__":
    sys.exit(main())
