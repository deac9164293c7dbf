"""The screenshots of the documentation show the page as it is now."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from blockyard.report.page import document
from tests.support.paths import ROOT
from tools import browser, screenshots

AGAIN = "run `python tools/screenshots.py` (or `make docs`), look at the pictures, and commit docs/screenshots"


def test_the_screenshots_are_of_the_page_as_it_is() -> None:
    """README showed a page with a heading and a cut column that the code no longer had."""
    assert screenshots.recorded()["sources"] == screenshots.source_hash(), AGAIN


def test_every_picture_is_the_recorded_one_and_every_shown_one_is_taken() -> None:
    pictures = screenshots.recorded()["pictures"]
    for name, digest in pictures.items():
        assert hashlib.sha256((screenshots.FOLDER / name).read_bytes()).hexdigest() == digest, AGAIN
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md"))
    shown = set(re.findall(rf"{screenshots.NAME}-\w+\.png", text))
    assert shown == set(pictures)


def test_a_changed_script_or_style_is_noticed_and_a_comment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = screenshots.source_hash()
    read = document.read_part

    def changed(line: str, ending: str) -> None:
        monkeypatch.setattr(document, "read_part", lambda name: read(name) + (line if name.endswith(ending) else ""))

    changed("// a comment\n", "table.js")
    assert screenshots.source_hash() == before
    for line, ending in (("const more = 1;\n", "table.js"), (".more { color: red }\n", "tables.css")):
        changed(line, ending)
        assert screenshots.source_hash() != before


def test_without_chromium_outdated_screenshots_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browser, "chromium", lambda: None)
    assert screenshots.main(["--force"]) == 0
    assert "out of date" in capsys.readouterr().err
    shutil.copy(screenshots.FOLDER / screenshots.DATA, tmp_path)
    assert screenshots.recorded(tmp_path) == {}
