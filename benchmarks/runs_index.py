"""How long `blockyard runs` takes over 10,000 runs: without an index, with one, and after one run has changed.

    python benchmarks/runs_index.py [--arms 2000] [--seeds 5] [--rounds 5]

Every run is a folder with the config, choices, status and summary of a real run of vit_digits; learning rate, seed and
accuracy differ. Each listing is a process of its own, start of Python included; `--help` is that start alone. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INDEX = ".runs.sqlite3"


def write_runs(outputs: Path, arms: int, seeds: int) -> Path:
    """Write the run folders; returns the last one."""
    from blockyard.atomic_files import write_json
    from blockyard.config.compose import compose
    from blockyard.runs.start import create_run
    from blockyard.runs.status import Status, write_status

    composed = compose(["experiment=vit_digits", f"outputs={outputs}", "logger=none"])
    assert not composed.issues, composed.issues
    with create_run(composed.config, command=["benchmark"], choices=composed.choices) as run:
        first = run.path
    write_status(first, Status("done", started="2026-11-22T10:00:00.000Z", ended="2026-11-22T11:00:00.000Z"))
    summary = {"metrics": {"test/accuracy": 0.5}, "directions": {"test/accuracy": "max"}}
    write_json(first / "summary.json", {**summary, "parameters": {"trainable": 7}})
    names = ("config.yaml", "run.json", "status.json", "summary.json")
    texts = {name: (first / name).read_text(encoding="utf-8") for name in names}
    assert "\nseed: 0\n" in texts["config.yaml"]
    path = first
    for arm in range(arms):
        for seed in range(seeds):
            path = outputs / f"{first.parent.name.rpartition('-')[0]}-{arm:010x}" / f"s{seed}"
            path.mkdir(parents=True)
            changed = {
                "config.yaml": texts["config.yaml"].replace("\nseed: 0\n", f"\nseed: {seed}\n"),
                "summary.json": texts["summary.json"].replace("0.5", f"{(arm * 7 + seed) % 1000 / 1000}"),
            }
            for name, text in (texts | changed).items():
                (path / name).write_text(text, encoding="utf-8")
    return path


def seconds(outputs: Path, *arguments: str) -> float:
    """The wall time of `blockyard runs` with these arguments."""
    command = [sys.executable, "-m", "blockyard", "runs", *arguments]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=outputs.parent)
    return time.perf_counter() - started


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows: dict[str, list[float]] = {
        name: []
        for name in ("no index: it is written", "index", "index, best of a metric", "index, one changed", "--help")
    }
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "outputs"
        last = write_runs(outputs, args.arms, args.seeds)
        where = f"outputs={outputs}"
        for each in range(args.rounds):
            if not each:  # it is rare
                (outputs / INDEX).unlink(missing_ok=True)
                rows["no index: it is written"].append(seconds(outputs, where))
            rows["index"].append(seconds(outputs, where))
            rows["index, best of a metric"].append(seconds(outputs, where, "--best", "test/accuracy"))
            os.utime(last / "summary.json")
            rows["index, one changed"].append(seconds(outputs, where))
            rows["--help"].append(seconds(outputs, "--help"))
    print(f"{args.arms * args.seeds:,} runs\n\n| listing | median, s | each |\n|---|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.2f} | {' '.join(f'{value:.2f}' for value in sorted(values))} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
