"""The section of single test samples in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.report.page import write
from tests.report.page_data import HOSTILE, comparison
from tools.browser import LEFT_OUT, Witness, address, chromium, scroll

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]


def opened(browser: Any, folder: Path, result: dict[str, Any], width: int = 1280) -> tuple[Any, Witness]:
    path = write(result, folder / "page.html")
    page = browser.new_page(viewport={"width": width, "height": 900})
    witness = Witness(page, address(path))
    page.goto(address(path))
    scroll(page)
    return page, witness


def test_the_matrix_the_scores_and_the_calibration(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, comparison(arms=3, samples="classes"))
    section = page.locator("#samples")
    cells = [row.locator("td").all_text_contents() for row in section.locator(".confusion tbody tr").all()]
    assert cells == [["8.0", "2.0", ""], ["1.0", "9.0", ""], ["", "3.0", "7.0"]]  # means of two runs
    assert section.locator(".confusion tbody th").all_text_contents() == ["cat", "dog", "emu"]
    title = section.locator(".confusion tbody tr").first.locator("td").nth(1).get_attribute("title")
    assert title == "cat predicted as dog: 2 of 10 (20.0 %)"
    assert "30 of 60 test samples, evenly spaced" in section.inner_text()
    assert "old-0a/s1: damaged" in section.inner_text()
    assert "Macro F1 0.7900" in section.inner_text()
    assert "0.0421" in section.inner_text()
    page.locator("[data-key='samples:arm']").select_option("pre_norm")
    first = section.locator(".tall tbody tr").first.locator("th, td").all_text_contents()
    assert first == ["cat", "0.890", "0.800", "0.830", "−0.010", "10"]
    assert section.locator(".tall tbody tr").nth(1).locator("td").last.text_content() == "1,135"  # exact, not 1,140
    assert witness.silent(), witness.console
    page.close()


@pytest.mark.full
def test_samples_are_shown_with_picture_text_or_line(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, comparison(arms=2, samples="classes"), width=390)
    page.locator("[data-key='fold:samples']").click()
    worst = page.locator("#samples .cards").first.locator(".card")
    assert worst.nth(0).locator("img").evaluate("image => image.naturalWidth") == 1
    assert worst.nth(1).locator("blockquote").text_content() == "a line of text"
    assert worst.nth(2).locator("path.line").count() == 1
    assert worst.nth(3).locator("img, blockquote, svg.sketch").count() == 0
    assert "✗ dog p 0.81" in worst.first.inner_text()
    assert "true emu" in worst.first.inner_text()
    disputed = page.locator("#samples .cards").last.locator(".card")
    assert disputed.locator(".answers").count() == 2  # one line an arm
    assert "disagreement 0.50" in disputed.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert witness.silent(), witness.console
    page.close()


@pytest.mark.full
def test_values_have_errors_and_a_chart(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, comparison(arms=2, samples="values"))
    section = page.locator("#samples")
    assert section.locator("svg.chart path[data-arm='0']").count() == 9
    assert section.locator(".confusion").count() == 0
    rows = section.locator("table tbody tr").first.locator("th, td").all_text_contents()
    assert rows == ["post_norm", "0.5", "0.4", "−0.1"]
    assert "0.25 · 0.75" in section.locator(".card").first.inner_text()
    assert witness.silent(), witness.console
    page.close()


@pytest.mark.full
def test_hostile_texts_of_samples_stay_text(browser: Any, tmp_path: Path) -> None:
    result = comparison(arms=2, names=HOSTILE, samples="classes")
    result["samples"] |= {"classes": list(HOSTILE[:3]), "note": HOSTILE[1], "left_out": list(HOSTILE)}
    result["samples"]["views"] = {"3": {"text": HOSTILE[1]}, "4": {"image": "javascript:window.hit=7"}}
    page, witness = opened(browser, tmp_path, result)
    assert page.locator("#samples blockquote").first.text_content() == HOSTILE[1]
    assert page.locator("#samples img").count() == 0
    assert page.evaluate("window.hit") is None
    assert witness.silent(), witness.console
    page.close()


@pytest.mark.full
def test_steps_of_a_series_are_drawn(browser: Any, tmp_path: Path) -> None:
    result = comparison(arms=2, samples="values")
    row = result["samples"]["worst"]["post_norm"][2]
    row |= {"sample": 5, "target": [1.0, 2.0, 3.0, 4.0], "answers": {"post_norm": [[1.0, 2.0, 2.0, None]]}}
    page, witness = opened(browser, tmp_path, result)
    card = page.locator("#samples .cards").first.locator(".card").nth(2)
    assert card.locator("svg.sketch").count() == 2  # what was read, and what was predicted
    assert card.locator("figcaption path.line").count() == 2
    assert witness.silent(), witness.console
    page.close()


@pytest.mark.full
def test_graphs_are_drawn_and_written_texts_listed(browser: Any, tmp_path: Path) -> None:
    result = comparison(arms=2, samples="classes")
    nodes = [[0.0, 0.0, 1], [1.0, 0.0, 2], [0.5, 1.0, 1]]
    result["samples"]["views"]["3"] = {"graph": {"nodes": nodes, "edges": [[0, 1], [1, 2]]}, "text": HOSTILE[0]}
    samples = [
        {"source": HOSTILE[1], "reference": "two", "written": {"post_norm": ["two", True], "pre_norm": ["to", False]}}
    ]
    result["written"] = {"arms": {"post_norm": 0, "pre_norm": 1}, "rows": samples, "of": 40, "left_out": ["x: damaged"]}
    page, witness = opened(browser, tmp_path, result)
    card = page.locator("#samples .card").first
    assert card.locator("svg circle").count() == 3
    assert card.locator("svg line").count() == 2
    assert card.locator("blockquote").text_content() == HOSTILE[0]
    cells = page.locator("#written tbody tr").first.locator("th, td").all_text_contents()
    assert cells == [HOSTILE[1], "two", "✓ two", "✗ to"]
    assert "1 of 40 test samples" in page.locator("#written").inner_text()
    assert "x: damaged" in page.locator("#written").inner_text()
    assert witness.silent(), witness.console
    page.close()
