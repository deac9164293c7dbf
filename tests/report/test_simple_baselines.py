"""Simple baselines beside the arms: in the answer, the tables and files, and on the page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from blockyard.report.arms.simple_baselines import KIND, below_a_baseline
from blockyard.report.comparison import Comparison, compare
from blockyard.report.page import write
from blockyard.report.render import csv as csv_file
from blockyard.report.render.latex import latex
from blockyard.report.render.markdown import markdown
from blockyard.report.render.terminal import show
from blockyard.terminal import console
from tests.report.page_data import comparison
from tests.report.report_runs import NORMS, sweep
from tests.support.every import every
from tools.browser import LEFT_OUT, address, chromium, launched

SUMMARY = {
    "baselines": {"majority": {"accuracy": 0.2, "loss": 2.3}, "tf_idf": {"accuracy": 0.97, "loss": None}},
    "baseline_notes": {"tf_idf": "fitted on 5,000 of 60,000 samples"},
    "baselines_missing": {"linear": "509 classes"},
}
VALUES = {"post": {0: 0.90, 1: 0.91, 2: 0.92}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}


def compared(outputs: Path, **summaries: dict[str, Any]) -> Comparison:
    sweep(outputs, NORMS, VALUES, summaries=summaries or {"post": SUMMARY, "pre": SUMMARY})
    return compare("norms", outputs=outputs, changes=False)


def test_the_answer_says_that_every_arm_is_below_one(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert comparison.answer.endswith(f"both arms (at best 0.94) are below the {KIND} tf_idf (0.97).")
    rows = {row["name"]: row for row in comparison.baselines}
    assert (rows["tf_idf"]["value"], rows["tf_idf"]["note"]) == (0.97, "fitted on 5,000 of 60,000 samples")
    assert rows["tf_idf"]["values"] == {"test/accuracy": 0.97}  # without what is no finite number
    assert (rows["linear"]["value"], rows["linear"]["missing"]) == (None, "509 classes")
    assert every(row["arms"] is None for row in rows.values())


def test_the_answer_is_silent_where_an_arm_reaches_the_baselines(tmp_path: Path) -> None:
    low = {"baselines": {"majority": {"accuracy": 0.92}}}
    assert KIND not in compared(tmp_path, post=low, pre=low).answer


def test_less_is_better_of_an_error() -> None:
    arms = [{"name": "a", "mean": 0.5}, {"name": "b", "mean": 0.4}, {"name": "failed", "mean": None}]
    baselines = [{"name": "repeat", "arms": None, "value": 0.3}, {"name": "mean", "arms": None, "value": 1.0}]
    sentence = below_a_baseline(arms, baselines, "test/mse", "min")
    assert sentence is not None
    assert "both arms (at best 0.4) are above" in sentence
    assert "repeat (0.3)" in sentence
    assert below_a_baseline(arms, baselines, "test/mse", "max") is not None
    assert below_a_baseline([], baselines, "test/mse", "min") is None


def test_arms_may_have_baselines_of_their_own(tmp_path: Path) -> None:
    """Where arms change the data or the tokens, each is held against its own."""
    own = {"baselines": {"tf_idf": {"accuracy": 0.99}}}
    comparison = compared(tmp_path, post={"baselines": {"tf_idf": {"accuracy": 0.91}}}, pre=own)
    assert [row["arms"] for row in comparison.baselines] == [["post"], ["pre"]]
    assert KIND not in comparison.answer  # post reaches its own
    assert "tf_idf (pre)" in " ".join(markdown(comparison.as_dict()).replace("\\", "").split())


def test_runs_without_a_record_are_compared_as_before(tmp_path: Path) -> None:
    comparison = compared(tmp_path, post={})
    assert comparison.baselines == []
    assert KIND not in markdown(comparison.as_dict())
    data = comparison.as_dict()
    del data["baselines"]  # of a comparison.json of an earlier version
    for render in (markdown, latex, csv_file.csv):
        assert KIND not in render(data)


def test_they_stand_in_every_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = compared(tmp_path).as_dict()
    show(data, console())
    for text in (capsys.readouterr().out, markdown(data).replace("\\", ""), latex(data).replace("\\", "")):
        assert "tf_idf" in text
        assert "0.970" in text
        assert "fitted on 5,000 of 60,000 samples" in text
        assert "no value: 509 classes" in text
    rows = list(csv.DictReader(io.StringIO(csv_file.csv(data))))
    (row,) = [row for row in rows if row["arm"] == "tf_idf"]
    assert (row["mean"], row["verdict"], row["metric"]) == ("0.97", KIND, "test/accuracy")
    assert [row["arm"] for row in rows if row["verdict"] != KIND] == ["post", "pre"]


@pytest.mark.skipif(chromium() is None, reason=LEFT_OUT)
@pytest.mark.xdist_group("browser")
def test_the_page_has_a_table_and_a_line_in_the_charts(tmp_path: Path) -> None:
    path = write(compared(tmp_path).as_dict(), tmp_path / "page.html")
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address(path))
        cells = page.locator("#simple-baselines tbody tr").all_text_contents()
        assert [text.partition("0")[0] for text in cells][:2] == ["majority", "tf_idf"]
        assert "fitted on 5,000" in cells[1]
        assert "509 classes" in cells[2]
        for section in ("curves", "cost"):
            page.locator(f"#{section}").scroll_into_view_if_needed()
            line = page.locator(f"#{section} svg.chart .simple text")
            line.wait_for()
            assert line.text_content().startswith("tf_idf 0.97")
        page.close()


@pytest.mark.skipif(chromium() is None, reason=LEFT_OUT)
@pytest.mark.xdist_group("browser")
def test_a_line_far_from_the_curves_is_neither_drawn_nor_told(tmp_path: Path) -> None:
    """The caption said that the axis was clipped, and named a line that was not there."""
    data = comparison(arms=4)
    for curve in data["curves"]:
        curve["metrics"]["val/accuracy"] = [0.9 + 0.001 * k for k, _ in enumerate(curve["metrics"]["val/accuracy"])]
    for value, drawn in ((0.1, 0), (0.91, 1)):
        data["baselines"] = [{"name": "majority", "arms": None, "values": {"test/accuracy": value}, "value": value}]
        path = write(data, tmp_path / "page.html")
        with launched() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address(path))
            page.locator("#curves svg.chart").wait_for()
            assert page.locator("#curves svg.chart .simple").count() == drawn
            caption = page.locator("#curves figcaption").inner_text()
            assert ("dotted line" in caption) == bool(drawn)
            assert "clipped" not in caption
