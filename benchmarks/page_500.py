"""How long the page of 500 runs takes to open: 100 arms, 5 seeds, 200 points a curve, in a real Chromium.

    python benchmarks/page_500.py [--arms 100] [--seeds 5] [--rounds 5]

Each round opens the file in a new window. "usable" is from the start of the load until the answer, the
table and the first charts stand and the browser is idle again; "all" is when every chart below has been
scrolled into view and drawn. The answer is a Markdown table on standard output. Needs Chromium
(Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

IDLE = (
    """() => new Promise((done) => requestAnimationFrame(() => requestIdleCallback(() => done(performance.now()))))"""
)


def measure(arms: int, seeds: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Seconds of each round by what is measured, and the page's size in bytes."""
    from tests.report.browser import address, launched, scroll
    from tests.report.page_data import comparison

    from blockyard.report.page import write

    found: dict[str, list[float]] = {
        "writing the file": [],
        "opening it, until usable": [],
        "and every chart drawn": [],
    }
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        made = comparison(arms=arms, seeds=seeds, points=200)
        for _ in range(rounds):
            started = time.perf_counter()
            path = write(made, Path(folder) / "report.html")
            found["writing the file"].append(time.perf_counter() - started)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address(path), wait_until="commit")
            page.wait_for_selector("#arms-table")
            found["opening it, until usable"].append(page.evaluate(IDLE) / 1000)
            scroll(page)
            found["and every chart drawn"].append(page.evaluate(IDLE) / 1000)
            page.close()
        return found, path.stat().st_size


def main() -> int:
    """Print the table."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--arms", type=int, default=100)
    read.add_argument("--seeds", type=int, default=5)
    read.add_argument("--rounds", type=int, default=5)
    asked = read.parse_args()
    found, size = measure(asked.arms, asked.seeds, asked.rounds)
    print(f"{asked.arms} arms x {asked.seeds} seeds, {size / 1e6:.1f} MB, {asked.rounds} rounds\n")
    print("| | median | slowest |\n|---|---|---|")
    for name, seconds in found.items():
        print(f"| {name} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
