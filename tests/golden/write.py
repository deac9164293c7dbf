"""Write the golden files again, where a change is meant.

python -m tests.golden.write            all of them, in a minute or two
python -m tests.golden.write help plans some of them
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import content
from tests.support.isolation import isolate_environment
from tests.support.paths import ROOT, SHARED
from tests.sweep.shipped_plans import NEED_FILES, NEED_RUNS, SWEEPS, plan_of_shipped
from tools.compat import command, interrupted, prune

FOLDER = Path(__file__).parent
# Beside the runs of tests/compat: another optimizer, an averaged copy of the weights, dropout, and accumulation.
DECODER_RUN = (
    *("data=code", "data.context=8", "data.batch_size=4", "tokenizer=byte", "model=decoder", "head=token"),
    *("objective=next_token", "model.dim=8", "model.depth=1", "model.heads=2", "token_mixer.dropout=0.1"),
    *("optimizer=muon", "callbacks=[quiet,ema]", "logger=none", "trainer=cpu", "trainer.precision=32"),
    *("trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=2", "trainer.accumulate=2"),
    *("trainer.limit_val=1", "trainer.limit_test=1"),
)
LINE = 120  # characters


def stored(name: str) -> Any:
    """Return the content of a golden file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, value: Any) -> None:
    """Write a golden file, one entry a line where it fits, so that a difference is read in a diff."""
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_laid_out(value, 0) + "\n", encoding="utf-8")


def _laid_out(value: Any, depth: int) -> str:
    """Return JSON text in which only values that are longer than a line are broken into lines."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + depth <= LINE or not isinstance(value, dict | list):
        return text
    indent = "\n" + " " * (depth + 1)
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(item, depth + 1)}" for key, item in value.items()
        ]
        opening, closing = "{", "}"
    else:
        entries = [_laid_out(item, depth + 1) for item in value]
        opening, closing = "[", "]"
    return opening + indent + f",{indent}".join(entries) + "\n" + " " * depth + closing


def write_plans() -> None:
    """Write the plan of every shipped sweep; sweeps over files that are absent here keep theirs."""
    os.chdir(ROOT)
    for name in SWEEPS:
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_of_shipped(name, Path(folder), SHARED if SHARED.is_dir() else None)
        if name not in NEED_FILES and name not in NEED_RUNS and plan is not None:  # no path of this machine
            write(f"plans/{name}", content.plan_content(plan))


def write_runs() -> None:
    """Write two runs of one decoder to runs/: one that ended, and one that was interrupted after step 4."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        command(folder, "train", *DECODER_RUN, "name=whole")
        interrupted(folder, 4, *DECODER_RUN, "name=interrupted")
        prune(folder)
        shutil.rmtree(FOLDER / "runs", ignore_errors=True)
        for path in folder.glob("outputs/whole-*/s0/checkpoints"):
            shutil.rmtree(path)
        shutil.copytree(folder / "outputs", FOLDER / "runs")


def main(names: list[str]) -> None:
    """Write the golden files of these names, or all of them."""
    isolate_environment()
    writers = {
        "identities": content.identities,
        "options": content.class_options,
        "help": content.help_texts,
        "refusals": content.refusals,
        "comparisons": content.comparisons,
    }
    for name in names or [*writers, "plans", "runs"]:
        if name == "plans":
            write_plans()
        elif name == "runs":
            write_runs()
        elif name in ("refusals", "comparisons"):
            with tempfile.TemporaryDirectory() as folder:
                write(name, writers[name](Path(folder)))
        else:
            write(name, writers[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
