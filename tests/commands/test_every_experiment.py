"""Every command, for a run of every experiment: it works, or says in one message why it cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.inspect.options import KINDS
from tests.support.experiment_data import experiments, own_data
from tests.support.tiny import ONE_BATCH, steps

COMMANDS = (
    *(
        "eval",
        "eval write=true",
        "eval extrapolate=[2]",
        "eval resolution=[1,2]",
        "eval predictions=true split=validation",
    ),
    *(f"inspect {kind}" for kind in KINDS),
    *("embed limit=8 out=vectors.npz page=vectors.html", "predict text", "forecast"),
    *("generate prompt=ab max_tokens=3", "generate source=ab", "generate images=1"),
    *(f"export to={kind} format={kind}" for kind in ("safetensors", "hf", "timm", "pt2")),
)


@pytest.mark.full
@pytest.mark.parametrize("name", list(experiments()))
def test_every_command_works_or_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    overrides = [*steps(2, 2), *ONE_BATCH, "logger=none", *own_data(name, tmp_path / "own")]
    assert main(["train", f"experiment={name}", "name=tiny", *overrides]) == 0
    capsys.readouterr()
    codes = {}
    for line in COMMANDS:
        command, *options = line.split()
        codes[line] = main([command, "run=tiny", *options])
        message = capsys.readouterr().err
        assert codes[line] in (0, 2), (line, message)
        assert "Traceback" not in message, (line, message)
        if codes[line]:
            assert re.search("^blockyard: .{10}", message, re.MULTILINE), (line, message)
    assert {codes["eval"], codes["embed limit=8 out=vectors.npz page=vectors.html"]} == {0}
    base = json.dumps([f"experiment={name}", *overrides])
    question = f"claim: one\nbase: {base}\nbaseline: a\narms:\n  a: []\nseeds: 1\n"
    Path("question.yaml").write_text(question)
    assert main(["sweep", "question.yaml", "--dry-run"]) == 0
