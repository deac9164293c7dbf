"""Warm worker processes against a process per cell: the same cells, the same number at a time.

Both sides train the same small runs, of about a second each, to the end, with their own folders:
once through `blockyard sweep`'s local executor, once as `python -m blockyard train ...` each. One CPU
thread for a cell. What warm workers save is the start: Python, torch and Lightning are imported once.

    python benchmarks/warm_workers.py [--cells 24] [--workers 2] [--dry]

Needs blockyard and nothing else. The answer is a Markdown table on standard output.
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

WORDS = (
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
    """One arm, as many seeds as cells."""
    from blockyard.config.compose import compose
    from blockyard.runs.identity import run_name
    from blockyard.sweep.plan.sweep_plan import Arm, Cell, SweepPlan, Variant

    composed = compose([*WORDS, f"trainer.max_steps={steps}", f"outputs={outputs}"])
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
    """Seconds from nothing to the last cell, the start of the workers included."""
    from blockyard.sweep.execution.runner import run
    from blockyard.sweep.executor.local import LocalExecutor

    made = plan(outputs, cells, steps)
    began = time.perf_counter()
    executor = LocalExecutor(workers=workers, gpus=None, threads=1)
    code = run(made, executor, say=lambda text: sys.stderr.write(f"{text}\n") and None, live=False)
    assert code == 0, "a cell failed"
    return time.perf_counter() - began


def cold(outputs: Path, cells: int, steps: int, workers: int) -> float:
    """Seconds for a process per cell, `workers` at a time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def cell(seed: int) -> None:
        words = [*WORDS, f"trainer.max_steps={steps}", f"outputs={outputs}", f"seed={seed}"]
        command = [sys.executable, "-m", "blockyard", "train", *words]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(cell, range(cells)))
    return time.perf_counter() - began


def seconds_of(outputs: Path) -> float:
    """Mean seconds of training in a cell, from the runs' own summaries."""
    from blockyard.atomic_files import read_json

    found = [read_json(path)["seconds"] for path in outputs.glob("*/s*/summary.json")]
    return sum(found) / len(found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="warm workers against a process per cell")
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500, help="updates of a cell; 500 take about a second")
    parser.add_argument("--dry", action="store_true", help="two cells of five steps: does it run at all?")
    asked = parser.parse_args(argv)
    cells, steps = (2, 5) if asked.dry else (asked.cells, asked.steps)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"warm workers": warm, "a process per cell": cold}
        took = {name: side(Path(folder) / name, cells, steps, asked.workers) for name, side in sides.items()}
        trained = seconds_of(Path(folder) / "warm workers")
    sys.stdout.write(f"{cells} cells, {asked.workers} at a time, {trained:.2f} s of training in each\n\n")
    sys.stdout.write("| | all cells | per cell |\n|---|---|---|\n")
    for name, seconds in took.items():
        sys.stdout.write(f"| {name} | {seconds:.1f} s | {seconds * asked.workers / cells:.2f} s |\n")
    sys.stdout.write(f"\nratio {took['a process per cell'] / took['warm workers']:.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
