"""The scripts in examples/ and the notebook of the tutorial run, each in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fork import script
from tests.support.paths import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
PAGE = ROOT / "docs" / "ecosystem.md"
# What the last line that a script prints begins with.
ENDS = {
    "hydra_app": "test/accuracy 0.",
    "lightning_trainer": "sample 0 is a ",
    "lm_eval_export": "bits per byte ",
    "load_export": "transformers writes 'def forward(self, x):",
    "wandb_run": "51,530 weights; run-",
}
NEEDS = {"lm_eval_export": ("lm_eval", "accelerate")}  # packages that are in no extra


def alone(folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """What a script prints in a new Python, whose packages read as they are imported that there is no network."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(path)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.sampled(100)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    done = alone(tmp_path, path) if path.stem in NEEDS else script(tmp_path, path, limit=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(ENDS[path.stem])


def test_every_example_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [path.stem for path in SCRIPTS] == sorted(ENDS)
    assert [path.name for path in SCRIPTS if f"python examples/{path.name}" not in page] == []


# What stands in a cell, and what the test runs in its place.
SHORTER = {"STEPS = 100": "STEPS = 2", '"seeds": 3': '"seeds": 1', "workers=2": "workers=1"}
# Checked after the last cell: the predictions, and that each object of the notebook shows a table.
AFTERWARDS = """
assert len(predicted) == len(samples) > 300
plan = SweepPlan.load(Path("outputs/sweeps/prose_positions"))
for shown in (comparison, plan, run, runs):
    assert "<table>" in shown._repr_html_()
"""


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells one after the other, of fewer steps and seeds; in git it is without outputs. A kernel is not needed."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    source = "\n".join("".join(cell["source"]) for cell in code) + AFTERWARDS
    for there, here in SHORTER.items():
        assert there in source
        source = source.replace(there, here)
    code_of_cells = tmp_path.with_suffix(".py")
    code_of_cells.write_text(source, encoding="utf-8")
    done = script(tmp_path, code_of_cells, limit=600)
    assert done.returncode == 0, done.stderr
    assert "rope > learned" in done.stdout
    assert "test/accuracy" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs", "topics.txt"]
