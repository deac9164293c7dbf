"""A run in a folder whose name has any byte: it ends as any other, and its path is printed in escapes."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.every import every
from tests.support.fork import blockyard
from tests.support.tiny import SHORTEST


def test_a_folder_with_any_byte_in_its_name(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\x1b[2J"))
    folder.mkdir()
    for expected in ("done in", "is already done"):
        completed = blockyard(folder, "train", *SHORTEST)
        assert completed.returncode == 0, completed
        assert expected in completed.stdout
        assert r"a\udcff\x1b[2J" in completed.stdout
        assert "Traceback" not in completed.stderr
        assert every(line.isprintable() for line in (completed.stdout + completed.stderr).splitlines())
