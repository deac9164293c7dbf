"""The documentation: what it tells people to type is typed, what it names exists, what is generated is up to date."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import unicodedata
import urllib.request
from pathlib import Path

import pytest

from blockyard.config import catalog
from blockyard.config.check import check
from blockyard.config.compose import compose
from tests.fork import blockyard
from tests.tiny import ROOT
from tools import components, outputs, pages, verdicts, walks

PAGES = {str(path.relative_to(ROOT)): path for path in pages.pages()}
TYPED = {name: path for name, path in PAGES.items() if any(block.typed for block in pages.blocks(path))}
# Pages whose commands are sweeps and multiruns, which have tests of their own.
LONG = ("docs/runs.md", "docs/sweeps.md", "docs/tutorial.md")
MODULE = re.compile(r"\bblockyard(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")
API = sorted((ROOT / "docs/api").glob("*.md"))
FILE = re.compile(r"(?<![\w/.])(?:src|conf|tests|docs|tools|benchmarks|sweeps)/[\w./-]*[\w/]")


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a command of a page prints and answers; one that trains is cut to a few steps."""
    if line.startswith("python "):
        command = line.replace("python ", f"{sys.executable} ", 1)
        return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    trains = line.startswith(("blockyard train", "blockyard sweep")) and not re.search(r"resume=|--cfg|debug=", line)
    return blockyard(folder, *shlex.split(line + " debug=fast" * trains)[1:])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n in LONG)) for n in TYPED])
def test_commands_of_a_page(name: str, tmp_path: Path) -> None:
    """The commands of a page, in its order, in one folder with the files that it shows."""
    pages.write_files(TYPED[name], tmp_path)
    for block in pages.blocks(TYPED[name]):
        for line in block.commands() if block.typed else ():
            done = typed(line, tmp_path)
            # `check` answers 2 where the page shows problems.
            refused = block.language == "console" and "problems" in block.body
            assert done.returncode == (2 if refused else 0), f"{line}\n{done.stdout}\n{done.stderr}"


def test_the_pages_with_long_runs_compose(tmp_path: Path) -> None:
    """What `train` would be given on the pages that the default suite does not type is a config without problems."""
    for name in LONG:
        for block in pages.blocks(PAGES[name]):
            for line in block.commands():
                if re.match(r"blockyard train (?!resume)", line) and not re.search("text_file| -m |--cfg", line):
                    assert check(compose(shlex.split(line)[2:])) == [], line


def test_a_page_may_not_hide_its_commands() -> None:
    """Commands stand in blocks that are typed, except where the page says why not."""
    hidden = []
    for name, path in PAGES.items():
        for block in pages.blocks(path):
            if not block.typed and not block.comment.startswith("not typed: "):
                hidden += [f"{name}: {line}" for line in block.body.splitlines() if line.startswith("blockyard ")]
    assert hidden == []


def test_outputs_marked_exact_are_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", outputs.COLUMNS)
    exact = [block for path in PAGES.values() for block in pages.blocks(path) if block.comment == "exact"]
    assert exact
    for block in exact:
        (line,) = block.commands()
        done = blockyard(tmp_path, *shlex.split(line)[1:])
        assert block.body == f"$ {line}\n{outputs.shown(done, tmp_path)}\n"


def test_a_package_of_ones_own_must_be_allowed(tmp_path: Path) -> None:
    pages.write_files(PAGES["CONTRIBUTING.md"], tmp_path)
    line = "check experiment=gpt_code token_mixer=running_mean position=learned --config-dir myconf"
    refused = blockyard(tmp_path, *line.split())
    assert refused.returncode == 2
    assert "allow=[mypackage]" in refused.stderr
    listed = blockyard(tmp_path, "list", "token_mixer", "--config-dir", "myconf")
    assert "The mean of all tokens so far" in listed.stdout


@pytest.mark.full
def test_the_board_of_a_sweep_opens(tmp_path: Path) -> None:
    """The board that the tutorial names serves its page, and ends well with Ctrl-C."""
    assert blockyard(tmp_path, "sweep", "quickstart", "debug=fast").returncode == 0
    command = [sys.executable, "-m", "blockyard", "board", "outputs/sweeps/quickstart", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as board:
        try:
            printed = []
            while not (address := re.search(r"http://127\.0\.0\.1:\d+\S*", "".join(printed))):
                printed.append(board.stdout.readline())
                assert printed[-1], "".join(printed)
            page = urllib.request.urlopen(address[0], timeout=60).read().decode()
            board.send_signal(signal.SIGINT)
            assert board.wait(30) == 0
        finally:
            board.kill()
    assert "<title>" in page


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs both make them."""
    text = pages.FENCE.sub("", text)
    slugs = set()
    for heading in re.findall(r"^#+ +(.+)$", text, re.M):
        plain = unicodedata.normalize("NFKD", re.sub(r"[`*]", "", heading)).encode("ascii", "ignore").decode()
        slugs.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return slugs


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name
)
def test_links_lead_somewhere(path: Path) -> None:
    text = pages.FENCE.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue  # other hosts are not asked
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if linked == ROOT / "docs" / "contributing.md":
            linked = ROOT / "CONTRIBUTING.md"  # which it includes
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


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
        # `blockyard.load` and `blockyard.compare` are functions of the package itself.
        names = set(MODULE.findall(text)) - {"blockyard.load", "blockyard.compare"}
        missing += [f"{name}: {dotted}" for dotted in sorted(names) if not exists(dotted)]
        files = {file for file in FILE.findall(text) if not re.search(r"<|running_mean", file)}
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


def test_readme_quotes_the_question_and_its_answer() -> None:
    """The question is the file in sweeps/, its table that of docs/verdicts.json."""
    text = verdicts.README.read_text(encoding="utf-8")
    records = json.loads(verdicts.DATA.read_text("utf-8"))
    assert verdicts.readme(text, records) == text, "run python tools/verdicts.py"
    (record,) = (one for one in records if one["sweep"] == verdicts.QUOTED)
    assert f"**{record['verdict']}**" in text
    assert record["seeds"] >= verdicts.FEW


def test_the_recipe_of_the_digits_is_quoted_as_its_header_says() -> None:
    """README and Performance quote the mean, the standard deviation and the least of the experiment's header."""
    header = (ROOT / "conf/experiment/vit_digits.yaml").read_text(encoding="utf-8")
    mean, deviation, least = re.search(r"(0\.\d+) \+- (0\.\d+) .*the least (0\.\d+)", header).groups()
    for name in ("README.md", "docs/performance.md"):
        line = next(line for line in PAGES[name].read_text("utf-8").splitlines() if f"{mean} ± {deviation}" in line)
        assert f"the least {least}" in line, name


def test_the_glossary_is_short() -> None:
    text = PAGES["docs/architecture.md"].read_text(encoding="utf-8").partition("## Glossary")[2]
    assert 10 <= len(re.findall(r"^\| (?!term|---)", text, re.M)) <= 25


def test_component_pages_are_what_the_script_writes() -> None:
    wanted = components.pages()
    assert set(components.FOLDER.glob("*.md")) == set(wanted)
    stale = [path.name for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python tools/components.py"


def test_verdicts_are_what_the_script_writes() -> None:
    records = json.loads(verdicts.DATA.read_text(encoding="utf-8"))
    assert verdicts.PAGE.read_text(encoding="utf-8") == verdicts.page(records)
    assert {one["sweep"] for one in records} <= {path.stem for path in (ROOT / "sweeps").glob("*.yaml")}


@pytest.mark.parametrize("name", walks.WALKS)
def test_walks_are_in_the_source(name: str) -> None:
    assert list(walks.problems(walks.read(walks.WALKS[name]), walks.PACKAGE)) == []


def test_a_batch_takes_few_hops() -> None:
    count, back = walks.hops(walks.read(walks.WALKS["batch"]))
    assert count <= 8
    assert back == 0


def test_drawings_are_what_the_script_writes() -> None:
    text = walks.PAGE.read_text(encoding="utf-8")
    assert walks.page(text) == text, "run python tools/walks.py --write"


def test_a_planted_call_is_missed() -> None:
    calls = walks.read("cli.py main | -\n  commands/train.py no_such_function | -")
    assert list(walks.problems(calls, walks.PACKAGE)) == [
        "commands/train.py has no no_such_function",
    ]


def test_the_page_of_mechanisms_has_every_choice() -> None:
    """What `python tools/mechanisms.py` wrote has the choices that there are."""
    text = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (\w+)$", text, flags=re.M)[1:]
    assert len(sections) == 2 * 11
    for family, body in zip(sections[::2], sections[1::2], strict=True):
        named = re.findall(r"^\| `(\w+)` \|", body, re.M)
        assert sorted(named) == sorted(catalog.choices(family)), family


def test_every_public_package_has_an_api_page() -> None:
    named = {m[1] for m in re.finditer(r"^::: blockyard\.(\w+)$", "\n".join(p.read_text() for p in API), re.M)}
    packages = {path.parent.name for path in (ROOT / "src/blockyard").glob("*/__init__.py")}
    assert named == packages - {"commands"}


def test_the_structure_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.measures import Tree
    from tools.structure import ROWS, table

    lines = list(table({"now": Tree(ROOT)}, None))
    assert len(lines) == len(ROWS) + 3
    assert all(line.startswith(("| ", "|---")) for line in lines)


def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    """`make docs` with links, anchors and the navigation checked by mkdocs itself."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = list((tmp_path / "site").rglob("*.html"))
    assert len(written) > 40
    for page in written:
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", page.read_text("utf-8")
        )
        assert fetched == [], page
