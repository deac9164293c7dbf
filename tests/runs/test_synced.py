"""Files that are replaced are on the disk before they have their name, and their name is before the call returns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockyard.atomic_files import TEMPORARY, write_text


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def synced(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append("folder" if path == tmp_path else f"file {path.name.startswith(TEMPORARY)} {path.read_text()}")

    def renamed(source: Path, target: Path) -> None:
        calls.append("renamed")
        os.rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_text(tmp_path / "status.json", "whole")
    assert calls == ["file True whole", "renamed", "folder"]
