"""The scripts in examples/ run as they are, each in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "ecosystem.md"
# What the last line that a script prints begins with.
ENDS = {"hydra_app": "test/accuracy 0.", "lightning_trainer": "sample 0 is a "}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(ENDS[path.stem])


def test_every_example_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [path.stem for path in SCRIPTS] == sorted(ENDS)
    assert [path.name for path in SCRIPTS if f"python examples/{path.name}" not in page] == []
