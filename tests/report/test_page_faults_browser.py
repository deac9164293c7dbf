"""What readers of the page stumbled over, each in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.report.comparison import compare
from blockyard.report.load.costs import AXES
from blockyard.report.page import write
from blockyard.report.render import columns
from blockyard.report.render.markdown import markdown
from tests.report.page_data import comparison
from tests.report.report_runs import sweep
from tools.browser import LEFT_OUT, Witness, address, chromium, drawn, resting_box, scroll

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]

Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a comparison; `hash` is the end of its address. Afterwards it must have been silent."""
    pages, witnesses = [], []

    def go(result: dict[str, Any], *, width: int = 1400, height: int = 900, hash: str = "") -> Any:  # noqa: A002
        path = write(result, tmp_path / f"page{len(pages)}.html")
        page = browser.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        witnesses.append(Witness(page, address(path)))
        page.goto(address(path) + hash)
        drawn(page)
        return page

    yield go
    for page in pages:
        page.close()
    for witness in witnesses:
        assert not witness.console, witness.console
        assert all("#" in url for url in witness.requests), witness.requests  # may be empty


def _hover(page: Any, share: float) -> str:
    box = resting_box(page, "#curves svg.chart rect[fill=transparent]")
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
    return str(page.locator("#tip").inner_text())


def test_the_tooltip_names_the_step_of_the_values_that_it_lists(opened: Opened) -> None:
    result = comparison(arms=2, seeds=1, points=4)
    for curve in result["curves"]:
        curve["step"], curve["metrics"] = [15, 30, 45, 60], {"val/loss": [4.0, 3.0, 2.0, 1.0]}
    page = opened(result, hash="#curves")
    text = _hover(page, 0.56)  # step 33.6
    assert text.startswith("Step 30")
    assert "3.0" in text
    result["curves"][1]["step"] = [12, 24, 36, 48]  # another batch size: each arm has points of its own
    page = opened(result, hash="#curves")
    text = _hover(page, 0.6)  # step 36
    assert text.startswith("nearest steps")
    assert "at 36" in text
    assert "at 30" in text or "at 45" in text


@pytest.mark.full
def test_the_titles_of_panels_are_whole(opened: Opened) -> None:
    long = ("pre_norm-warmup0", "post_norm-warmup0", "post_norm-warmup0.2", "post_norm-warmup0.25-and-a-longer-name")
    page = opened(comparison(arms=4, names=long))
    scroll(page)
    titles = page.locator("#pairs .panel .name")
    assert titles.all_text_contents() == list(long[1:])
    assert titles.evaluate_all("each => each.every((one) => one.scrollWidth <= one.clientWidth + 1)")
    widths = [panel.bounding_box()["width"] for panel in page.locator("#pairs .panel").all()]
    assert min(widths) == max(widths) == 260  # three panels make use of the section


def _cost_ticks(page: Any) -> list[str]:
    axes = page.locator("#cost svg.chart .axes text[text-anchor=middle]:not(.label)")
    return list(axes.all_text_contents())


@pytest.mark.full
def test_ticks_of_a_cost_differ(opened: Opened) -> None:
    result = comparison(arms=4) | {"cost_axis": "parameters"}
    for number, arm in enumerate(result["arms"]):
        arm["cost"] = {"parameters": 200_000 + 20_000 * number, "flops_per_sample": 5e6}
    page = opened(result, hash="#cost")
    assert len(set(_cost_ticks(page))) == len(_cost_ticks(page)) > 2
    assert "Pareto front" in page.locator("#cost figcaption").text_content()
    assert page.locator("#cost .pareto").count() == 1


@pytest.mark.full
def test_costs_that_are_about_the_same_are_no_trade_off(opened: Opened) -> None:
    result = comparison(arms=4)
    for number, arm in enumerate(result["arms"]):
        arm["cost"] = {"parameters": 200_000 + 100 * number, "flops_per_sample": 5e6 * (1 + number)}
    page = opened(result, hash="#cost")
    assert page.locator("[data-key='cost:cost']").input_value() == "flops_per_sample"  # one that differs
    page.locator("[data-key='cost:cost']").select_option("parameters")
    assert "about the same parameters, within 0.15 %" in page.locator("#cost figcaption").text_content()
    assert page.locator("#cost .pareto").get_attribute("d") == ""
    ticks = _cost_ticks(page)
    assert len(set(ticks)) == len(ticks)
    dots = [each.bounding_box()["x"] for each in page.locator("#cost svg.chart path[data-arm]").all()]
    assert max(dots) - min(dots) < 30  # pixels: not stretched over the width


