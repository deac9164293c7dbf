"""Generated pages are what their scripts write now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from blockyard.config.build import Components
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.schema import options
from blockyard.config.untrusted.targets import locate
from tests.support.every import every
from tests.support.paths import ROOT
from tools import components, mechanisms, pages, verdicts, walks
from tools.measures import Tree
from tools.structure import ROWS, table

PAGES = pages.by_name()


def test_every_family_has_a_page_in_the_navigation(component_pages: dict[str, str]) -> None:
    assert set(component_pages) == {"index.md"} | {f"{family}.md" for family in catalog.groups()}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ +- components/(\S+)$", navigation, re.M)) == sorted(component_pages)


def test_a_page_describes_every_choice_and_its_options(component_pages: dict[str, str]) -> None:
    for family in catalog.groups():
        sections = re.split(r"^## (\w+)$", component_pages[f"{family}.md"], flags=re.M)
        assert sections[1::2] == list(catalog.choices(family)), family
        listed = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \| \S", sections[0], re.M)
        assert listed == list(catalog.choices(family)), family
        for name, body in zip(sections[1::2], sections[2::2], strict=True):
            choice = catalog.choices(family)[name]
            assert choice.target is None or f"- Class: `{choice.target}`" in body
            tables = [row for row in body.splitlines() if row.startswith("| `")]
            assert [row for row in tables if len(re.findall(r"(?<!\\)\|", row)) != 5] == []
            if choice.target is not None and choice.family == family:
                named = re.findall(rf"^\| `{family}\.(\w+)` \|", body, re.M)
                assert named == list(options(locate(choice.target))), f"{family}={name}"


def test_a_family_without_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "PARTS", components.PARTS | {"The task": ("data", "objective")})
    with pytest.raises(SystemExit, match="experiment"):
        components.pages()


def test_written_are_the_pages_that_changed(
    component_pages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a family that is gone is deleted; one that is as it was is not written again."""
    monkeypatch.setattr(components, "pages", lambda: component_pages)
    (tmp_path / "no_family.md").write_text("a family that is gone")
    components.write(tmp_path)
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == component_pages
    (tmp_path / "norm.md").write_text("old")
    before = (tmp_path / "block.md").stat().st_mtime_ns
    components.write(tmp_path)
    assert (tmp_path / "norm.md").read_text("utf-8") == component_pages["norm.md"]
    assert (tmp_path / "block.md").stat().st_mtime_ns == before


def test_verdicts_are_what_the_script_writes() -> None:
    records = json.loads(verdicts.DATA.read_text(encoding="utf-8"))
    assert verdicts.PAGE.read_text(encoding="utf-8") == verdicts.page(records)
    assert {one["sweep"] for one in records} <= {path.stem for path in (ROOT / "sweeps").glob("*.yaml")}


def test_an_answer_that_is_replaced_stays_on_the_page() -> None:
    first = {"date": "2026-11-01", "verdict": "undecided", "seeds": 5, "cells": [10, 10], "question": {"margin": "a"}}
    again = first | {"date": "2026-11-02", "verdict": "supported", "cells": [12, 12], "question": {"margin": "b"}}
    earlier = {"date": "2026-11-01", "verdict": "undecided", "seeds": 5, "cells": 10, "changed": ["margin"]}
    assert verdicts.with_history(again, first)["asked"] == [earlier]
    assert "asked" not in verdicts.with_history(first | {"date": "2026-11-03"}, first)
    third = verdicts.with_history(again | {"cells": [20, 20]}, verdicts.with_history(again, first))
    assert [answer["cells"] for answer in third["asked"]] == [10, 12]
    page = verdicts.PAGE.read_text(encoding="utf-8")
    assert "undecided on 2026-11-21 (6 seeds, 18 cells), then `margin`, `seeds` changed" in page  # pooling


def test_readme_quotes_the_question_and_its_answer() -> None:
    """The question is the file in sweeps/, its table that of docs/verdicts.json."""
    text = verdicts.README.read_text(encoding="utf-8")
    records = json.loads(verdicts.DATA.read_text("utf-8"))
    assert verdicts.readme(text, records) == text, "run python tools/verdicts.py"
    (record,) = (one for one in records if one["sweep"] == verdicts.QUOTED)
    assert f"**{record['verdict']}**" in text
    assert record["seeds"] >= verdicts.FEWEST


def test_the_best_arm_of_the_quickstart_is_better_than_a_linear_model() -> None:
    """A stranger's first answer compared three models that were worse than one."""
    header = (ROOT / "sweeps/quickstart.yaml").read_text(encoding="utf-8")
    records = json.loads(verdicts.DATA.read_text("utf-8"))
    (record,) = (one for one in records if one["sweep"] == "quickstart")
    assert (record["metric"], record["verdict"], record["seeds"]) == ("test/accuracy", "supported", 8)
    for arm in record["arms"]:
        assert f"{arm['name']} {arm['mean']:.3f} +- " in header
    components = Components(compose(["experiment=vit_digits"]).config)
    splits = components.load()
    baselines = components.objective.baselines(splits.test, splits.train)
    assert max(arm["mean"] for arm in record["arms"]) > baselines["linear"]["accuracy"]


def test_the_recipe_of_the_digits_is_quoted_as_its_header_says() -> None:
    """README and Performance quote the mean, the standard deviation and the least of the experiment's header."""
    header = (ROOT / "conf/experiment/vit_digits.yaml").read_text(encoding="utf-8")
    mean, deviation, least = re.search(r"(0\.\d+) \+- (0\.\d+) .*the least (0\.\d+)", header).groups()
    for name in ("README.md", "docs/performance.md"):
        line = next(line for line in PAGES[name].read_text("utf-8").splitlines() if f"{mean} ± {deviation}" in line)
        assert f"the least {least}" in line, name


def test_the_page_of_mechanisms_has_every_choice() -> None:
    """What `python tools/mechanisms.py` wrote has the choices that there are."""
    text = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (\w+)$", text, flags=re.M)[1:]
    assert sections[::2] == list(mechanisms.FAMILIES)
    for family, body in zip(sections[::2], sections[1::2], strict=True):
        named = re.findall(r"^\| `(\w+)` \|", body, re.M)
        assert sorted(named) == sorted(catalog.choices(family)), family


@pytest.mark.parametrize("name", walks.WALKS)
def test_walks_are_in_the_source(name: str) -> None:
    assert list(walks.problems(walks.read(walks.WALKS[name]), walks.PACKAGE)) == []


def test_a_batch_takes_few_hops() -> None:
    count, back = walks.hops(walks.read(walks.WALKS["batch"]))
    assert count <= 9
    assert back == 0


def test_drawings_are_what_the_script_writes() -> None:
    text = walks.PAGE.read_text(encoding="utf-8")
    assert walks.page(text) == text, "run python tools/walks.py --write"


def test_a_planted_call_is_missed() -> None:
    calls = walks.read("cli.py main | -\n  commands/train.py no_such_function | -")
    assert list(walks.problems(calls, walks.PACKAGE)) == [
        "commands/train.py has no no_such_function",
    ]


def test_a_word_of_a_docstring_is_no_call() -> None:
    calls = walks.read("engine/loader.py BatchDataset | -\n  objective/masked_token.py MaskedToken.prepare | -")
    assert list(walks.problems(calls, walks.PACKAGE)) == ["engine/loader.py does not use prepare"]


@pytest.mark.full
def test_the_structure_is_measured() -> None:
    lines = list(table({"now": Tree(ROOT)}, None))
    assert len(lines) == len(ROWS) + 3
    assert every(line.startswith(("| ", "|---")) for line in lines)
