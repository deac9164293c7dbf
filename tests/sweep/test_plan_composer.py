"""The planner's composer: it reports what check reports, for thousands of cells."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockyard.config.check import check
from blockyard.sweep.plan.cell_composer import CellComposer
from tests.support.paths import ROOT


@pytest.mark.full
def test_the_composer_reports_what_check_reports():
    """Also for invalid configs whose parts appear in valid ones."""
    base = ["experiment=vit_digits", "model.dim=16", "model.heads=2", "model.depth=1", "trainer=cpu"]
    composer = CellComposer()
    lines = [
        [],
        ["optimizer.lr=0.1"],
        ["data.batch_size=60"],
        ["trainer.accumulate=8"],
        ["data.batch_size=60", "trainer.accumulate=8"],  # each alone is valid
        ["token_mixer=fourier"],
        ["position=rope"],
        ["token_mixer=fourier", "position=rope"],  # likewise
        ["optimizer=muon", "optimizer.lr=0.1"],
        ["optimizer=muon", "optimizer.lr=-1"],
        ["trainer.max_epochs=null", "trainer.max_steps=3"],
        ["trainer.max_epochs=null"],
        ["typo=1"],
        ["seed=1.5"],
        ["seed=1"],
        ["model._target_=os.system"],
    ]
    for _ in range(2):
        for line in lines:
            composed, problems = composer.checked([*base, *line])
            assert problems == [str(issue) for issue in check(composed)], line


@pytest.mark.full
@pytest.mark.parametrize("case", ["wide", "tall"])
def test_ten_thousand_cells(case):
    """Within a gigabyte; how long it takes is printed, and under a minute on two cores that do nothing else."""
    script = ROOT / "benchmarks" / "plan_10000.py"
    done = subprocess.run([sys.executable, str(script), case], capture_output=True, text=True, check=True)
    sys.stdout.write(done.stdout)
    assert "10,000 cells" in done.stdout
    assert int(done.stdout.split("peak memory ")[1].split()[0].replace(",", "")) <= 1024
    assert float(done.stdout.split("plan.json ")[1].split()[0]) <= 10.0
