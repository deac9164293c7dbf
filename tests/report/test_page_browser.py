"""The page in a real browser: sorting, switches, choices, themes, a phone, paper, hostile names, a running sweep."""

from __future__ import annotations

import io
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from blockyard.report.arms.pictures import pictures
from blockyard.report.load.document import plain
from blockyard.report.page import write
from tests.report.page_data import HOSTILE, comparison
from tools.browser import LEFT_OUT, Witness, address, chromium, scroll

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason=LEFT_OUT),
    pytest.mark.xdist_group("browser"),  # one browser at a time
]


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a comparison with no network; afterwards it must have been silent."""
    contexts, witnesses = [], []

    def go(
        result: dict[str, Any], *, width: int = 1280, height: int = 900, scheme: str = "light", **options: Any
    ) -> Any:
        path = write(result, tmp_path / f"page{len(contexts)}.html")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        witnesses.append(Witness(page, address(path)))
        page.goto(address(path))
        return page

    yield go
    for context in contexts:
        context.close()
    for witness in witnesses:
        assert witness.silent(), (witness.console, witness.requests)


def names(page: Any) -> list[str]:
    return page.locator("#arms-table > tbody > tr:not(.detail) th .name").all_text_contents()


def ground(page: Any, selector: str = "#answer") -> str:
    return page.locator(selector).evaluate("node => getComputedStyle(node).backgroundColor")


@pytest.mark.sampled(100)
@pytest.mark.parametrize("warned", [True, False])
def test_nothing_that_is_not_there_is_written_out(opened, warned):
    """A value that is absent leaves no "null" behind, in any section, with and without warnings."""
    result = comparison(arms=4, grid=True)
    result["warnings"] = ["careful"] if warned else []
    page = opened(result)
    scroll(page)
    message = page.locator("main").inner_text().split()
    assert len(message) > 100
    assert not {"null", "undefined", "NaN", "[object"} & set(message)
    assert "p = <" not in page.locator("main").inner_text()


@pytest.mark.full
def test_an_older_state_and_a_margin_are_told_first(opened):
    result = comparison(arms=4)
    assert opened(result).locator(".stale").count() == 0
    page = opened(result | {"stale": "An <b>earlier</b> state, of today with 3 of 9 cells done", "margin": 0.0125})
    (warning,) = page.locator(".stale").all_text_contents()
    assert warning == "An <b>earlier</b> state, of today with 3 of 9 cells done."
    assert page.locator(".stale").bounding_box()["y"] < page.locator(".expect").bounding_box()["y"]
    assert "smallest difference that matters: 0.0125" in page.locator("#answer .facts").inner_text()


@pytest.mark.sampled(100)
@pytest.mark.parametrize("verdict", ["refused", "failed", "no value", "not done yet"])
def test_what_became_of_an_arm_is_a_badge_of_its_own(opened, verdict):
    result = comparison(arms=3)
    result["arms"][1] |= {"verdict": verdict, "mean": None, "interval": None, "difference": None, "n": 0, "values": {}}
    page = opened(result)
    chips = page.locator("#arms-table .chip").all_text_contents()
    assert sum(chip.endswith(verdict) and chip != verdict for chip in chips) == 1  # a sign before the word


def test_every_section_is_drawn(opened):
    result = comparison(arms=6, grid=True, tuned=True, failed=True, attention=True, predictions=True)
    page = opened(result)
    scroll(page)
    ids = [node.get_attribute("id") for node in page.locator("section[data-section]").all()]
    assert ids == [
        "answer",
        "table",
        "curves",
        "cost",
        "pairs",
        "effects",
        "tuning",
        "cells",
        "attention",
        "predictions",
        "provenance",
    ]
    assert page.locator("h1").text_content() == result["claim"]
    assert page.locator(".judged").text_content() == "✓Supported"
    assert page.locator("#answer .warnings li").all_text_contents() == result["warnings"]
    assert page.locator("#attention canvas").count() == 4
    assert page.locator("#predictions img").evaluate_all("each => each.map((one) => one.naturalWidth)") == [1, 1]
    assert "position=rope acts on queries_and_keys" in page.locator("#cells").text_content()
    assert page.locator("#provenance .command").text_content() == result["provenance"]["command"]
    assert "cannot give a p below 0.0625" in page.locator("#table").text_content()
    for chart in page.locator("svg.chart").all():
        title, text = (chart.locator(f":scope > {tag}").text_content() for tag in ("title", "desc"))
        assert title
        assert text
    assert page.locator("figure.figure:not(.panel) > details.more").count() == 4


@pytest.mark.full
def test_spectrograms_of_what_was_heard_are_shown_with_their_texts(opened, tmp_path):
    """The picture that `eval write=true` leaves in a run's folder, large enough to be read."""
    content = io.BytesIO()
    Image.new("P", (720, 560), 7).save(content, format="PNG")
    (tmp_path / "written-test.png").write_bytes(content.getvalue())
    record: Any = SimpleNamespace(path=tmp_path, done=True, arm="arm 0", seed=2)
    result = comparison(arms=2, predictions=True)
    arm = result["arms"][0]["name"]
    result["predictions"] = [plain(row) | {"arm": arm} for row in pictures([record])]
    page = opened(result)
    scroll(page)
    assert page.locator("#predictions figcaption").all_text_contents() == [f"{arm} spectrograms, seed 2"]
    picture = page.locator("#predictions img")
    assert picture.evaluate("one => one.naturalWidth") == 720
    assert picture.bounding_box()["width"] > 400


