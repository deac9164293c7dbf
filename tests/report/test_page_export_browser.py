"""Charts and tables are saved from the page itself, in a real browser."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from blockyard.report.page import write
from tests.report.page_data import comparison
from tools.browser import LEFT_OUT, address, chromium, drawn, launched, scroll

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of a comparison whose title and second arm are hostile."""
    result = comparison(arms=3, seeds=2, points=5)
    result["title"] = "../../etc/pass wd\0<script>"
    old = result["arms"][1]["name"]
    text = json.dumps(result).replace(json.dumps(old), '"=HYPERLINK(1),x"')
    with launched() as browser:
        path = write(json.loads(text), tmp_path_factory.mktemp("page") / "page.html")
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.goto(address(path))
        drawn(opened)
        scroll(opened)
        yield opened


def saved(page: Any, key: str, folder: Path) -> Path:
    """The file that a button saves."""
    with page.expect_download() as download:
        page.locator(f'[data-key="save:{key}"]').click()
    assert re.fullmatch(r"[a-z0-9-]{1,80}\.(svg|png|csv)", download.value.suggested_filename)
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_a_chart_is_saved_as_it_looks(page: Any, tmp_path: Path) -> None:
    root = ElementTree.parse(saved(page, "curves:svg", tmp_path)).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [
        node for node in root.iter() if {"class", "style"} & set(node.keys()) or node.get("fill") == "transparent"
    ]
    lines = [node for node in root.iter("{http://www.w3.org/2000/svg}path") if node.get("stroke", "none") != "none"]
    shown = {
        page.evaluate("(n) => getComputedStyle(n).stroke", node)
        for node in page.query_selector_all("#curves svg.chart path")
    } - {"none"}
    assert len(shown) >= 3  # a colour for each arm, and the edges of markers
    assert {node.get("stroke") for node in lines} >= shown
    picture = Image.open(saved(page, "curves:png", tmp_path)).convert("RGB")
    assert picture.size == (2 * round(float(root.get("width"))), 2 * round(float(root.get("height"))))
    drawn_in = {colour for _, colour in picture.getcolors(1 << 24)}
    assert {tuple(map(int, re.findall(r"\d+", colour))) for colour in shown} <= drawn_in


def test_a_table_is_saved_as_csv(page: Any, tmp_path: Path) -> None:
    table = rows(saved(page, "arms:csv", tmp_path))
    assert len(table) == 1 + 3
    assert {len(row) for row in table} == {len(table[0])}
    names = [row[0] for row in table[1:]]
    assert "'=HYPERLINK(1),x" in names  # no formula
    assert "Difference" in table[0]  # without the numbers of the axis below it
    assert not [cell for row in table for cell in row if re.search(r"[▲▼●≈]|\d\[", cell)]
    column = table[0].index("Difference")
    assert [row[column] for row in table[1:] if re.fullmatch(r"[+-]?[\d.]+ \[[−\d.]+, [−\d.]+\].*", row[column])]
    points = rows(saved(page, "curves:csv", tmp_path))
    assert len(points) > 1
    float(points[1][-1].split()[0])


def test_files_are_not_loaded_from_anywhere(page: Any, tmp_path: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    saved(page, "cost:svg", tmp_path)
    saved(page, "cost:png", tmp_path)
    assert all(url.startswith(("blob:", "data:")) for url in requests), requests  # may be empty
