"""Measures the time and the memory of planning a sweep of 10,000 cells.

    python benchmarks/plan_10000.py [wide|tall|both]

wide: 1,000 arms (a grid over four families of choices and learning rates) on 10 seeds
tall: 10,000 arms (a grid over learning rates, weight decays and depths) on 1 seed
Each case runs in its own process: the plan is composed, checked, saved and loaded again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDE = """
claim: One of a thousand arms is better
base: [experiment=vit_digits]
grid:
  block: [pre_norm, post_norm]
  position: [none, learned, sinusoidal, rope, alibi]
  norm: [layer, rms]
  channel_mixer: [mlp, glu]
  optimizer.lr: [1e-4, 2e-4, 3e-4, 5e-4, 7e-4]
  model.depth: [1, 2, 3, 4, 5]
seeds: 10
"""
TALL = """
claim: One of ten thousand arms is better
base: [experiment=vit_digits]
grid:
  optimizer.lr: [{rates}]
  optimizer.weight_decay: [{decays}]
  model.depth: [{depths}]
seeds: 1
"""


def text(case: str) -> str:
    """The sweep file of a case."""
    if case == "wide":
        return WIDE
    numbers = [", ".join(f"{n * scale:.3g}" for n in range(1, 26)) for scale in (1e-4, 1e-2)]
    return TALL.format(rates=numbers[0], decays=numbers[1], depths=", ".join(map(str, range(1, 17))))


def plan(case: str) -> None:
    """Plan a case in this process and print time, file size and memory."""
    from blockyard.engine.system.process import resident_peak
    from blockyard.sweep.plan.planner import make_plan
    from blockyard.sweep.plan.sweep_plan import SweepPlan

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{case}.yaml"
        file.write_text(text(case))
        started = time.perf_counter()
        sweep = make_plan(file, outputs=folder)
        planned = time.perf_counter()
        size = sweep.save().stat().st_size
        loaded = SweepPlan.load(sweep.folder)
        ended = time.perf_counter()
    assert len(sweep.cells) == 10_000, len(sweep.cells)
    assert loaded.cells == sweep.cells
    peak = resident_peak() / 2**20
    print(
        f"{case}: {len(sweep.arms):,} arms, {len(sweep.cells):,} cells, planned in {planned - started:.1f} s, "
        f"saved and loaded in {ended - planned:.1f} s, plan.json {size / 1e6:.1f} MB, peak memory {peak:,.0f} MiB"
    )


if __name__ == "__main__":
    case = sys.argv[1] if len(sys.argv) > 1 else "both"
    if case == "both":
        for each in ("wide", "tall"):
            subprocess.run([sys.executable, __file__, each], check=True)
    else:
        plan(case)
