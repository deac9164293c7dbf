"""What a run does not import before its first step, nor a check at all: a second of start-up each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny import TINY

HEAVY = ("transformers", "torchvision", "scipy", "matplotlib", "sklearn", "pandas", "timm", "wandb", "optuna")
CODE = f"""
import sys
from blockyard.cli import main
from blockyard.engine.callbacks.stopwatch import Stopwatch
original = Stopwatch.step
def step(self):
    original(self)
    print("IMPORTED", *[name for name in {HEAVY!r} if name in sys.modules])
Stopwatch.step = step
code = main(sys.argv[1:])
import scipy.stats, torchvision, transformers  # what counted as absent can be imported afterwards
print("LATER", transformers.AutoModel.__name__)
sys.exit(code)
"""


def test_a_plain_run_imports_nothing_heavy_before_its_first_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, "train", *TINY, "trainer.max_steps=1", f"outputs={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "IMPORTED"
    assert "LATER AutoModel" in done.stdout


def test_a_check_imports_neither_the_compiler_nor_the_trainer() -> None:
    names = (*HEAVY, "torch._dynamo", "torch._inductor", "sympy", "pytorch_lightning", "torchmetrics")
    code = (
        "import sys; from blockyard.cli import main; code = main(['check'])\n"
        f"print('IMPORTED', *[name for name in {names!r} if name in sys.modules])\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "forward FLOPs per sample" in done.stdout
    assert done.stdout.splitlines()[-1] == "IMPORTED"


@pytest.mark.full
def test_packages_of_ones_own_get_all_of_torchmetrics() -> None:
    code = (
        "import sys; from blockyard.objective._torchmetrics import import_torchmetrics\n"
        "import_torchmetrics(['mine']); print('scipy' in sys.modules, sys.meta_path[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True")
    assert "_Absent" not in done.stdout
