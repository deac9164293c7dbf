"""What README and CONTRIBUTING tell people to type is typed here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

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


def test_readme_commands(tmp_path):
    """README's commands, in its order, in one folder; trainings cut to a few steps."""
    lines = commands("README.md", "bash smoke")
    assert len(lines) >= 15
    for line in lines:
        trains = line.startswith("blockyard train") and not any(word in line for word in ("resume=", "--cfg"))
        done = typed(f"{line} debug=fast" if trains else line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
