"""What README and CONTRIBUTING tell people to type is typed here."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from blockyard.config import catalog
from tests.fork import blockyard
from tests.tiny import ROOT


def blocks(text: str, info: str) -> list[str]:
    """The fenced blocks of a text whose opening line matches."""
    return [body for head, body in re.findall(r"^```(.*?)\n(.*?)^```", text, re.M | re.S) if re.search(info, head)]


def commands(text: str, info: str) -> list[str]:
    """The commands of these blocks."""
    lines = (re.sub(r"\s+#.*", "", line) for body in blocks(text, info) for line in body.splitlines())
    return [line for line in lines if line.startswith("blockyard ")]


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return blockyard(folder, *shlex.split(line)[1:])


def test_contributing_own_package(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    written = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", text, re.M | re.S)
    assert len(written) == 2
    for name, body in written:
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(body, encoding="utf-8")
    lines = commands(text, "example=own")
    assert len(lines) == 4
    outputs = []
    for line in lines:
        done = typed(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        outputs.append(done.stdout)
    assert "The mean of all tokens so far" in outputs[0]
    assert "token_mixer.bias" in outputs[1]
    # Without the word that allows it, the same package is refused.
    refused = typed(lines[2].replace("'allow=[mypackage]'", ""), tmp_path)
    assert refused.returncode == 2
    assert "allow=[mypackage]" in refused.stderr


def trains(line: str) -> bool:
    """Whether a command trains runs, which are then cut to a few steps."""
    return line.startswith(("blockyard train", "blockyard sweep")) and not re.search(r"resume=|--cfg", line)


def board_opens(line: str, folder: Path) -> None:
    """The board of a command serves its page, and ends well with Ctrl-C."""
    command = [sys.executable, "-m", *shlex.split(line), "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as board:
        try:
            said = []
            while not (address := re.search(r"http://127\.0\.0\.1:\d+\S*", "".join(said))):
                said.append(board.stdout.readline())
                assert said[-1], "".join(said)
            page = urllib.request.urlopen(address[0], timeout=60).read().decode()
            board.send_signal(signal.SIGINT)
            assert board.wait(30) == 0
        finally:
            board.kill()
    assert "<title>" in page


# Sections of README whose commands go on with the runs of the one before share a folder; a test each, side by side.
SECTIONS = [
    ("From a question to a page, in five commands",),
    ("A first hour", "What is in the yard", "Writing", "Looking inside", "A run is a folder"),
    ("What a config is",),
]
LONG = (0, 2)  # sweeps and multiruns, whose verbs have tests of their own


def sections(document: str) -> dict[str, str]:
    """The text below each heading of the second order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_readme_sections_are_all_typed() -> None:
    with_commands = [name for name, text in sections("README.md").items() if "```bash smoke" in text]
    assert sorted(with_commands) == sorted(name for group in SECTIONS for name in group)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=names[0].split(",")[0], marks=[pytest.mark.full] * (number in LONG))
        for number, names in enumerate(SECTIONS)
    ],
)
def test_readme_commands(names: tuple[str, ...], tmp_path: Path) -> None:
    """README's commands, in its order, in one folder."""
    lines = [line for name in names for line in commands(sections("README.md")[name], "bash smoke")]
    assert len(lines) >= 3
    boards = [line for line in lines if line.startswith("blockyard board")]
    for line in lines:
        if line not in boards:
            done = typed(line + " debug=fast" * trains(line), tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    for line in boards:
        board_opens(line, tmp_path)
    if boards:
        assert (tmp_path / "outputs/sweeps/quickstart/report.html").is_file()


def test_readme_names_every_choice():
    """The table of the yard holds the choices that are there, and no others."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## What is in the yard")[2].partition("\n\n`blockyard list`")[0]
    named: dict[str, list[str]] = {}
    for family, cell in re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", table, re.M):
        words = re.sub(r"\([^)]*\)", "", cell)  # what is in brackets tells of a choice
        named.setdefault(family, []).extend(word for word in re.findall(r"`([^`]+)`", words) if "=" not in word)
    assert len(named) >= 11
    for family, names in named.items():
        assert sorted(names) == sorted(catalog.choices(family)), family


def test_the_page_of_mechanisms_has_every_choice():
    """What `python docs/mechanisms.py` wrote is about the yard as it stands now."""
    text = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (\w+)$", text, flags=re.M)[1:]
    assert len(sections) == 2 * 11
    for family, body in zip(sections[::2], sections[1::2], strict=True):
        named = re.findall(r"^\| `(\w+)` \|", body, re.M)
        assert sorted(named) == sorted(catalog.choices(family)), family
