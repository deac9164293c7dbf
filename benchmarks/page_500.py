"""How long the page of 500 runs takes to open: 100 arms, 5 seeds, 200 points a curve, in a real Chromium.

    python benchmarks/page_500.py [--arms 100] [--seeds 5] [--rounds 5]

Each round opens the file in a new window. "usable" is the time from the start of loading until the answer, the
table and the first charts are drawn and the browser is idle again; "all charts" is the time until every chart below
has been scrolled into view and drawn. Prints a Markdown table. Needs Chromium (Debian: apt-get install chromium).
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
    """Return the seconds of each round by what is measured, and the size of the page in bytes."""
    from blockyard.report.page import write
    from tests.report.page_data import comparison
    from tools.browser import address, launched, scroll

    seconds: dict[str, list[float]] = {"writing the file": [], "opening it, until usable": [], "all charts drawn": []}
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        data = comparison(arms=arms, seeds=seeds, points=200)
        for _ in range(rounds):
            started = time.perf_counter()
            path = write(data, Path(folder) / "report.html")
            seconds["writing the file"].append(time.perf_counter() - started)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address(path), wait_until="commit")
            page.wait_for_selector("#arms-table")
            seconds["opening it, until usable"].append(page.evaluate(IDLE) / 1000)
            scroll(page)
            seconds["all charts drawn"].append(page.evaluate(IDLE) / 1000)
            page.close()
        return seconds, path.stat().st_size


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    seconds, size = measure(args.arms, args.seeds, args.rounds)
    print(f"{args.arms} arms x {args.seeds} seeds, {size / 1e6:.1f} MB, {args.rounds} rounds\n")
    print("| | median | slowest |\n|---|---|---|")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} s | {max(values):.2f} s |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