@pytest.mark.full
def test_only_what_was_fitted_is_called_least_squares(opened):
    result = comparison(arms=4, grid=True)
    page = opened(result)
    scroll(page)
    assert "Ordinary least squares: value ~ C(seed)" in page.locator("#effects").text_content()
    result["effects"] |= {"interactions": [], "formula": "each level against the reference, paired by seed"}
    page = opened(result)
    scroll(page)
    assert "Effects: each level against the reference, paired by seed." in page.locator("#effects").text_content()
    assert "least squares" not in page.locator("#effects").text_content()


@pytest.mark.full
def test_sorting_with_the_mouse(opened):
    result = comparison(arms=6)
    page = opened(result)
    best = [arm["name"] for arm in sorted(result["arms"], key=lambda arm: -arm["mean"])]
    assert names(page) == [arm["name"] for arm in result["arms"]]
    head = page.locator("th[data-column=mean]")
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").click()
    assert names(page) == best
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert names(page) == best[::-1]
    assert head.get_attribute("aria-sort") == "ascending"
    # A cost that an arm does not have puts it last, whichever way.
    lacking = {arm["name"] for arm in result["arms"] if arm["cost"]["cache_bytes_per_token"] is None}
    for _ in range(2):
        page.locator("th[data-column=cache_bytes_per_token] button").click()
        assert set(names(page)[-len(lacking) :]) == lacking


@pytest.mark.full
def test_sorting_and_opening_with_the_keyboard(opened):
    result = comparison(arms=4)
    page = opened(result)
    page.locator("th[data-column=difference] button").focus()
    page.keyboard.press("Enter")
    gaps = {arm["name"]: (arm["difference"] or {}).get("mean") for arm in result["arms"]}
    assert names(page) == sorted(gaps, key=lambda name: -gaps[name] if gaps[name] is not None else 9)
    assert page.evaluate("document.activeElement.dataset.key") == "sort:difference"
    page.keyboard.press("Space")
    assert page.locator("th[data-column=difference]").get_attribute("aria-sort") == "ascending"
    button = page.locator("tr[data-arm='1'] .expand")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    inside = page.locator("#detail-1")
    assert "schedule.warmup" in inside.text_content()
    assert "blocks.0.norm_1" in inside.text_content()
    assert "+12,288 against the baseline's 101,514" in inside.text_content()
    page.keyboard.press("Enter")
    assert page.locator("#detail-1").count() == 0


def test_the_first_tab_stop_skips_to_the_answer(opened):
    page = opened(comparison())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#answer"


