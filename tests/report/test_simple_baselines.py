"""Simple baselines beside the arms: in the answer, the tables and files, and on the page."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from blockyard.atomic_files import write_json
from blockyard.report.arms.simple_baselines import KIND, better_baseline
from blockyard.report.comparison import Comparison, compare
from blockyard.report.home.page import sweeps
from blockyard.report.home.stale import DATA
from blockyard.report.load.document import read_document
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


OUTDONE = f"On test/accuracy both arms (at best 0.94) are worse than the {KIND} tf_idf (0.97)."


def test_a_line_of_its_own_says_that_every_arm_is_worse_than_one(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert comparison.better_baseline == OUTDONE
    assert KIND not in comparison.answer
    assert OUTDONE in repr(comparison)
    rows = {row.name: row for row in comparison.baselines}
    assert (rows["tf_idf"].value, rows["tf_idf"].note) == (0.97, "fitted on 5,000 of 60,000 samples")
    assert rows["tf_idf"].values == {"test/accuracy": 0.97}  # without what is no finite number
    assert (rows["linear"].value, rows["linear"].missing) == (None, "509 classes")
    assert every(row.arms is None for row in rows.values())


def test_no_line_says_so_where_an_arm_reaches_the_baselines(tmp_path: Path) -> None:
    low = {"baselines": {"majority": {"accuracy": 0.92}}}
    assert compared(tmp_path, post=low, pre=low).better_baseline is None


def test_the_line_is_coloured_in_the_terminal_and_stands_in_every_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = compared(tmp_path)
    stream = io.StringIO()
    show(data, Console(file=stream, force_terminal=True, color_system="standard", width=200, highlight=False))
    assert f"\x1b[1;31m{OUTDONE}\x1b[0m\n" in stream.getvalue()
    assert f"\n\n**{OUTDONE}**\n" in markdown(data).replace("\\", "")
    show(data, console())
    assert capsys.readouterr().out.endswith(f"\n{OUTDONE}\n")


def test_the_home_page_has_the_whole_line(tmp_path: Path) -> None:
    """It stood at the end of the answer, which is cut."""
    plan = sweep(tmp_path, NORMS, VALUES, summaries={"post": SUMMARY, "pre": SUMMARY})
    comparison = compare(plan, changes=False)
    plan.save()
    long = replace(comparison, answer=comparison.answer + " And so on." * 300)
    write_json(plan.folder / DATA, long.as_dict())
    (row,) = sweeps(tmp_path)
    assert row["better_baseline"] == OUTDONE


def test_less_is_better_of_an_error() -> None:
    arms: list[Any] = [
        SimpleNamespace(name=name, mean=mean) for name, mean in (("a", 0.5), ("b", 0.4), ("failed", None))
    ]
    baselines: list[Any] = [
        SimpleNamespace(name=name, arms=None, value=value) for name, value in (("repeat", 0.3), ("mean", 1.0))
    ]
    sentence = better_baseline(arms, baselines, "test/mse", "min")
    assert sentence is not None
    assert sentence == f"On test/mse both arms (at best 0.4) are worse than the {KIND} repeat (0.3)."
    assert better_baseline(arms, baselines, "test/mse", "max") is not None
    assert better_baseline([], baselines, "test/mse", "min") is None


def test_arms_may_have_baselines_of_their_own(tmp_path: Path) -> None:
    """Where arms change the data or the tokens, each is held against its own."""
    own = {"baselines": {"tf_idf": {"accuracy": 0.99}}}
    comparison = compared(tmp_path, post={"baselines": {"tf_idf": {"accuracy": 0.91}}}, pre=own)
    assert [row.arms for row in comparison.baselines] == [["post"], ["pre"]]
    assert comparison.better_baseline is None  # post reaches its own
    assert "tf_idf (pre)" in " ".join(markdown(comparison).replace("\\", "").split())


def test_runs_without_a_record_are_compared_as_before(tmp_path: Path) -> None:
    comparison = compared(tmp_path, post={})
    assert comparison.baselines == []
    assert KIND not in markdown(comparison)
    data = comparison.as_dict()
    del data["baselines"], data["better_baseline"]  # of a comparison.json of an earlier version
    for render in (markdown, latex, csv_file.csv):
        assert KIND not in render(read_document(data))


def test_they_stand_in_every_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = compared(tmp_path)
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
        outdone = page.locator("#answer .outdone")
        assert outdone.inner_text() == OUTDONE
        mark = outdone.evaluate("line => getComputedStyle(line, '::before').content + getComputedStyle(line).color")
        assert mark.startswith('"▼ "rgb(')
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
