"""The site builds without warnings, and asks no other host for anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import publish_site
from tools.browser import Witness, address, chromium, launched

API = sorted((ROOT / "docs/api").glob("*.md"))


def test_every_public_package_has_an_api_page() -> None:
    named = {m[1] for m in re.finditer(r"^::: blockyard\.(\w+)$", "\n".join(p.read_text() for p in API), re.M)}
    packages = {path.parent.name for path in (ROOT / "src/blockyard").glob("*/__init__.py")}
    assert named == packages - {"commands"}


def test_the_search_of_the_site_asks_no_other_host() -> None:
    """The plugin `offline` takes a script from another host unless one of that name is given."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (script,) = re.findall(r"polyfills: \[(\S*iframe-worker\S*)\]", config)
    assert (ROOT / "docs" / script).is_file()
    assert "  - offline\n" in config


def test_a_new_version_stands_beside_the_earlier_ones(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.9.1", "0.9.0"):  # 0.9.0 is built again
        built = tmp_path / "new"
        built.mkdir()
        (built / "index.html").write_text(f"{version} {len(list(tmp_path.iterdir()))}")
        publish_site.publish(built, tmp_path, version)

    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["0.10.0", "0.9.1", "0.9.0"]
    assert [one["aliases"] for one in listed] == [["latest"], [], []]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "0.9.0/index.html").read_text() == "0.9.0 6"


@pytest.mark.full
def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    """`make docs` with links, anchors and the navigation checked by mkdocs itself."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = list((tmp_path / "site").rglob("*.html"))
    assert len(written) > 40
    for page in written:
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", page.read_text("utf-8")
        )
        assert fetched == [], page
    if chromium() is None:
        return
    with launched() as browser:  # the search works on pages that were opened from the disk
        shown = browser.new_page(viewport={"width": 1300, "height": 900})
        witness = Witness(shown, address(tmp_path / "site" / "index.html"))
        shown.goto(address(tmp_path / "site" / "index.html"))
        shown.locator(".md-search__input").first.click()
        shown.keyboard.type("qk_norm", delay=60)
        shown.locator(".md-search-result__item").first.wait_for()
        assert [url for url in witness.requests if not url.startswith("file:")] == []
