"""Bad command lines: each gets its message, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.cli import main
from tests.commands.bad_commands import BAD


def arguments_of(line: str) -> list[str]:
    import shlex

    return shlex.split(line)


@pytest.mark.parametrize(("line", "expected"), BAD, ids=[line for line, _ in BAD])
def test_bad_command_line(line, expected, capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments_of(line)) == 2
    out, err = capsys.readouterr()
    for text in expected:
        assert text in err, err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_there_are_enough():
    assert len(BAD) >= 60


def test_train_checks_first(capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model.dim=abc", "block=prenorm"]) == 2
    err = capsys.readouterr().err
    assert "model.dim" in err
    assert "pre_norm" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["eval", "inspect attention", "generate prompt=a"])
def test_a_checkpoint_that_a_message_names_can_be_asked_for(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from blockyard.runs.load import WHICH

    for which in WHICH:
        assert main([*verb.split(), "run=nothing_of_this_name", f"which={which}"]) == 2
        assert "which=" not in capsys.readouterr().err
    assert main([*verb.split(), "run=nothing_of_this_name", "which=newest"]) == 2
    *others, last = WHICH
    assert f"expected {', '.join(others)} or {last}" in capsys.readouterr().err