@pytest.mark.full
def test_switching_arms_changes_every_chart(opened):
    result = comparison(arms=5, tuned=True)
    page = opened(result)
    scroll(page)
    drawn = ", ".join(f"#{chart} path[data-arm='2']" for chart in ("curves", "cost", "pairs", "tuning"))
    assert page.locator(drawn).count() >= 8
    switch = page.locator("[data-key='legend-arm:2']")
    switch.focus()
    page.keyboard.press("Space")
    assert switch.get_attribute("aria-pressed") == "false"
    assert page.locator(drawn).count() == 0
    assert page.evaluate("document.activeElement.dataset.key") == "legend-arm:2"
    page.locator("[data-key='legend:none']").click()
    assert page.locator("#curves path.line").count() == 0
    page.locator("[data-key='legend:all']").click()
    assert page.locator("#curves path.line").count() == 5


def test_metric_axis_and_band(opened):
    result = comparison(arms=3, seeds=4)
    page = opened(result)
    scroll(page)
    page.locator("#curves .more summary").click()
    page.locator("#curves .more tbody").wait_for()

    def table() -> tuple[str, list[list[str]]]:
        rows = page.locator("#curves .more tbody tr").all()
        return (
            page.locator("#curves .more caption").text_content(),
            [[cell.text_content() for cell in row.locator("th, td").all()] for row in rows],
        )

    caption, rows = table()
    assert caption.startswith("val/accuracy: mean over seeds and range")
    ends = [c["metrics"]["val/accuracy"][-1] for c in result["curves"] if c["arm"] == result["arms"][1]["name"]]
    shown = [float(x) for x in rows[1][-1].replace("[", "").replace("]", "").replace(",", "").split()]
    assert shown == pytest.approx([statistics.mean(ends), min(ends), max(ends)], abs=1e-3)
    page.locator("[data-key='curves:band']").select_option("interval")
    half = 3.182 * statistics.stdev(ends) / 2  # Student's t, three degrees of freedom
    mean = statistics.mean(ends)
    shown = [float(x) for x in table()[1][1][-1].replace("[", "").replace("]", "").replace(",", "").split()]
    assert shown == pytest.approx([mean, mean - half, mean + half], abs=1e-3)
    page.locator("[data-key='curves:metric']").select_option("train/loss")
    assert table()[0].startswith("train/loss")
    for axis, text in {"samples": "38.4", "flops": "622", "seconds": "7.2"}.items():
        page.locator("[data-key='curves:axis']").select_option(axis)
        assert text in table()[1][1][2], table()[1][1]
    page.locator("[data-key='curves:band']").select_option("seeds")
    assert page.locator("#curves path.seed").count() == 12
    page.locator("[data-key='curves:log']").check()
    page.locator("[data-key='curves:part']").focus()
    page.locator("[data-key='curves:part']").select_option("half")
    assert page.locator("#curves path.line").count() >= 3
    assert page.evaluate("document.activeElement.dataset.key") == "curves:part"


@pytest.mark.parametrize(
    ("values", "logarithm"),
    [([1e-9, 4e-9, 2e-9], False), ([0.25000001, 0.25000002, 0.250000013], False), ([1e-8, 1.0, 1e3], True)],
)
def test_ticks_are_told_apart_whatever_their_size(opened, values: list[float], logarithm: bool) -> None:
    result = comparison(arms=2, seeds=1, points=3)
    for curve in result["curves"]:
        curve["metrics"] = dict.fromkeys(curve["metrics"], values)
    page = opened(result)
    scroll(page)
    if logarithm:
        page.locator("[data-key='curves:log']").check()
    labels = page.locator("#curves svg text[text-anchor='end']").all_text_contents()
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)


def test_values_without_a_place_on_a_log_scale_are_told(opened) -> None:
    result = comparison(arms=2, seeds=1, points=3)
    for curve in result["curves"]:
        curve["metrics"] = {name: [0.5, -0.5, -2.0] for name in curve["metrics"]}
    page = opened(result)
    scroll(page)
    assert "no place on a log scale" not in page.locator("#curves").text_content()
    page.locator("[data-key='curves:log']").check()
    assert "no place on a log scale" in page.locator("#curves").text_content()