@pytest.mark.sampled(100)
@pytest.mark.parametrize("flops", [(5e6, 5.1e6, 5.05e6), (5e6, 9e6, 7e6)], ids=["alike", "different"])
def test_terminal_markdown_and_page_agree_on_the_pareto_front(
    opened: Opened, tmp_path: Path, flops: tuple[float, ...]
) -> None:
    """Where FLOPs hardly differ, all three weigh quality against parameters."""
    arms = {"post": ["block=post_norm"], "pre": ["block=pre_norm"], "deep": ["model.depth=5"]}
    costs = {
        name: {"flops_per_sample": {"forward": 1, "training": value}, "parameters": {"trainable": size}}
        for name, value, size in zip(arms, flops, (300, 200, 100), strict=True)
    }
    values = {name: {0: 0.8 + 0.05 * number, 1: 0.81 + 0.05 * number} for number, name in enumerate(arms)}
    data = compare(sweep(tmp_path, arms, values, summaries=costs))
    assert data.cost_axis == ("parameters" if flops[1] < 6e6 else "flops")
    header, rows = columns.costs(data)
    front = {row[0] for row in rows if row[header.index("Pareto")] == "yes"}
    assert front == ({"deep"} if flops[1] < 6e6 else {"post", "deep"})
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown(data).splitlines() if "|" in line]
    assert {row[0] for row in table if row[-1] == "yes"} == front
    assert columns.axis(data) in markdown(data).replace("\\", "")
    page = opened(data.as_dict(), hash="#cost")
    assert page.locator("[data-key='cost:cost']").input_value() == AXES[data.cost_axis]
    page.locator("#cost .more summary").click()
    page.locator("#cost .more tbody").wait_for()
    on_page = [row.locator("th, td").all_text_contents() for row in page.locator("#cost .more tbody tr").all()]
    assert {row[0] for row in on_page if row[3] == "yes"} == front


@pytest.mark.full
def test_labels_of_the_cost_chart_stay_inside_and_off_the_line(opened: Opened) -> None:
    page = opened(comparison(arms=5, names=tuple(f"pre_norm-warmup0.{k}-long" for k in range(5))), width=900)
    scroll(page)
    inside = page.locator("#cost svg.chart").evaluate(
        """(svg) => [...svg.querySelectorAll('text.direct')].every((text) => {
            const [one, all] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
            return one.left >= all.left && one.right <= all.right;
        })"""
    )
    assert inside


@pytest.mark.full
def test_the_menu_does_not_put_the_legend_over_a_heading(opened: Opened) -> None:
    page = opened(comparison(arms=12))
    scroll(page)
    for name, section in (("Curves", "curves"), ("Cost", "cost")):
        page.emulate_media(reduced_motion="reduce")
        page.locator("#nav a", has_text=name).click()
        heading, legend = (page.locator(each).bounding_box() for each in (f"#{section} h2", ".legend"))
        assert heading["y"] >= legend["y"] + legend["height"]


@pytest.mark.full
def test_attention_maps_are_a_table_on_one_scale(opened: Opened) -> None:
    result = comparison(arms=3, attention=True)
    flat = [[0.01] * 4 for _ in range(4)]
    peak = [[1.0, 0.0, 0.0, 0.0]] * 4
    result["attention"] = [
        {"arm": arm["name"], "seed": 0, "layer": layer, "image": None, "map": peak if layer == "block 1" else flat}
        for arm in result["arms"]
        for layer in ("block 0", "block 1")
        if (arm["name"], layer) != (result["arms"][2]["name"], "block 1")
    ]
    page = opened(result)
    scroll(page)
    rows = page.locator("#attention tbody tr")
    assert page.locator("#attention thead th").all_text_contents() == ["arm", "block 0", "block 1"]
    assert [row.locator("td canvas").count() for row in rows.all()] == [2, 2, 1]
    pixel = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data].slice(0, 3)"
    pale, dark = (rows.first.locator("canvas").nth(k).evaluate(pixel) for k in (0, 1))
    assert min(pale) > 170  # a uniform map is not solid navy
    assert max(dark) < 90
    narrow = opened(result, width=390)
    scroll(narrow)
    assert narrow.locator("#attention").bounding_box()["height"] < 1000
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.full
def test_costs_are_seen_at_1400_pixels(opened: Opened) -> None:
    result = comparison(arms=5)
    for arm in result["arms"]:
        arm["cost"] |= {"decode_tokens_per_second": 812.0, "cache_bytes_per_token": 512.0}
    page = opened(result)
    for box in ("#table .scroll.arms", "#table .scroll.costs"):
        assert page.locator(box).evaluate("box => box.scrollWidth - box.clientWidth") <= 1, box
    heads = page.locator("#table .scroll.costs th[data-column]")
    keys = heads.evaluate_all("each => each.map((one) => one.dataset.column)")
    assert {"parameters", "flops_per_sample", "decode_tokens_per_second", "seconds"} <= set(keys)


