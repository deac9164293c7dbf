"""The home page in a real browser: search, groups of seeds, runs side by side, the address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.report.home.page import render_home
from tests.report.page_data import HOSTILE
from tools.browser import LEFT_OUT, Witness, address, chromium

pytestmark = [pytest.mark.skipif(chromium() is None, reason=LEFT_OUT), pytest.mark.xdist_group("browser")]


def content(root: Path, *, configs: int = 4, seeds: int = 3) -> dict[str, Any]:
    """Configs that differ in the learning rate and, every other one, in the position scheme."""
    runs = [
        {
            "run": f"vit-{config:04x}/s{seed}",
            "state": "failed" if (config, seed) == (1, 2) else "done",
            "reason": "the loss is NaN" if (config, seed) == (1, 2) else None,
            "started": f"2026-03-0{1 + config % 9}T10:00:00Z",
            "seconds": 40.0 + seed,
            "steps": 100,
            "parameters": 1000,
            "metrics": {} if (config, seed) == (1, 2) else {"test/accuracy": 0.8 + 0.01 * config + 0.001 * seed},
            "choices": {"position": "rope" if config % 2 else "none", "block": "pre_norm"},
            "tags": ["good"] if config == 0 else [],
            "note": "",
            "archived": config == 3,
            "folder": str(root / f"vit-{config:04x}" / f"s{seed}"),
            "files": ["config.yaml", "checkpoints"],
            "options": [str(0.001 * (config + 1)), "[1, 2]" if config else None],
        }
        for config in range(configs)
        for seed in range(seeds)
    ]
    sweep = {
        "name": "norms",
        "claim": "Rope is better",
        "verdict": "supported",
        "answer": "rope is better by 0.1",
        "metric": "test/accuracy",
        "stale": None,
        "time": "2026-03-02T10:00:00Z",
        "runs": ["vit-0000/s0", "vit-0001/s2"],
        "page": "sweeps/norms/report.html",
    }
    return {
        "title": "outputs",
        "sweeps": [sweep],
        "keys": ["optimizer.lr", "data.sizes"],
        "shared": {"model.dim": "64"},
        "directions": {"test/accuracy": "max"},
        "metrics": ["test/accuracy"],
        "families": ["position"],
        "runs": runs,
    }


def opened(browser: Any, folder: Path, data: dict[str, Any], end: str = "", width: int = 1400) -> tuple[Any, Witness]:
    path = folder / "index.html"
    path.write_text(render_home(data, folder, folder), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    witness = Witness(page, address(path))
    page.goto(address(path) + end)
    return page, witness


def row_keys(page: Any) -> list[str]:
    return list(page.locator(".runs tbody tr").evaluate_all("each => each.map((one) => one.dataset.row)"))


@pytest.mark.full
def test_seeds_stand_together_and_the_search_selects(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, content(tmp_path))
    assert row_keys(page) == ["vit-0002", "vit-0001", "vit-0000"]  # the latest first, without the archived one
    first = page.locator("tr[data-row='vit-0002']")
    assert "0.821" in first.locator("td[data-column='test/accuracy']").inner_text()
    assert "± 0.0025" in first.locator("td[data-column='test/accuracy']").inner_text()
    assert "the loss is NaN" in page.locator("tr[data-row='vit-0001']").inner_text()
    for query, expected in {
        "position=rope": ["vit-0001"],
        "optimizer.lr<0.0025": ["vit-0001", "vit-0000"],
        "test/accuracy>=0.82 position=n*": ["vit-0002"],
        "state=failed": ["vit-0001"],
        "position!=rope": ["vit-0002", "vit-0000"],
        "tags=good": ["vit-0000"],
        "sweep=norms": ["vit-0001", "vit-0000"],
        "VIT-0002": ["vit-0002"],
        "data.sizes=null": ["vit-0000"],
        "no=such": [],
        "test/accuracy>x": [],
        "steps>=100 parameters<=1000": ["vit-0002", "vit-0001", "vit-0000"],
        "steps>100": [],
        "parameters<1000": [],
        "model.dim=64": ["vit-0002", "vit-0001", "vit-0000"],
        "model.dim>64": [],
        "seed=1": ["vit-0002", "vit-0001", "vit-0000"],
        "seed=7": [],
    }.items():
        page.locator("#query").fill(query)
        assert row_keys(page) == expected, query
        assert ("no option or metric no" in page.locator("#list .note").first.inner_text()) == (query == "no=such")
    page.locator("#query").fill("")
    page.locator("[data-key=grouped]").uncheck()
    assert len(row_keys(page)) == 9
    page.locator("[data-key=archived]").check()
    assert len(row_keys(page)) == 12
    page.locator("[data-key='sort:test/accuracy']").click()
    assert row_keys(page)[0] == "vit-0003/s2"
    assert row_keys(page)[-1] == "vit-0001/s2"  # without a value last
    cell = page.locator("tr[data-row='vit-0000/s1'] th a")
    links = cell.evaluate_all("each => each.map((one) => one.getAttribute('href'))")
    assert links == ["./vit-0000/s1/config.yaml", "./vit-0000/s1/checkpoints"]
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


def test_sweeps_have_claim_verdict_and_a_way_to_their_runs(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, content(tmp_path))
    line = page.locator(".sweeps tbody tr").inner_text()
    for text in ("norms", "Rope is better", "supported", "rope is better by 0.1", "1 of 2"):
        assert text in line
    assert page.locator(".sweeps a").get_attribute("href") == "./sweeps/norms/report.html"
    page.locator("[data-key='cells:norms']").click()
    assert row_keys(page) == ["vit-0001", "vit-0000"]
    assert page.locator("#query").input_value() == "sweep=norms"
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


@pytest.mark.full
def test_any_number_stand_side_by_side_with_differences_only(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, content(tmp_path))
    assert not page.locator("#compare").is_visible()
    for name in ("vit-0000", "vit-0001", "vit-0002"):
        page.locator(f"[data-key='pick:{name}']").check()

    def table() -> dict[str, list[str]]:
        lines = page.locator(".beside tr[data-compared]").all()
        return {line.get_attribute("data-compared"): line.locator("td").all_text_contents() for line in lines}

    cell = table()
    assert cell["position"] == ["none", "rope", "none"]
    assert cell["optimizer.lr"] == ["0.001", "0.002", "0.003"]
    assert cell["test/accuracy"] == ["0.801 ± 0.0025", "0.8105 ± 0.0064", "0.821 ± 0.0025"]
    assert "95 % interval" in page.locator("#compare").inner_text()
    assert cell["data.sizes"] == ["–", "[1, 2]", "[1, 2]"]
    assert not {"block", "parameters", "steps"} & set(cell)
    page.locator("[data-key=rows]").uncheck()
    assert table()["block"] == ["pre_norm"] * 3
    page.locator("[data-key='drop:vit-0001']").click()
    assert table()["position"] == ["none", "none"]
    assert not page.locator("[data-key='pick:vit-0001']").is_checked()
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


@pytest.mark.full
def test_the_address_holds_the_view(browser: Any, tmp_path: Path) -> None:
    data = content(tmp_path)
    page, _ = opened(browser, tmp_path, data)
    page.locator("#query").fill("position=none optimizer.lr<0.01")
    page.locator("[data-key='sort:test/accuracy']").click()
    page.locator("[data-key='pick:vit-0002']").check()
    end = page.evaluate("location.hash")
    again, _ = opened(browser, tmp_path, data, end)
    assert again.locator("#query").input_value() == "position=none optimizer.lr<0.01"
    assert row_keys(again) == row_keys(page) == ["vit-0002", "vit-0000"]
    assert again.locator("[data-key='pick:vit-0002']").is_checked()
    assert again.locator(".beside").is_visible()
    page.close()
    again.close()


@pytest.mark.full
def test_hostile_texts_stay_text_on_a_phone(browser: Any, tmp_path: Path) -> None:
    data = content(tmp_path)
    for number, row in enumerate(data["runs"]):
        text = HOSTILE[number % len(HOSTILE)]
        row |= {"note": text, "reason": text, "tags": [text], "choices": {text: text, "position": text}}
        row |= {"folder": text, "files": [text], "options": [text, text], "state": text}
    data["sweeps"][0] |= {"claim": HOSTILE[0], "answer": HOSTILE[1], "verdict": HOSTILE[2]}
    data["sweeps"][0]["page"] = "javascript:alert(1)"
    data |= {"title": HOSTILE[1], "families": list(HOSTILE), "keys": list(HOSTILE[:2])}
    page, witness = opened(browser, tmp_path, data, width=390)
    page.locator("[data-key=grouped]").uncheck()
    for box in page.locator(".runs input").all()[:3]:
        box.check()
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    schemes = page.locator("main a").evaluate_all("each => [...new Set(each.map((one) => one.protocol))]")
    assert schemes == ["file:"]
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


@pytest.mark.full
def test_arms_that_differ_in_an_option_are_told_apart_and_numbers_are_exact(browser: Any, tmp_path: Path) -> None:
    """Parameters were rounded to five digits, `position=none` was a dash, and arms of one option looked the same."""
    data = content(tmp_path, configs=3)
    data["apart"] = ["token_mixer.qk_norm"]
    data["keys"] = ["token_mixer.qk_norm", "data.sizes"]
    data["ranges"] = {"test/accuracy": [0, 1]}
    data["sweeps"][0]["arms"] = ["plain", "qk"]
    for number, row in enumerate(data["runs"]):
        row["parameters"] = 276_258 + 2 * (number // 3)
        row["options"] = ["true" if number // 3 else "false", None]
    for row, value in zip(data["runs"][:3], (0.1, 0.5, 0.9), strict=True):
        row["metrics"] = {"test/accuracy": value}
    data["runs"][5]["reason"] = "a reason that goes on and on " * 20
    page, witness = opened(browser, tmp_path, data)
    first = page.locator("tr[data-row='vit-0000']")
    assert first.locator("[data-apart='token_mixer.qk_norm']").inner_text() == "qk_norm=false"
    assert first.locator("[data-apart=position]").inner_text() == "position=none"
    assert first.locator("td[data-column=parameters]").inner_text() == "276,258"
    assert first.locator("td[data-column='test/accuracy']").inner_text().split() == ["0.5", "[0,", "1]"]
    assert first.locator("td[data-column=sweep] a").get_attribute("href") == "./sweeps/norms/report.html"
    assert "plain" in first.locator("td[data-column=sweep]").inner_text()
    assert page.locator("tr[data-row='vit-0001']").bounding_box()["height"] < 140
    keys = page.locator("#keys").inner_text()
    assert "failed" in keys
    assert "95 % interval" in keys
    page.locator("#query").fill("arm=qk")
    assert row_keys(page) == ["vit-0001"]
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


@pytest.mark.sampled(100)
@pytest.mark.parametrize("width", [1400, 390])
def test_metric_and_verdict_are_seen_at_once(browser: Any, tmp_path: Path, width: int) -> None:
    """The table of runs was cut at 1400 pixels; on a phone neither a metric nor a verdict was in sight."""
    data = content(tmp_path)
    data["metrics"] += ["test/loss"]
    data |= {"families": ["position", "block"], "apart": ["token_mixer.qk_norm"]}
    data["sweeps"][0] |= {"answer": "rope is better by a little " * 30, "arms": ["learned_with_a_long_name", "rope"]}
    for row in data["runs"]:
        row["metrics"] = dict.fromkeys(data["metrics"], 0.812345) if row["metrics"] else {}
        row["reason"] = (
            row["reason"] and "the loss is NaN at step 140 (train/loss); the last good weights are kept " * 4
        )
    page, _ = opened(browser, tmp_path, data, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for table in ("Sweeps", "Runs"):
        assert page.locator(f"[aria-label={table}].scroll").evaluate("box => box.scrollWidth <= box.clientWidth"), table
    for selector in (".sweeps .chip", "td[data-column='test/accuracy']", "td[data-column='test/loss']"):
        box = page.locator(selector).first.bounding_box()
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= width, selector
    page.close()


@pytest.mark.full
def test_500_runs_are_drawn_and_searched(browser: Any, tmp_path: Path) -> None:
    page, witness = opened(browser, tmp_path, content(tmp_path, configs=250, seeds=2), "#seeds=apart&archived=shown")
    assert len(row_keys(page)) == 200
    page.locator("[data-key=more]").click()
    assert len(row_keys(page)) == 500
    page.locator("#query").fill("optimizer.lr<0.0015")
    assert len(row_keys(page)) == 2
    assert witness.silent(), (witness.console, witness.requests)
    page.close()


# The names of columns of which one has text where another one of the same row has some, with all that folds open.
OVERPRINTED = """() => {
  const over = new Set();
  for (const fold of document.querySelectorAll(".runs details")) fold.open = true;
  const written = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  for (const row of document.querySelectorAll(".runs tbody tr")) {
    const texts = [...row.children].flatMap((cell) =>
      [...cell.querySelectorAll("*")].filter((element) => written(element) && !element.closest(".unseen"))
        .flatMap((element) => [...element.getClientRects()].map((box) => [cell, box])));
    const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
    for (const [first, a] of texts) for (const [second, b] of texts)
      if (first !== second && meet(a, b)) over.add(`${first.dataset.column} over ${second.dataset.column}`);
  }
  return [...over];
}"""


@pytest.mark.parametrize("seeds", [3, 10, 20])
def test_the_links_of_many_seeds_stay_in_their_column(browser: Any, tmp_path: Path, seeds: int) -> None:
    """With more than six a press shows them; a run that failed is named without one."""
    for width in (1400, 390):
        page, witness = opened(browser, tmp_path, content(tmp_path, seeds=seeds), width=width)
        state = page.locator("tr[data-row='vit-0001'] td[data-column='state']")
        if seeds > 6:
            assert state.locator("summary").first.inner_text() == f"{seeds - 1} of {seeds} done, 1 failed"
            assert not state.locator("a").first.is_visible()
        assert page.evaluate(OVERPRINTED) == []
        assert state.locator("a").first.is_visible()
        assert state.locator("a").count() == seeds
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert witness.silent(), (witness.console, witness.requests)
        page.close()