def test_an_arm_far_off_hides_no_difference_of_the_others(opened) -> None:
    result = comparison(arms=3, seeds=4)
    for arm, mean, half in zip(result["arms"][1:], (2.29, -0.00444), (0.02, 0.0006), strict=True):
        arm["difference"] |= {"mean": mean, "interval": [mean - half, mean + half]}
    page = opened(result)
    texts = page.locator("#arms-table .difference .main").all_text_contents()
    assert any(text.startswith("\u22120.0044") for text in texts), texts


@pytest.mark.full
def test_the_table_of_the_curves_names_the_steps_that_it_shows(opened):
    """Evaluations at 15, 30, 45 and 60: a quarter of the way is step 15, not the second of four points."""
    result = comparison(arms=2, seeds=1, points=4)
    for curve in result["curves"]:
        curve["step"] = [15, 30, 45, 60]
        curve["metrics"] = {name: [0.1, 0.2, 0.3, 0.4] for name in curve["metrics"]}
    page = opened(result)
    scroll(page)
    page.locator("#curves .more summary").click()
    page.locator("#curves .more tbody").wait_for()
    cells = page.locator("#curves .more tbody tr").first.locator("td").all_text_contents()
    assert [" ".join(cell.split()) for cell in cells[-4:]] == [
        "0.100 at 15",
        "0.200 at 30",
        "0.300 at 45",
        "0.400",
    ]


@pytest.mark.full
def test_the_choice_of_cost_and_the_pareto_line(opened):
    result = comparison(arms=6)
    page = opened(result)
    scroll(page)
    page.locator("[data-key='cost:cost']").select_option("samples_per_second")
    assert "more is better" in page.locator("#cost figcaption").text_content()
    page.locator("#cost .more summary").click()
    page.locator("#cost .more tbody").wait_for()
    cells = [row.locator("th, td").all_text_contents() for row in page.locator("#cost .more tbody tr").all()]
    points = {arm["name"]: (arm["mean"], arm["cost"]["samples_per_second"]) for arm in result["arms"]}
    front = {
        name
        for name, (mean, speed) in points.items()
        if not any(m >= mean and s >= speed and (m, s) != (mean, speed) for m, s in points.values())
    }
    assert {row[0] for row in cells if row[3] == "yes"} == front


@pytest.mark.full
def test_long_names_of_a_grid_stay_apart(opened):
    factors = ("post_norm", "pre_norm"), ("0.0001", "0.0003")
    levels = [{"block": a, "optimizer.lr": b} for a in factors[0] for b in factors[1]]
    long = tuple(",".join(f"{key}={value}" for key, value in level.items()) for level in levels)
    result = comparison(arms=4, names=long)
    for arm, level in zip(result["arms"], levels, strict=True):
        arm["levels"] = level
    page = opened(result)
    scroll(page)
    assert names(page) == list(long)
    shown = page.locator(".switch .name").all_text_contents()
    assert shown == ["post_norm · 0.0001", "post_norm · 0.0003", "pre_norm · 0.0001", "pre_norm · 0.0003"]
    result = comparison(arms=2, names=("a" * 40 + "_one", "a" * 40 + "_two"))
    shown = opened(result).locator(".switch .name").all_text_contents()
    assert len(set(shown)) == 2


@pytest.mark.full
def test_settings_not_chosen_do_not_enter_the_curves(opened):
    result = comparison(arms=2, seeds=2, tuned=True)
    others = [json.loads(json.dumps(c)) | {"setting": {"optimizer.lr": 0.01}} for c in result["curves"]]
    for curve in result["curves"]:
        curve["setting"] = {"optimizer.lr": 0.003}
    result["curves"] += others
    page = opened(result)
    scroll(page)
    page.locator("#curves .more summary").click()
    assert page.locator("#curves .more tbody tr").first.locator("td").first.text_content() == "2"