@pytest.mark.full
def test_a_phone_shows_the_difference_and_every_arm(opened: Opened) -> None:
    page = opened(comparison(arms=4), width=390, height=844)
    for row in page.locator("#arms-table tbody tr").all()[1:]:
        box = row.locator("td[data-column=difference] .main").bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 390 - 10
    switches = page.locator(".switches")
    assert switches.evaluate("box => box.scrollHeight <= box.clientHeight + 1")


@pytest.mark.full
def test_every_section_is_drawn_without_scrolling(opened: Opened) -> None:
    page = opened(comparison(arms=4, grid=True, tuned=True, attention=True, samples="classes"))
    drawn(page)
    assert page.evaluate("scrollY") == 0
    assert page.locator("#provenance .command").count() == 1


@pytest.mark.full
def test_cells_tell_of_their_run(opened: Opened, tmp_path: Path) -> None:
    result = comparison(arms=2, seeds=2)
    (done, failed), others = result["cells"][:2], result["cells"][2:]
    done |= {"seconds": 41.0, "started": "2026-03-02", "files": ["metrics.csv"]}
    done["folder"] = str(tmp_path / "runs" / "a b" / "s0")
    failed |= {"setting": {"optimizer.lr": 0.1}, "state": "failed", "reason": "the loss is NaN", "folder": "/x/y/s1"}
    result["cells"] = [done, failed, *others]
    page = opened(result)
    scroll(page)
    rows = page.locator("#cells .map tbody tr")
    assert rows.nth(1).locator("th").all_text_contents() == ["post_norm 0.1"]  # a row for each setting
    assert page.locator("#cells .map thead th").first.text_content() == "arm · optimizer.lr"
    page.locator("#cells .map button.cell.done").first.click()
    chosen = page.locator("#cells .chosen")
    for text in ("41\u00a0s", "2026-03-02", done["run"], "test/accuracy"):
        assert text in chosen.inner_text()
    links = chosen.locator("a").evaluate_all("each => each.map((one) => one.getAttribute('href'))")
    assert links == ["./runs/a%20b/s0/", "./runs/a%20b/s0/metrics.csv"]
    assert str(tmp_path) not in page.content()  # no path of this machine
    page.locator("#cells .map button.cell.failed").first.click()
    assert "the loss is NaN" in chosen.inner_text()


@pytest.mark.sampled(100)
@pytest.mark.parametrize(("arms", "text"), [(1, "The only cell is done."), (3, "All 3 cells are done.")])
def test_the_sentence_on_cells_is_grammatical(opened: Opened, arms: int, text: str) -> None:
    page = opened(comparison(arms=arms, seeds=1))
    scroll(page)
    assert text in page.locator("#cells").inner_text()


@pytest.mark.full
def test_a_hostile_folder_is_no_address_of_its_own(opened: Opened) -> None:
    result = comparison(arms=1, seeds=3)
    for cell, folder in zip(result["cells"], ("javascript:alert(1)", "https://evil.example/", "//evil"), strict=True):
        cell |= {"folder": folder, "files": ["javascript:alert(1)"]}
    page = opened(result)
    scroll(page)
    for button in page.locator("#cells .map button").all():
        button.click()
        links = page.locator("#cells .chosen a").evaluate_all("each => each.map((one) => new URL(one.href).protocol)")
        assert links == ["file:", "file:"]


