"""A run in a folder with control characters in its name ends as any other; one whose name is not text is refused."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.every import every
from tests.support.fork import blockyard
from tests.support.tiny import SHORTEST


def test_a_folder_with_control_characters_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2J"
    folder.mkdir()
    for expected in ("done in", "is already done"):
        completed = blockyard(folder, "train", *SHORTEST)
        assert completed.returncode == 0, completed
        assert expected in completed.stdout
        assert r"a\x1b[2J" in completed.stdout
        assert "Traceback" not in completed.stderr
        assert every(line.isprintable() for line in (completed.stdout + completed.stderr).splitlines())


def test_a_folder_whose_name_is_not_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Configs, plans and the parent of a longer run are text, so a later command could not name it."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    folder.mkdir()
    completed = blockyard(folder, "train", *SHORTEST)
    assert completed.returncode == 2, completed
    assert r"a\udcff/outputs' is not UTF-8; rename it, or use another" in completed.stderr
    assert completed.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []
