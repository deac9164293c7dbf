"""What the pages tell people to type is typed."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from tests.support.fork import blockyard
from tools import outputs, pages

PAGES = pages.by_name()
TYPED = {name: path for name, path in PAGES.items() if any(block.typed for block in pages.blocks(path))}
# Pages with many runs, or with commands that have tests of their own.
LONG = (
    *("CONTRIBUTING.md", "docs/attention.md", "docs/exchange.md", "docs/generation.md", "docs/kernels.md"),
    *("docs/configs.md", "docs/data.md", "docs/ecosystem.md", "docs/layers.md", "docs/recipes.md", "docs/runs.md"),
    *("docs/statistics.md", "docs/sweeps.md", "docs/training.md", "docs/tutorial.md"),
)


def refused(block: pages.Block) -> bool:
    """Whether the page shows problems, for which `check` answers 2."""
    return block.language == "console" and "problems" in block.body


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a command of a page prints and answers; one that trains is cut to a few steps."""
    if line.startswith("python "):
        command = line.replace("python ", f"{sys.executable} ", 1)
        return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    trains = line.startswith(("blockyard train", "blockyard sweep")) and not re.search(r"resume=|--cfg|debug=", line)
    return blockyard(folder, *shlex.split(line + " debug=fast" * trains)[1:], limit=1200)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n in LONG)) for n in TYPED])
def test_commands_of_a_page(name: str, tmp_path: Path) -> None:
    """The commands of a page, in its order, in one folder with the files that it shows."""
    pages.write_files(TYPED[name], tmp_path)
    for block in pages.blocks(TYPED[name]):
        for line in block.commands() if block.typed else ():
            done = typed(line, tmp_path)
            assert done.returncode == (2 if refused(block) else 0), f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.full
def test_the_pages_with_long_runs_compose(tmp_path: Path) -> None:
    """What `train` and `check` get on the pages that the default suite does not type is a config without problems."""
    for name in LONG:
        for block in pages.blocks(PAGES[name]):
            for line in block.commands() if block.typed else ():
                left_out = re.search("text_file| -m |--cfg|allow=|teacher=", line)
                if re.match(r"blockyard (train (?!resume)|check )", line) and not left_out and not refused(block):
                    assert check(compose(shlex.split(line)[2:])) == [], line


def test_a_page_may_not_hide_its_commands() -> None:
    """Commands stand in blocks that are typed, except where the page says why not."""
    hidden = []
    for name, path in PAGES.items():
        for block in pages.blocks(path):
            if not block.comment.startswith("not typed: "):
                lines = [line for line in block.body.splitlines() if line.startswith("blockyard ")]
                hidden += [f"{name}: {line}" for line in lines if block.language != "bash"]
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