@pytest.mark.full
def test_the_address_keeps_the_view(opened: Opened) -> None:
    result = comparison(arms=4, tuned=True, samples="classes")
    page = opened(result)
    scroll(page)
    page.locator("[data-key='curves:metric']").select_option("train/loss")
    page.locator("[data-key='curves:band']").select_option("interval")
    page.locator("[data-key='curves:smooth']").select_option("0.9")
    page.locator("[data-key='legend-arm:2']").click()
    page.locator("th[data-column=mean] button").click()
    page.locator("[data-key='expand:1']").click()
    page.emulate_media(reduced_motion="reduce")
    page.locator("#nav a", has_text="Cost").click()
    hash_ = page.evaluate("location.hash")
    assert hash_.startswith("#cost&")
    again = opened(result, hash=hash_)
    scroll(again)
    assert again.locator("[data-key='curves:metric']").input_value() == "train/loss"
    assert again.locator("[data-key='curves:band']").input_value() == "interval"
    assert again.locator("[data-key='curves:smooth']").input_value() == "0.9"
    assert again.locator("[data-key='legend-arm:2']").get_attribute("aria-pressed") == "false"
    assert again.locator("th[data-column=mean]").get_attribute("aria-sort") == "descending"
    assert again.locator("#detail-1").count() == 1
    assert again.evaluate("location.hash") == hash_
    nonsense = opened(
        result, hash="#nowhere&metric=no/such&axis=x&hide=nobody&zoom=2~1&sort=none&smooth=7&cost=__proto__"
    )
    scroll(nonsense)
    assert nonsense.locator("[data-key='curves:metric']").input_value() == "val/accuracy"
    assert nonsense.locator("#curves path.line").count() == 4


@pytest.mark.full
def test_dragging_zooms_and_smoothing_is_an_unbiased_exponential_mean(opened: Opened) -> None:
    result = comparison(arms=1, seeds=1, points=50)
    page = opened(result, hash="#curves")
    page.locator("[data-key='curves:metric']").select_option("train/loss")
    box = resting_box(page, "#curves svg.chart rect[fill=transparent]")
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.5 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], y)
    page.mouse.up()
    assert "zoom=250" in page.evaluate("location.hash")
    first = page.locator("#curves svg.chart .axes text[text-anchor=middle]:not(.label)").first.text_content()
    assert 250 <= float(first) <= 300
    page.locator("[data-key='curves:zoom']").click()
    assert page.locator("[data-key='curves:zoom']").count() == 0
    page.locator("[data-key='curves:smooth']").select_option("0.6")
    page.locator("#curves .more summary").click()
    shown = page.locator("#curves .more tbody td").last.text_content()
    values, mean = result["curves"][0]["metrics"]["train/loss"], 0.0
    for value in values:
        mean = 0.6 * mean + 0.4 * value
    assert float(shown) == pytest.approx(mean / (1 - 0.6 ** len(values)), abs=5e-3)


@pytest.mark.full
def test_a_claim_without_an_expectation_is_not_judged(opened: Opened) -> None:
    result = comparison(arms=3) | {"expect": None}
    badge = opened(result).locator("#answer .expect")
    assert "Not judged" in badge.inner_text()
    assert "expect: pre_norm > post_norm" in badge.inner_text()
    assert opened(result | {"claim": None}).locator("#answer .expect").count() == 0


def test_statistics_of_layers_are_a_map_of_layers_and_steps(opened: Opened) -> None:
    result = comparison(arms=2, seeds=2, points=4)
    for number, curve in enumerate(result["curves"]):
        for layer in ("0", "1", "10"):
            curve["metrics"][f"train/dead_units.{layer}"] = [0.25 * number, None, 0.5, 1.0]
    page = opened(result, hash="#layers")
    scroll(page)
    maps = page.locator("#layers canvas")
    assert maps.count() == 2
    assert maps.first.get_attribute("aria-label").startswith("dead_units of ")
    assert "3 layers by 3 steps" in maps.first.get_attribute("aria-label")
    maps.first.scroll_into_view_if_needed()
    resting_box(page, "#layers tr:first-child canvas")
    maps.first.hover(position={"x": 3, "y": 50})
    text = str(page.locator("#tip").inner_text())
    assert text.startswith("layer 10, step ")
    assert "0.125" in text  # the mean of 0 and 0.25
    assert opened(comparison(arms=2, seeds=2)).locator("#layers").count() == 0
