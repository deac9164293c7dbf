"""The golden files hold: see content.py for their content and write.py for how they are written again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from blockyard.runs.folder import RunFolder
from tests.golden import content
from tests.golden.write import FOLDER, stored
from tests.support.fork import blockyard
from tests.support.metrics_files import assert_equal_metrics


def plain(value: Any) -> Any:
    """Return a value as it is read back from JSON."""
    return json.loads(json.dumps(value))


def test_identities_of_experiments_presets_and_choices() -> None:
    assert content.identities() == stored("identities")


def test_options_of_every_class() -> None:
    assert content.class_options() == stored("options")


def test_help_of_every_command() -> None:
    assert content.help_texts() == stored("help")


def test_refusals_of_bad_command_lines(tmp_path: Path) -> None:
    assert content.refusals(tmp_path) == stored("refusals")
    assert list(tmp_path.iterdir()) == []


def test_comparisons_and_pages_of_finished_sweeps(tmp_path: Path) -> None:
    assert plain(content.comparisons(tmp_path)) == stored("comparisons")


def test_an_interrupted_run_resumes_to_the_end_of_the_whole_one(tmp_path: Path) -> None:
    outputs = Path(shutil.copytree(FOLDER / "runs", tmp_path / "outputs"))
    (interrupted,), (whole,) = outputs.glob("interrupted-*/s0"), outputs.glob("whole-*/s0")
    done = blockyard(tmp_path, "train", f"resume={interrupted}")
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(interrupted).status.state == "done"
    assert_equal_metrics(interrupted, whole)
