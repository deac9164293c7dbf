"""Writes small runs of this release to tests/compat/<version>/, which tests load, evaluate, resume and compare.

    python tools/compat.py

Once for each release, before it is tagged: a ViT, a decoder of text with a learned tokenizer, a run that was
interrupted, and a sweep of two arms, at most 200 kB together.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blockyard.cli import main as main_of_blockyard  # noqa: E402
from blockyard.engine.callbacks.loop import LoopCallback  # noqa: E402

COMPAT = ROOT / "tests" / "compat"
LIMIT = 200_000  # bytes
TINY = ["model.dim=8", "model.depth=1", "model.heads=2", "logger=none", "callbacks=quiet", "trainer=cpu"]
TINY += ["trainer.precision=32", "trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=2"]
TINY += ["trainer.limit_val=1", "trainer.limit_test=1"]
DIGITS = ["data=digits", "data.batch_size=16", *TINY]
TEXT = ["data=text_file", "data.path=text.txt", "data.context=8", "data.batch_size=4", "tokenizer=char", *TINY]
TEXT += ["model=decoder", "head=token", "objective=next_token"]
SWEEP = """\
claim: Positions help a small ViT
base: {base}
baseline: without
arms:
  without: [position=none]
  with: [position=learned]
seeds: 2
metric: test/loss
expect: with < without
"""


def command(folder: Path, *arguments: str) -> None:
    """Run one command in a folder."""
    line = [sys.executable, "-m", "blockyard", *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def interrupted(folder: Path, step: int, *arguments_of_train: str) -> None:
    """Train in a process that gets SIGTERM after a number of steps."""
    # A fork would wait forever for torch's threads, which this process may have started and a fork does not have.
    process = multiprocessing.get_context("spawn").Process(target=_train_until, args=(folder, step, arguments_of_train))
    process.start()
    process.join()
    code = process.exitcode
    if code != 128 + signal.SIGTERM:
        sys.exit(f"exit code {code} after SIGTERM")


def _train_until(folder: Path, step: int, arguments_of_train: tuple[str, ...]) -> None:
    original = LoopCallback.on_train_batch_start

    def strike(self: LoopCallback, *arguments: Any) -> None:
        original(self, *arguments)
        if self.state.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]
    os.chdir(folder)
    os._exit(main_of_blockyard(["train", *arguments_of_train]))


def write(folder: Path) -> None:
    """Write the runs of this release into an empty folder."""
    lines = [f"{number} times {number} is {number * number}.\n" for number in range(120)]
    (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "positions.yaml").write_text(SWEEP.format(base=json.dumps(DIGITS)), encoding="utf-8")
    command(folder, "train", *DIGITS, "name=vit")
    command(folder, "train", *TEXT, "name=gpt")
    interrupted(folder, 4, *DIGITS, "name=interrupted")
    command(folder, "sweep", "positions.yaml", "executor.workers=1")
    prune(folder)


def prune(folder: Path) -> None:
    """Delete what need not be kept: checkpoints that others stand for, locks, pages, and where it was written."""
    for path in sorted(folder.rglob("*")):
        run = path.parents[2].name
        kept = run.startswith("interrupted-") or (run.startswith(("vit-", "gpt-")) and path.name == "best.ckpt")
        kept &= path.name != "previous.ckpt"
        if path.is_file() and (
            (path.suffix == ".ckpt" and not kept) or path.suffix in (".lock", ".html", ".log", ".svg")
        ):
            path.unlink()
        elif path.is_file() and path.suffix in (".json", ".yaml"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(str(folder), "/runs").replace(str(ROOT), "/blockyard"), encoding="utf-8")


def main() -> None:
    """Write the folder of this release, where there is none yet."""
    from blockyard import __version__

    target = COMPAT / __version__
    if target.exists():
        sys.exit(f"{target} exists; a release is written once")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        write(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if size > LIMIT:
            sys.exit(f"{size} bytes, more than {LIMIT}")
        shutil.copytree(folder, target, symlinks=True)
    print(f"{target}: {size} bytes")


if __name__ == "__main__":
    main()
