"""What README and CONTRIBUTING tell people to type is typed here."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from blockyard import catalog

ROOT = Path(__file__).resolve().parents[1]


def blocks(document: str, info: str) -> list[str]:
    """The fenced blocks of a document whose opening line matches."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for head, body in re.findall(r"^```(.*?)\n(.*?)^```", text, re.M | re.S) if re.search(info, head)]


def commands(document: str, info: str) -> list[str]:
    lines = (re.sub(r"\s+#.*", "", line) for body in blocks(document, info) for line in body.splitlines())
    return [line for line in lines if line.startswith("blockyard ")]


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(line)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_contributing_own_package(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    written = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", text, re.M | re.S)
    assert len(written) == 2
    for name, body in written:
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(body, encoding="utf-8")
    lines = commands("CONTRIBUTING.md", "example=own")
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


def test_readme_commands(tmp_path):
    """README's commands, in its order, in one folder."""
    lines = commands("README.md", "bash smoke")
    assert len(lines) >= 20
    for line in lines:
        if line.startswith("blockyard board"):
            board_opens(line, tmp_path)
            continue
        done = typed(f"{line} debug=fast" if trains(line) else line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
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
    assert len(sections) == 2 * 10
    for family, body in zip(sections[::2], sections[1::2], strict=True):
        named = re.findall(r"^\| `(\w+)` \|", body, re.M)
        assert sorted(named) == sorted(catalog.choices(family)), family
