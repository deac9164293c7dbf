"""What a reader sees of a sweep's page: bands, ticks, axes, labels, marks, and the page on a phone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.report.page import write
from blockyard.report.page.document import linked, render
from tests.report.page_data import comparison, decided, disagreeing
from tests.support.every import every
from tools.browser import LEFT_OUT, Witness, address, chromium, scroll

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    pages = []

    def open_page(content: dict[str, Any], width: int = 1280, end: str = "") -> Any:
        path = write(content, tmp_path / "page.html")
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append((page, Witness(page, address(path))))
        page.goto(address(path) + end)
        scroll(page)
        return page

    yield open_page
    for page, witness in pages:
        assert witness.silent(), (witness.console, witness.requests)
        page.close()


@pytest.mark.full
def test_only_the_arm_that_is_pointed_at_has_a_band(opened: Any) -> None:
    """Five bands over one another were mud."""
    page = opened(comparison(arms=5))
    bands = page.locator("#curves .band.pointed")
    assert bands.count() == 5
    assert page.locator("#curves .band.on").count() == 0
    page.locator("[data-key='legend-arm:2']").hover()
    assert page.locator("#curves .band.on").get_attribute("data-arm") == "2"
    page.locator("[data-key='curves:band']").select_option("range")
    assert page.locator("#curves .band:not(.pointed)").count() == 5


@pytest.mark.full
def test_ticks_of_steps_are_whole(opened: Any) -> None:
    """Ten steps had ticks at 2.5 and 7.5."""
    result = comparison(arms=2, seeds=1, points=4)
    for curve in result["curves"]:
        curve["step"] = [1, 2, 4, 10]
    page = opened(result)
    labels = page.locator("#curves .axes text[text-anchor=middle]:not(.label)").all_text_contents()
    assert len(labels) >= 3
    assert every(label.isdigit() for label in labels)


@pytest.mark.full
def test_a_curve_of_one_point_is_a_mark(opened: Any) -> None:
    """Runs of one epoch have one validation value, and a line through one point shows nothing."""
    page = opened(comparison(arms=3, seeds=2, points=1))
    boxes = [mark.bounding_box() for mark in page.locator("#curves path.point").all()]
    assert len(boxes) == 3
    assert every(box["width"] > 4 and box["height"] > 4 for box in boxes)


@pytest.mark.full
def test_tuning_of_several_keys(opened: Any) -> None:
    """Labels of ticks overlapped, the y axis had no name, and a line joined trials that differ in other settings."""
    result = comparison(arms=2, tuned=True)
    values = (0.02, 2, 4, 1, 19)
    result["tuning"] = [
        {"arm": arm["name"], "setting": {"optimizer.lr": lr, "model.depth": k}, "mean": 0.9 + 0.01 * k,
         "values": {"0": 0.9}, "chosen": k == 1}
        for arm in result["arms"] for k, lr in enumerate(values)
    ]  # fmt: skip
    result["tuning"].append(result["tuning"][0] | {"setting": {"optimizer.lr": 7, "model.depth": 0}})
    page = opened(result)
    charts = page.locator("#tuning svg.chart:not(.parallel)")
    assert charts.count() == 2
    assert (
        page.locator("#tuning .chart:not(.parallel) path.line").count() == 1
    )  # the two trials that differ in the learning rate alone
    for chart in charts.all():
        assert "val/accuracy" in chart.locator(".label").all_text_contents()
        boxes = [text.bounding_box() for text in chart.locator(".axes text[text-anchor=middle]:not(.label)").all()]
        edges = sorted((box["x"], box["x"] + box["width"]) for box in boxes)
        assert every(left[1] <= right[0] for left, right in itertools.pairwise(edges))
    assert page.locator("#tuning .keys > span").count() == 2
    first, second = (chart.bounding_box() for chart in charts.all())
    assert first["y"] == second["y"]


def test_a_key_that_no_arm_shown_has_is_left_out_and_lists_are_told_apart(opened: Any) -> None:
    """Hiding the one arm of a key ended the page, and each list was a value of its own."""
    result = comparison(arms=2, tuned=True)
    result["tuning"] = [
        {"arm": arm["name"], "setting": {"optimizer.betas": betas, **({"block.k": k} if own else {})}, "mean": 0.9 + k,
         "values": {"0": 0.9}, "chosen": k == 1}
        for own, arm in enumerate(result["arms"]) for k, betas in enumerate([[0.9, 0.95], [0.9, 0.99]])
    ]  # fmt: skip
    page = opened(result)
    assert page.locator("#tuning svg.chart:not(.parallel)").count() == 2
    ticks = page.locator("#tuning svg.chart").first.locator(".axes").all_text_contents()[0]
    assert ticks.count("0.95") == 1
    page = opened(result, end=f"#answer&hide={result['arms'][1]['name']}")
    assert page.locator("#tuning svg.chart:not(.parallel)").count() == 1
    assert page.locator("#cells table").count() > 0


def test_newer_data_keeps_what_the_reader_chose(browser: Any) -> None:
    """Until the first arm was done, each poll set the metric and the hidden arms back."""
    whole, early = comparison(arms=2), comparison(arms=2)
    for arm in early["arms"]:
        arm["cost"] = {}
    served = [early]
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    html = render(early, live="data.json")
    page.route("http://board/", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.route("http://board/data.json", lambda route: route.fulfill(body=json.dumps(linked(served[-1], None))))
    page.goto("http://board/")
    scroll(page)
    choice = page.locator("[data-key='curves:metric']")
    assert choice.input_value() != "train/loss"
    choice.select_option("train/loss")
    assert page.locator("[data-key='cost:x']").count() == 0
    with page.expect_response("http://board/data.json"):
        pass
    assert choice.input_value() == "train/loss"
    served.append(whole)
    page.locator("#cost svg.chart").wait_for()
    assert choice.input_value() == "train/loss"
    page.close()


@pytest.mark.full
def test_a_row_says_that_its_interval_is_not_corrected(opened: Any) -> None:
    """The interval left 0 out beside "no difference shown", and no sentence said why."""
    page = opened(disagreeing())
    marks = page.locator("#arms-table .uncorrected")
    assert marks.count() == 1
    assert page.locator("tr[data-arm='1'] .uncorrected").inner_text() == "interval not corrected"
    page.locator("[data-key='open:how']").click()
    page.locator("#table details > :nth-child(2)").wait_for()
    assert "not corrected for the number of arms" in page.locator("#table details").inner_text()


def test_the_evidence_over_seeds_is_drawn(opened: Any) -> None:
    page = opened(decided())
    assert page.locator("#evidence .lead").inner_text().startswith("Stopped after 5 seeds")
    assert page.locator("#evidence svg.chart").count() == 2
    assert page.locator("#evidence .ring").count() == 2  # of the decided one, in both charts
    keys = page.locator("#evidence .keys").inner_text()
    assert "supported at 4 seeds" in keys
    assert ": undecided" in keys
    page.locator("[data-key='open:data:evidence']").click()
    page.locator("#evidence tbody").wait_for()
    assert page.locator("#evidence tbody tr").count() == 10
    clauses = page.locator("#answer .clauses li")
    assert [clause.get_attribute("class") for clause in clauses.all()] == ["supported", "undecided"]
    heads = page.locator("#arms-table thead").inner_text()
    assert "p (perm.)" not in heads
    page.locator("[data-key='open:how']").click()
    page.locator("#table details > :nth-child(2)").wait_for()
    assert "hold whenever it stopped" in page.locator("#table details").inner_text()


@pytest.mark.full
def test_differences_have_an_axis_and_calibration_lines_have_names(opened: Any) -> None:
    page = opened(comparison(arms=4, samples="classes"))
    axis = page.locator("#arms-table th[data-column=difference] svg.scale")
    assert "0" in axis.locator("text").all_text_contents()
    assert axis.locator("text").count() >= 2
    zero = axis.bounding_box()["x"]
    assert abs(page.locator("#arms-table .whisker").first.bounding_box()["x"] - zero) < 1
    names = page.locator("#samples .keys > span[data-arm]").all_text_contents()
    assert names == [arm["name"] for arm in comparison(arms=4)["arms"]]


@pytest.mark.full
def test_a_page_of_a_sweep_leads_to_its_runs_on_the_home_page(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "sweeps" / "norms"
    folder.mkdir(parents=True)
    page = browser.new_page()
    page.goto(address(write(comparison(arms=2), folder / "report.html")))
    link = page.locator("#cells a", has_text="home page")
    assert link.get_attribute("href") == "../../index.html#q=sweep%3Dnorms"
    page.goto(address(write(comparison(arms=2), tmp_path / "elsewhere.html")))
    scroll(page)
    assert page.locator("#cells a", has_text="home page").count() == 0
    page.close()


def test_a_phone_sees_the_verdict_and_folded_sections(opened: Any) -> None:
    """The badge and the menu were cut at 390 pixels, and the page was 14,000 pixels long."""
    result = comparison(arms=5, tuned=True, failed=True, samples="classes", grid=True)
    result["arms"][1]["verdict"] = "no difference shown"
    result["samples"]["disputed"] *= 24
    page = opened(result, width=390)
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    for item in [*page.locator("#arms-table .chip").all(), *page.locator("#nav a").all()]:
        box = item.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390, item.inner_text()
    body = page.locator("#samples > .body")
    assert not body.is_visible()
    page.locator("#nav a", has_text="Samples").click()
    assert body.is_visible()
    assert page.locator("#samples svg.chart").bounding_box()["width"] > 200
    assert page.locator("#samples .cards").nth(1).locator(".card").count() == 8
    page.locator("[data-key='cards:disputed']").click()
    assert page.locator("#samples .cards").nth(1).locator(".card").count() == 24
    page.locator("[data-key='fold:samples']").click()
    assert not body.is_visible()
    assert page.locator("[data-key='fold:samples']").get_attribute("aria-expanded") == "false"
    page.set_viewport_size({"width": 1200, "height": 900})
    page.locator("#tuning svg.chart").first.wait_for()
    assert page.locator("#tuning > .body").is_visible()


def test_numbers_in_names_are_not_broken_and_cells_have_the_short_names_of_the_legend(opened: Any) -> None:
    """Fifty arms of position and rate began with the same cut name, and a panel had "0.0014 / 421"."""
    rates = [f"{0.0014421 + k / 1e5:.7f}" for k in range(9)]
    names = tuple(f"position=none optimizer.lr={rate}" for rate in rates)
    content = comparison(arms=9, names=names)
    for arm, rate in zip(content["arms"], rates, strict=True):
        arm["levels"] = {"position": "none", "optimizer.lr": rate}
    page = opened(content)
    legend = page.locator(".legend .switch .name").all_inner_texts()
    assert legend == [f"none · {rate}" for rate in rates]
    assert page.locator("#cells .map tbody th").all_inner_texts() == legend
    assert page.locator("#cells .map tbody th").first.get_attribute("title") == names[0]
    lines = page.locator("#pairs .panel .name").evaluate_all(
        """panels => panels.flatMap((panel) => [...panel.childNodes]).filter((node) => /0\\.00/.test(node.data || ""))
          .map((node) => {
            const range = document.createRange();
            range.selectNodeContents(node);
            return range.getClientRects().length;
          })"""
    )
    assert lines == [1] * 8  # of each arm but the baseline
