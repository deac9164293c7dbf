"""Cells that share a process, their weights stacked, against the same cells one after another: time of a step.

    python benchmarks/stacked.py [--cells 8] [--rounds 3] [--steps 120] [--device cpu|gpu] [--dry]

Real cells of a sweep, as `executor.cells_per_process` trains them, with their own data, optimizers, logs and
checkpoints; AdamW, decoders of Python's source. What is compared is the time that a step of one cell takes between two
rows of the log, alone and as one of so many; medians over rounds, which alternate. On a CPU one thread computes.
The last line says how far weights of the two are apart.

`benchmarks/packed.py` has the same of plain torch: what is left once loops, logs and hooks cost nothing.
Needs blockyard. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

MODELS = {  # of about 10 k, 100 k and a million parameters
    "10 k": ("model.dim=16", "model.depth=3", "model.heads=2"),
    "100 k": ("model.dim=48", "model.depth=3"),
    "1 M": ("model.dim=160", "model.depth=3"),
}
TOKENS = ((1, 16), (16, 64))  # sequences of a batch and their length
EVERY = 10  # steps between two rows of the log


def tasks(outputs: Path, overrides: list[str], seeds: range) -> list[Any]:
    """A task a seed."""
    from blockyard.config.compose import compose
    from blockyard.runs.identity import run_name
    from blockyard.sweep.cells import Task

    runs = []
    for seed in seeds:
        composed = compose([*overrides, f"outputs={outputs}", f"seed={seed}"])
        runs.append(Task(f"{run_name(composed.config)}/s{seed}", composed.config, composed.choices, ("benchmark",)))
    return runs


def step_seconds(outputs: Path, runs: list[Any]) -> float:
    """The median time of a step of finished cells, over the stretches between two rows of the log."""
    from blockyard.atomic_files import read_json

    return statistics.median(read_json(outputs / task.key / "summary.json")["step_seconds"] for task in runs)


def trained(outputs: Path, overrides: list[str], cells: int, *, together: bool) -> tuple[float, list[Any]]:
    """Seconds of a step of one cell, and the tasks, trained together or the first one alone."""
    from blockyard.sweep.cell.execute import execute, execute_together

    runs = tasks(outputs, overrides, range(cells if together else 1))
    outcomes: list[Any] = []
    if together:
        execute_together(runs, outcomes.append)
    else:
        outcomes.append(execute(runs[0]))
    if any(outcome.code for outcome in outcomes):
        raise SystemExit(f"a cell failed: {outcomes}")
    return step_seconds(outputs, runs), runs


def largest_gap(folders: list[Path], key: str) -> float:
    """The largest difference of a weight of one cell in two folders, as a share of the largest entry of its weight."""
    import torch

    states = [torch.load(f / key / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for f in folders]
    gaps = [(states[0][name] - value).abs().max() / value.abs().max() for name, value in states[1].items()]
    return float(torch.stack(gaps).max())


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8, help="cells of one process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--dry", action="store_true", help="one small size, to test the script")
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    if args.device == "gpu" and not torch.cuda.is_available():
        sys.stderr.write("stacked: there is no GPU here\n")
        return 2
    base = ["experiment=gpt_code_small", "optimizer=adamw", "logger=none", "callbacks=quiet", f"trainer={args.device}"]
    base += [f"trainer.max_steps={args.steps}", "trainer.max_epochs=null", f"trainer.eval_every={args.steps}"]
    base += [f"trainer.log_every={EVERY}", "trainer.limit_val=1", "trainer.limit_test=1"]
    sizes, tokens = (list(MODELS)[:1], TOKENS[:1]) if args.dry else (list(MODELS), TOKENS)
    sys.stdout.write(f"{args.cells} cells of one process; {args.steps} steps; medians of {args.rounds} rounds\n\n")
    sys.stdout.write("| parameters | tokens a batch | step alone | together, a cell | ratio |\n|---|---|---|---|---|\n")
    worst = 0.0
    for size in sizes:
        for batch, context in tokens:
            overrides = [*base, *MODELS[size], f"data.batch_size={batch}", f"data.context={context}"]
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(args.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    folders = [Path(folder) / "alone", Path(folder) / "together"]
                    for took, outputs, together in zip(times, folders, (False, True), strict=True):
                        seconds, runs = trained(outputs, overrides, args.cells, together=together)
                        took.append(seconds)
                    worst = max(worst, largest_gap(folders[::-1], runs[0].key))
            alone, joint = (statistics.median(each) for each in times)
            row = (
                size,
                f"{batch * context:,}",
                f"{1e3 * alone:.2f} ms",
                f"{1e3 * joint:.2f} ms",
                f"{alone / joint:.2f}",
            )
            sys.stdout.write(f"| {' | '.join(row)} |\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"\nafter {args.steps} steps the first cell's weights differ by {worst:.1g} of the largest at most\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
