"""Many arms in a real browser: the chart over an option, parallel coordinates, what folds, and the cost shown first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from blockyard.report.page import write
from tests.report.page_data import HOSTILE, comparison, crossed
from tests.support.every import every
from tools.browser import LEFT_OUT, Witness, address, chromium, scroll

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]


class Opened(Protocol):
    """Open the page of a comparison and draw all of it."""

    def __call__(self, result: dict[str, Any], *, width: int = ...) -> Any: ...


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    pages = []

    def go(result: dict[str, Any], *, width: int = 1280) -> Any:
        path = write(result, tmp_path / f"page{len(pages)}.html")
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append((page, Witness(page, address(path))))
        page.goto(address(path))
        scroll(page)
        return page

    yield go
    for page, witness in pages:
        page.close()
        assert witness.silent(), (witness.console, witness.requests)


def _ticks(page: Any) -> list[str]:
    return list(page.locator("#effects svg.chart .axes text[text-anchor=middle]:not(.label)").all_text_contents())


def test_the_metric_over_a_numeric_option_has_a_line_for_each_choice_of_another(opened: Opened) -> None:
    page = opened(crossed())
    chart = page.locator("#effects svg.chart:not(.parallel)")
    assert chart.locator("path.line").count() == 2
    assert chart.locator("line.reach").count() == 10
    assert _ticks(page) == ["1e-4", "3e-4", "0.001", "0.003", "0.01"]  # in the order of their size, on a log axis
    text = chart.locator("desc").text_content()
    assert text.startswith("none: 0.0001 0.91, 0.0003 0.93, 0.001 0.92, 0.003 0.94, 0.01 0.9.")
    page.locator("[data-key='options:across']").select_option("position")
    assert _ticks(page) == ["none", "rope"]
    assert chart.locator("path.line").count() == 5
    assert "across=position" in page.url


def test_a_point_is_the_mean_over_the_settings_that_all_points_have(opened: Opened) -> None:
    """The third option is averaged over, seed by seed; a setting of it that one point lacks counts for none."""
    result = crossed(seeds=3)
    arms = []
    for number, (depth, shift) in enumerate({"2": 0.0, "4": 0.1, "8": 0.4}.items()):
        for arm in result["arms"]:
            values = {str(seed): arm["mean"] + shift + 0.01 * seed for seed in range(3)}
            levels = {**arm["levels"], "model.depth": depth}
            arms.append({**arm, "name": f"{arm['name']} {depth}", "values": values, "levels": levels})
            arms[-1] |= {"mean": arm["mean"] + shift + 0.01}
        if number == 2:
            arms.pop()  # rope at 0.003 with depth 8
    page = opened({**result, "arms": arms, "cells": [], "curves": [], "baseline": arms[0]["name"]})
    assert "mean over the 2 settings of model.depth that all points have" in page.locator("#effects").text_content()
    page.locator("#effects figure").first.locator("summary").click()
    cell = page.locator("#effects figure").first.locator("tbody tr").first.locator("td").first
    # At 0.0001 without positions: 0.91 + 0.05 on the first seed, and 0.01 more on each other one.
    half = 4.303 * 0.01 / 3**0.5
    assert cell.text_content() == f"0.9700 [{0.97 - half:.4f}, {0.97 + half:.4f}]"


def test_parallel_coordinates_keep_the_part_of_an_axis_over_which_the_mouse_was_dragged(opened: Opened) -> None:
    page = opened(crossed())
    assert [cell.split()[0] for cell in page.locator("#importance tbody td").all_text_contents()] == ["70", "30"]
    chart = page.locator("#effects svg.parallel")
    assert chart.locator(".label").all_text_contents() == ["position", "optimizer.lr", "test/accuracy"]
    assert chart.locator("path.line").count() == 10
    assert chart.locator("path.line title").last.text_content().startswith("position=rope optimizer.lr=0.003")
    chart.scroll_into_view_if_needed()
    box = chart.locator(".strip").nth(2).bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    kept = chart.locator("path.line:not(.dim) title").all_text_contents()
    assert 0 < len(kept) < 10
    assert every(float(text.rpartition(" ")[2]) > 0.92 for text in kept)
    page.mouse.click(x, box["y"] + box["height"] - 4)
    assert chart.locator("path.dim").count() == 0


def test_warnings_of_one_kind_are_one_line_and_cells_that_are_done_fold(opened: Opened) -> None:
    result = comparison(arms=30, seeds=20)
    for arm, cell in zip(result["arms"][:12], result["cells"][::20], strict=False):
        cell |= {"state": "failed", "reason": "out of memory"}
        result["warnings"].append(f"{arm['name']}: 1 of 20 cells failed (step {len(arm['name'])}), seed 0")
    result["warnings"].append("the code had uncommitted changes, the same for all runs")
    page = opened(result)
    warnings = page.locator(".warnings")
    assert warnings.locator("h2").text_content() == "13 warnings"
    assert warnings.locator("li").count() == 2
    assert "and 11 more like this" in warnings.locator("summary").text_content()
    warnings.locator("summary").click()
    warnings.locator("li").nth(12).wait_for()  # the browser fires the event that adds the lines after the click
    assert warnings.locator("li").count() == 13
    assert page.locator("#cells .map tbody tr").count() == 12
    page.get_by_text("18 rows of which all cells are done").click()
    page.locator("#cells .map tbody tr").nth(29).wait_for()
    assert page.locator("#cells .map tbody tr").count() == 30
    assert page.locator("#pairs .panel").count() == 11


@pytest.mark.full
def test_a_table_of_many_arms_has_the_first_hundred_until_a_press(opened: Opened) -> None:
    """The best come first, there and in the legend; the file has all."""
    result = comparison(arms=130, seeds=2, points=4)
    best = max(result["arms"], key=lambda arm: arm["mean"])["name"]
    page = opened(result)
    assert page.locator("#arms-table > tbody > tr").count() == 100
    assert page.locator("#arms-table > tbody > tr .name").first.text_content() == best
    shown = page.locator(".switch").evaluate_all("each => each.map((one) => one.getAttribute('aria-pressed'))")
    assert shown[:12] == ["true"] * 12
    with page.expect_download() as download:
        page.locator("[data-key='save:arms:csv']").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 131
    assert page.locator("#arms-table > tbody > tr").count() == 130


@pytest.mark.parametrize(("factor", "shown"), [(1.4, "step_seconds"), (1.1, "flops_per_sample")])
def test_the_cost_shown_first_is_one_in_which_arms_differ(opened: Opened, factor: float, shown: str) -> None:
    """A cost that is measured has to differ by more than its noise."""
    result = comparison(arms=2)
    alike = {"parameters": 1000, "flops_per_sample": 6000.0}
    for arm, seconds in zip(result["arms"], (0.02, 0.02 * factor), strict=True):
        arm["cost"] = {**alike, "step_seconds": seconds}
    page = opened(result)
    assert page.locator("[data-key='cost:cost']").input_value() == shown


def test_settings_of_hostile_names_stay_text_on_a_phone(opened: Opened) -> None:
    result = comparison(arms=2)
    result["tuning"] = [
        {"arm": arm["name"], "setting": {HOSTILE[0]: HOSTILE[index], "optimizer.lr": 0.1 ** (index + 1)}, "values": {},
         "mean": 0.9 + 0.01 * index, "chosen": index == 1}
        for arm in result["arms"] for index in range(4)
    ]  # fmt: skip
    shares = {HOSTILE[0]: 0.5, "optimizer.lr": 0.25}
    result["importance"] = [
        {"arm": HOSTILE[1], "count": 8, "shares": shares, "fit": 0.4},
        {"arm": HOSTILE[2], "count": 8, "shares": {}, "fit": -0.2},
    ]
    page = opened(result, width=390)
    page.locator("#tuning button.unfold").click()
    scroll(page)
    assert page.locator("#tuning svg.parallel path.line").count() == 8
    assert HOSTILE[0] in page.locator("#importance").text_content()
    assert f"None for {HOSTILE[2]}" in page.locator("#importance").text_content()
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
