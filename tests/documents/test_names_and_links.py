"""Links lead somewhere, and the modules and files that the pages name exist."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from tests.support.every import every
from tests.support.paths import ROOT
from tools import components, pages

PAGES = pages.by_name()
MODULE = re.compile(r"\bblockyard(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")
FILE = re.compile(r"(?<![\w/.])(?:src|conf|tests|docs|tools|benchmarks|sweeps)/[\w./-]*[\w/]")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs both make them."""
    text = pages.FENCE.sub("", text)
    slugs = set()
    for heading in re.findall(r"^#+ +(.+)$", text, re.M):
        plain = unicodedata.normalize("NFKD", re.sub(r"[`*]", "", heading)).encode("ascii", "ignore").decode()
        slugs.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return slugs


def broken_links(path: Path, generated: dict[str, str]) -> list[str]:
    """The links of a page that lead nowhere; `generated` are the pages of docs/components/, which are not in git."""
    texts = {components.FOLDER / name: text for name, text in generated.items()}
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", pages.FENCE.sub("", _text(path, texts))):
        if re.match(r"[a-z]+:", target):
            continue  # other hosts are not asked
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if linked == ROOT / "docs" / "contributing.md":
            linked = ROOT / "CONTRIBUTING.md"  # which it includes
        # What `make docs` once wrote into the folder proves nothing.
        exists = linked in texts if linked.parent == components.FOLDER else linked.exists()
        if not exists or (anchor and anchor not in anchors(_text(linked, texts))):
            broken.append(target)
    return broken


def _text(path: Path, texts: dict[Path, str]) -> str:
    return texts[path] if path in texts else path.read_text(encoding="utf-8")


WRITTEN = [path for path in (ROOT / "docs").rglob("*.md") if path.parent != components.FOLDER]


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")) + sorted(WRITTEN), ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path, component_pages: dict[str, str]) -> None:
    assert broken_links(path, component_pages) == []


@pytest.mark.full
def test_links_of_generated_pages_lead_somewhere(component_pages: dict[str, str]) -> None:
    broken = {name: broken_links(components.FOLDER / name, component_pages) for name in component_pages}
    assert {name: targets for name, targets in broken.items() if targets} == {}


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("docs/components/norm.md#rms", False),
        ("docs/components/norm.md#no_such_norm", True),
        ("docs/components/no_such_family.md", True),
        ("docs/runs.md#no-such-heading", True),
    ],
)
def test_a_planted_link_is_missed(link: str, broken: bool, tmp_path: Path, component_pages: dict[str, str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"[a page]({ROOT / link})", encoding="utf-8")
    assert broken_links(page, component_pages) == ([str(ROOT / link)] if broken else [])


FUNCTIONS = ("load", "compare", "train", "predict", "embed", "lightning", "build", "hydra_groups")


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module of the package, or something that one defines."""
    module, _, name = dotted.rpartition(".") if dotted.rpartition(".")[2][:1].isupper() else (dotted, "", "")
    path = ROOT / "src" / Path(*module.split("."))
    files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    if not files:
        return False
    return not name or re.search(rf"\b{name}\b", files[0].read_text(encoding="utf-8")) is not None


def test_modules_and_files_that_the_pages_name_exist() -> None:
    missing = []
    for name, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        # `blockyard.load` and others are functions of the package itself; blockyard.yaml is a file of the user's, and
        # blockyard.components a group of entry points.
        names = set(MODULE.findall(text)) - {f"blockyard.{name}" for name in (*FUNCTIONS, "yaml", "components")}
        missing += [f"{name}: {dotted}" for dotted in sorted(names) if not exists(dotted)]
        files = {file for file in FILE.findall(text) if not re.search(r"<|running_mean|^blockyard.yaml", file)}
        missing += [f"{name}: {file}" for file in sorted(files) if not _there(file, text)]
    assert missing == []


def _there(file: str, text: str) -> bool:
    if re.search(re.escape(file) + r"<", text) or file.startswith(("docs/components", "sweeps/NAME")):
        return True  # a placeholder follows, such as conf/<family>/<name>.yaml
    return (ROOT / file).exists() or bool(re.search(rf"outputs/{re.escape(file)}", text))


@pytest.mark.parametrize("planted", ["blockyard.sweep.no_such_module", "blockyard.contracts.NoSuchClass"])
def test_a_planted_name_is_missed(planted: str) -> None:
    assert not exists(planted)
    assert exists("blockyard.contracts.TokenMixer")


def test_readme_is_for_a_first_visit() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 130] == []


def test_the_glossary_is_short() -> None:
    text = PAGES["docs/architecture.md"].read_text(encoding="utf-8").partition("## Glossary")[2]
    assert 10 <= len(re.findall(r"^\| (?!term|---)", text, re.M)) <= 25


def test_assertions_that_all_values_hold_have_values() -> None:
    """Of nothing `all` is true, so tests say `every`; a line where nothing may be there says so."""
    assert every((True, 1))
    assert not every(())
    assert not every((True, 0))
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith("assert all(") and not line.endswith("# may be empty")
    ]
    assert lines == []