@pytest.mark.full
def test_day_and_night(opened):
    page = opened(comparison(arms=2))
    assert ground(page) == "rgb(255, 255, 255)"
    button = page.locator("#theme")
    button.click()
    assert ground(page) == "rgb(20, 24, 29)"
    assert button.get_attribute("aria-label") == "Switch to light colours"
    for _ in range(5):  # the browser stores the choice in a process of its own, after a moment on a busy machine
        page.reload()
        if ground(page) == "rgb(20, 24, 29)":
            break
    assert ground(page) == "rgb(20, 24, 29)"
    night = opened(comparison(arms=2), scheme="dark")
    assert ground(night) == "rgb(20, 24, 29)"
    night.locator("#theme").click()
    assert ground(night) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [390, *(pytest.param(width, marks=pytest.mark.full) for width in (320, 768))])
def test_a_phone_scrolls_down_only(opened, width):
    long = ("a_name_that_goes_on_and_on_without_a_place_to_break_it_" * 2, *HOSTILE)
    page = opened(comparison(arms=6, names=long, grid=True, tuned=True, failed=True), width=width, height=844)
    scroll(page)
    for button in page.locator(".expand").all()[:2]:
        button.click()
    for summary in page.locator("details.more > summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".scroll.arms").evaluate("box => box.scrollWidth > box.clientWidth")


def test_hostile_names_stay_text(opened):
    result = comparison(arms=5, names=HOSTILE, failed=True, tuned=True, grid=True)
    for key in ("title", "claim", "answer", "source"):
        result[key] = HOSTILE[2] + HOSTILE[1]
    result["warnings"] = list(HOSTILE)
    result["expect"] = {"text": HOSTILE[1], "verdict": HOSTILE[0], "reason": HOSTILE[4]}
    result["provenance"]["command"] = HOSTILE[2]
    result["arms"][1]["changes"] |= {
        "config": {HOSTILE[0]: list(HOSTILE[1:3])},
        "modules": {HOSTILE[1]: list(HOSTILE[:2])},
    }
    result["tuning"][0]["setting"] = {HOSTILE[1]: HOSTILE[0]}
    pictures = ("javascript:window.hit=5", "data:text/html,<script>window.hit=6</script>", "https://evil.example/x.png")
    result["attention"] = [
        {"arm": HOSTILE[0], "seed": 0, "layer": HOSTILE[1], "image": picture, "map": [[1.0]]} for picture in pictures
    ]
    result["predictions"] = [
        {"arm": HOSTILE[0], "seed": 0, "name": HOSTILE[1], "image": picture} for picture in (*pictures, HOSTILE[1], 7)
    ]
    page = opened(result)
    scroll(page)
    for button in page.locator(".expand").all():
        button.click()
    for summary in page.locator("details.more > summary").all():
        summary.click()
    assert names(page) == list(HOSTILE)
    assert page.locator("h1").text_content() == result["claim"]
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, main iframe, main a").count() == 0


@pytest.mark.full
def test_a_name_that_html_would_run_is_seen(browser, tmp_path):
    """The planted bug: a script that took names for HTML would be stopped by the policy, and these tests see it."""
    path = write(comparison(arms=2), tmp_path / "page.html")
    page = browser.new_page()
    witness = Witness(page, address(path))
    page.goto(address(path))
    page.evaluate("""() => { document.body.innerHTML += '<img src="x" onerror="window.hit = 1">'; }""")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    assert not witness.silent()
    page.close()


@pytest.mark.full
def test_the_legend_says_why_an_arm_is_not_drawn(opened):
    """Arms without a value and without a curve have no switch; they are named, however many there are."""
    result = comparison(arms=8)
    absent = result["arms"][2:7]
    for arm in absent:
        arm |= {"mean": None, "interval": None, "difference": None, "n": 0, "verdict": "failed"}
    named = [arm["name"] for arm in absent]
    result["curves"] = [curve for curve in result["curves"] if curve["arm"] not in named]
    page = opened(result)
    scroll(page)
    text = page.locator(".legend").text_content()
    listed = ", ".join(f"{name} (failed)" for name in named[:3])
    assert f"Not drawn: {listed} and 2 more" in text
    assert "3 of 3 shown" in text
    whole = opened(comparison(arms=3))
    assert whole.locator(".legend .absent").count() == 0


@pytest.mark.full
def test_500_runs(opened):
    result = comparison(arms=100, seeds=5, points=200)
    page = opened(result)
    assert page.locator("#arms-table > tbody > tr").count() == 100
    scroll(page)
    assert page.locator("#curves path.line").count() == 12
    assert "12 of 100 shown" in page.locator(".legend").text_content()
    assert page.locator("#cells td .cell").count() == 0
    page.get_by_text("100 rows of which all cells are done").click()
    assert page.locator("#cells td .cell").count() == 500
    page.locator("[data-key='legend:all']").click()
    assert page.locator("#curves path.line").count() == 100


@pytest.mark.full
def test_on_paper_everything_is_there(opened, tmp_path):
    page = opened(comparison(arms=4, grid=True, failed=True), scheme="dark")
    pdf = page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 40_000
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".waiting").count() == 0
    assert page.locator("tr.detail").count() == 4
    assert page.locator("#theme").is_hidden()
    assert page.locator(".controls:visible").count() == 0
    assert page.locator("h1").evaluate("node => getComputedStyle(node).color") == "rgb(22, 26, 31)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("tr.detail").count() == 0


