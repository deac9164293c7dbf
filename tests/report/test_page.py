"""The page as text: one file that loads nothing, no config value read as HTML, legible colours."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from blockyard.report import page
from blockyard.report.home import page as home_page
from blockyard.report.page import vectors
from blockyard.report.page.document import SCRIPTS, STYLES, live_policy, read_part, render, write
from blockyard.report.page.thin import thin
from tests.report.page_data import HOSTILE, comparison
from tests.support.every import every

FOLDER = Path(page.__file__).parent
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps every element with its attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        # Of a table's rows and cells the end may be left out.
        while self.open and self.open[-1] != tag and self.open[-1] in ("tr", "td", "th", "p", "li"):
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def full() -> str:
    return render(comparison(arms=6, grid=True, tuned=True, failed=True, attention=True, predictions=True))


def test_it_is_one_valid_file(full, tmp_path):
    assert full.startswith("<!DOCTYPE html>")
    reader = read(full)
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("main") == tags.count("nav") == 1
    assert dict(reader.elements)["html"]["lang"] == "en"
    assert write(comparison(), tmp_path / "report.html").read_text(encoding="utf-8") == render(comparison())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_it_loads_nothing(full):
    reader = read(full)
    for tag, attributes in reader.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img", "video", "audio"), tag
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
        assert not [name for name in attributes if name.startswith("on")]
        assert tag == "style" or "style" not in attributes
    style, script = reader.texts["style"][0], reader.texts["script"][1]
    assert not re.search(r"url\(|@import|@font-face", style)
    addresses = re.findall(r"https?://[^\s\"'`]+", script + style)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # a name space, never asked for


def test_the_policy_lets_only_its_own_style_and_script_run(full):
    reader = read(full)
    result = next(a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in result.split("; "))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in result
    for name, text in (("style-src", reader.texts["style"][0]), ("script-src", reader.texts["script"][1])):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert "connect-src 'self'" in live_policy()
    assert live_policy() in html.unescape(render(comparison(arms=1, seeds=1, points=2), live="/data"))


def test_hostile_names_stay_text():
    result = comparison(arms=len(HOSTILE), names=HOSTILE, failed=True)
    for key in ("title", "claim", "answer", "source"):
        result[key] = HOSTILE[2] + HOSTILE[1]
    result["warnings"] = list(HOSTILE)
    text = render(result)
    reader = read(text)
    harmless = read(render(comparison(arms=len(HOSTILE), failed=True)))
    # The same elements as with harmless names: not one came from a name.
    assert [tag for tag, _ in reader.elements] == [tag for tag, _ in harmless.elements]
    (data,) = [t for t in reader.texts["script"] if t.startswith("{")]
    assert "<" not in data
    assert [arm["name"] for arm in json.loads(data)["arms"]] == list(HOSTILE)


def test_the_escaping_is_what_keeps_names_text(monkeypatch):
    """The planted bug: without the escapes a name ends the data's element."""
    monkeypatch.setattr("blockyard.report.page.document.encode", lambda value: json.dumps(value))
    result = comparison(arms=len(HOSTILE), names=HOSTILE)
    with pytest.raises(AssertionError):
        assert [t for t, _ in read(render(result)).elements] == [
            t for t, _ in read(render(comparison(arms=5))).elements
        ]


@pytest.mark.parametrize("name", sorted({*SCRIPTS, *home_page.SCRIPTS, *vectors.SCRIPTS}))
def test_scripts_make_elements_only_by_name(name):
    """No script turns a string into HTML or code."""
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    bad = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|\beval\b|new Function|srcdoc|createContextual"
    assert not re.search(bad, text)
    assert "</" not in text


def test_every_script_is_in_a_page():
    assert {path.stem for path in FOLDER.glob("*.js")} == {*SCRIPTS, *home_page.SCRIPTS, *vectors.SCRIPTS}
    assert {path.stem for path in FOLDER.glob("*.css")} == {*STYLES, *home_page.STYLES, *vectors.STYLES}


def test_no_text_of_the_scripts_goes_over_several_lines() -> None:
    """Lines lose their indentation in the page, which would change such a text."""
    for name in SCRIPTS:
        assert every(line.count("`") % 2 == 0 for line in read_part(f"{name}.js").splitlines()), name


def test_it_is_small(full):
    empty = comparison(arms=1, seeds=1, points=2)
    assert len(render(empty).encode()) < 150_000
    assert len(render(comparison(arms=100, seeds=5, points=200)).encode()) < 6_000_000


def test_no_number_is_nan():
    result = comparison(arms=2)
    result["arms"][0]["mean"], result["arms"][1]["cost"]["seconds"] = math.nan, math.inf
    (data,) = [t for t in read(render(result)).texts["script"] if t.startswith("{")]
    assert not re.search(r"NaN|Infinity", data)
    assert json.loads(data)["arms"][0]["mean"] is None


def test_thinning_keeps_sparse_metrics_and_ends():
    result = comparison(arms=1, seeds=1, points=5000)
    curve = result["curves"][0]
    small = thin(result)["curves"][0]
    assert len(small["step"]) < 500
    assert small["step"][-1] == curve["step"][-1]
    kept = [v for v in small["metrics"]["val/accuracy"] if v is not None]
    assert len(kept) >= 200
    where = curve["step"].index(small["step"][7])
    assert small["metrics"]["val/loss"][7] == pytest.approx(curve["metrics"]["val/loss"][where], rel=1e-5)
    for axis in ("samples", "flops", "seconds"):
        assert len(small[axis]) == len(small["step"])


def test_a_comparison_of_nothing_has_a_page():
    from blockyard.report.page.watch import empty

    read(render(empty("nothing yet")))


# -- colours -----------------------------------------------------------------------------------------


def colours() -> list[dict[str, str]]:
    """The colours of style.css by name, light and dark."""
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    result = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    return [{name: pair[mode] for name, *pair in result} for mode in (0, 1)]


def linear(colour: str) -> list[float]:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one: str, two: str) -> float:
    """WCAG 2.2's contrast ratio."""
    light = sorted(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, two))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_lines_can_be_read(mode):
    palette = colours()[mode]
    grounds = [palette[name] for name in ("ground", "page", "raised", "even-ground", "caution")]
    for text in ("ink", "soft", "link"):
        assert min(contrast(palette[text], ground) for ground in grounds) >= 4.5, text
    for kind in ("good", "bad"):
        assert contrast(palette[kind], palette[f"{kind}-ground"]) >= 4.5
        assert contrast(palette["ink"], palette[f"{kind}-ground"]) >= 4.5
    for line in ("baseline", *(f"arm-{k}" for k in range(7))):
        assert contrast(palette[line], palette["ground"]) >= 3, line


# Machado, Oliveira, Fernandes 2009, A Physiologically-based Model for Simulation of Color Vision Deficiency,
# severity 1, on linear RGB.
BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}


def lab(rgb: list[float]) -> list[float]:
    matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in matrix]
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in (value / white for value, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("kind", BLIND)
def test_arms_stay_apart_for_the_colour_blind(mode, kind):
    palette = colours()[mode]
    seen = []
    for name in ("baseline", *(f"arm-{k}" for k in range(7))):
        rgb = linear(palette[name])
        mixed = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in BLIND[kind]]
        seen.append(lab(mixed))
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 15  # a just visible step is about 2.3
