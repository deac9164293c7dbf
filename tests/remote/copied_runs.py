"""A folder of runs and a storage beside it, for tests of push and pull."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_yaml, write_json
from blockyard.cli import main
from blockyard.report.comparison import compare
from blockyard.report.page import write as write_page
from blockyard.runs.checkpoint_io import AtomicCheckpointIO
from blockyard.runs.identity import identity
from tests.report.report_runs import NORMS, sweep
from tests.runs.checkpoints import tiny_content

VALUES: dict[str, dict[int, float | str]] = {"post": {0: 0.90, 1: 0.91}, "pre": {0: 0.93, 1: "failed", 2: "running"}}
LARGE = 400_000  # numbers of a checkpoint that is read in parts

Typed = Callable[..., tuple[str, str]]


def make_outputs(folder: Path) -> Path:
    """Return a folder of a compared sweep: three finished runs with checkpoints, a failed one, and one that runs."""
    outputs = folder / "outputs"
    plan = sweep(outputs, NORMS, VALUES, name="norms")
    for summary in outputs.glob("*/s*/summary.json"):
        run = summary.parent
        config = read_yaml(run / "config.yaml")
        io = AtomicCheckpointIO(identity=identity(config), seed=config["seed"])
        io.save_checkpoint(tiny_content(1, LARGE), run / "checkpoints" / "best.ckpt")
        (run / "log.txt").touch()
        (run / "wandb").mkdir()
        (run / "wandb" / "debug.log").write_text("x")
        (run / "own.bin").write_text("x")
    document = compare(plan, changes=False).as_dict()
    write_json(plan.folder / "comparison.json", document)
    write_page(document, plan.folder / "report.html")
    (plan.folder / "search.db").write_text("x")
    return outputs


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, without locks and the index."""
    content = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith((".lock", ".sqlite3")):
            content[path.relative_to(folder).as_posix()] = path.read_bytes()
    return content


def typed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run `blockyard runs ...`; return its output and its messages."""
    capsys.readouterr()
    got = main(["runs", *arguments])
    captured = capsys.readouterr()
    assert got == code, captured
    return captured.out, captured.err


def forge(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest in the copy of a run."""
    path = run / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def seal(run: Path, name: str, content: bytes) -> None:
    """Write a file into the copy of a run, with its sum in the manifest."""
    (run / name).write_bytes(content)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    forge(run, lambda manifest: manifest["members"].update({name: entry}))