@pytest.mark.full
def test_less_motion_is_respected(opened):
    page = opened(comparison(arms=2), reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@pytest.mark.full
def test_a_comparison_of_nothing_and_of_one_arm(opened):
    from blockyard.report.page.watch import empty

    page = opened(empty("nothing yet") | {"board": {"error": "no cell has been started"}})
    assert "no cell has been started" in page.locator("main").text_content()
    alone = comparison(arms=1, seeds=1, points=1)
    alone |= {"baseline": None, "expect": None, "claim": None}
    alone["arms"][0] |= {"interval": None, "cost": {}, "cost_ratio": {}, "changes": {}, "other": {}}
    page = opened(alone)
    scroll(page)
    assert page.locator("h1").text_content() == alone["title"]


def test_without_scripts_the_answer_is_there(browser, tmp_path):
    result = comparison(arms=2)
    path = write(result, tmp_path / "page.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address(path))
    text = page.locator("body").inner_text()
    assert result["answer"] in text
    assert result["arms"][1]["name"] in text
    context.close()


@pytest.mark.full
def test_the_board_follows_a_sweep_and_keeps_the_readers_choices(browser, tmp_path: Path, monkeypatch):
    from blockyard.report.page import watch
    from blockyard.report.page.server import Board
    from tests.report.report_runs import sweep
    from tests.report.report_runs import write as finish

    monkeypatch.setattr(watch, "_MIN_INTERVAL", 0.0)
    monkeypatch.setattr(watch, "_DURATION_FACTOR", 0.0)
    values = {"post": {0: 0.90, 1: 0.91, 2: "missing"}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}
    plan = sweep(tmp_path, {"post": ["block=post_norm"], "pre": ["block=pre_norm"]}, values)
    with Board(watch.WatchedComparison([str(plan.folder)], options={"outputs": plan.outputs})) as board:
        thread = threading.Thread(target=board.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        page = browser.new_page()
        witness = Witness(page, board.url)
        page.goto(board.url)
        scroll(page)
        page.locator("[data-key='legend-arm:1']").click()
        page.locator("th[data-column=mean] button").click()
        page.locator("tr[data-arm='1'] .expand").click()
        assert page.locator("#answer .facts").get_by_text("5 of 6").count() == 1
        (cell,) = [cell for cell in plan.cells if not plan.path(cell).exists()]
        variant = plan.variants[cell.variant]
        finish(tmp_path, variant.config, variant.choices, cell.seed, 0.92)
        page.get_by_text("6 of 6").wait_for(timeout=30_000)
        assert page.locator("[data-key='legend-arm:1']").get_attribute("aria-pressed") == "false"
        assert page.locator("th[data-column=mean]").get_attribute("aria-sort") == "descending"
        assert page.locator("#detail-1").count() == 1
        board.shutdown()
        thread.join()
        assert witness.console == []
        assert set(witness.requests) <= {f"{board.url}comparison.json"}
        page.close()
