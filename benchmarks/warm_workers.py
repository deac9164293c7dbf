"""Compares warm worker processes with one new process per cell, for the same cells and the same parallelism.

Both train the same small runs of about a second each, in separate folders: once with the local executor
of `blockyard sweep`, once with one `python -m blockyard train ...` per cell. Each cell has one CPU
thread. Warm workers save the start-up time: Python, torch and Lightning are imported once.

    python benchmarks/warm_workers.py [--cells 24] [--workers 2] [--dry]

Needs only blockyard. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OVERRIDES = (
    "name=warm",
    "data=digits",
    "logger=none",
    "callbacks=quiet",
    "trainer=cpu",
    "trainer.precision=32",
    "trainer.max_epochs=null",
    "trainer.eval_every=100000",
    "model.dim=32",
    "model.depth=1",
    "model.heads=2",
    "data.batch_size=32",
)


def plan(outputs: Path, cells: int, steps: int) -> Any:
    """A plan with one arm and as many seeds as cells."""
    from blockyard.config.compose import compose
    from blockyard.runs.identity import run_name
    from blockyard.sweep.cells import Arm, Cell, Variant
    from blockyard.sweep.plan.sweep_plan import SweepPlan

    composed = compose([*OVERRIDES, f"trainer.max_steps={steps}", f"outputs={outputs}"])
    assert not composed.issues, composed.issues
    return SweepPlan(
        name="warm",
        question={"metric": "test/accuracy", "baseline": "only"},
        outputs=str(outputs),
        arms=(Arm("only"),),
        variants={"only": Variant("only", "only", composed.config, composed.choices)},
        cells=tuple(Cell("only", seed, f"{run_name(composed.config)}/s{seed}") for seed in range(cells)),
    )


def warm(outputs: Path, cells: int, steps: int, workers: int) -> float:
    """Seconds until the last cell has ended, including the start of the workers."""
    from blockyard.sweep.execution.runner import run_plan
    from blockyard.sweep.executor.local import LocalExecutor

    sweep = plan(outputs, cells, steps)
    started = time.perf_counter()
    executor = LocalExecutor(workers=workers, gpus=None, threads=1)
    code = run_plan(sweep, executor, say=lambda text: sys.stderr.write(f"{text}\n"), live=False)
    assert code == 0, "a cell failed"
    return time.perf_counter() - started


def cold(outputs: Path, cells: int, steps: int, workers: int) -> float:
    """Seconds until the last cell has ended with one process per cell, `workers` in parallel."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def cell(seed: int) -> None:
        overrides = [*OVERRIDES, f"trainer.max_steps={steps}", f"outputs={outputs}", f"seed={seed}"]
        command = [sys.executable, "-m", "blockyard", "train", *overrides]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(cell, range(cells)))
    return time.perf_counter() - started


def training_seconds(outputs: Path) -> float:
    """Mean training seconds of a cell, from the summaries of the runs."""
    from blockyard.atomic_files import read_json

    seconds = [read_json(path)["seconds"] for path in outputs.glob("*/s*/summary.json")]
    return sum(seconds) / len(seconds)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="warm workers compared with a process per cell")
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500, help="training steps of a cell; 500 take about a second")
    parser.add_argument("--dry", action="store_true", help="two cells of five steps, to test the script")
    args = parser.parse_args(argv)
    cells, steps = (2, 5) if args.dry else (args.cells, args.steps)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"warm workers": warm, "a process per cell": cold}
        took = {name: side(Path(folder) / name, cells, steps, args.workers) for name, side in sides.items()}
        trained = training_seconds(Path(folder) / "warm workers")
    sys.stdout.write(f"{cells} cells, {args.workers} in parallel, {trained:.2f} s of training in each\n\n")
    sys.stdout.write("| | all cells | per cell |\n|---|---|---|\n")
    for name, seconds in took.items():
        sys.stdout.write(f"| {name} | {seconds:.1f} s | {seconds * args.workers / cells:.2f} s |\n")
    sys.stdout.write(f"\nratio {took['a process per cell'] / took['warm workers']:.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
