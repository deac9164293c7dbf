"""Words of other tools work as they are, or are answered with what does here what they stand for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.commands import COMMANDS
from blockyard.config import habits
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.schema import Root, options
from tests.config.typed_by_habit import LINES, OVERRIDES, WORKING_LINES, WORKS

SENTENCES = {
    **habits.KEYS,
    **habits.CHOICES,
    **habits.COMMANDS,
    **habits.FLAGS,
    **habits.OPTIONS,
}


def refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command line that is refused prints."""
    assert main(shlex.split(command)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("typed", OVERRIDES)
def test_an_override_works_or_is_answered(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"train {typed} --cfg job"
    if OVERRIDES[typed] == WORKS:
        assert main(shlex.split(command)) == 0
    else:
        assert OVERRIDES[typed] in refusal(command, capsys)


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_answered(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LINES[line] in refusal(line, capsys)


@pytest.mark.parametrize("line", WORKING_LINES)
def test_a_line_works(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.startswith(WORKING_LINES[line])


@pytest.mark.parametrize("rest", ["", ".any"])
def test_a_key_is_answered_and_so_is_what_lies_below_it(rest: str) -> None:
    issues = compose([f"{key}{rest}=x" for key in habits.KEYS]).issues
    for key, issue in zip(habits.KEYS, issues, strict=True):
        assert issue.key == f"{key}{rest}"
        assert habits.KEYS[key] in str(issue)


def test_a_choice_is_answered() -> None:
    issues = compose(list(habits.CHOICES)).issues
    for sentence, issue in zip(habits.CHOICES.values(), issues, strict=True):
        assert sentence in str(issue)


@pytest.mark.parametrize("command", habits.COMMANDS)
def test_a_command_is_answered(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command not in COMMANDS
    assert habits.COMMANDS[command] in refusal(command, capsys)


@pytest.mark.parametrize("flag", habits.FLAGS)
def test_a_flag_is_answered(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert habits.FLAGS[flag] in refusal(f"{flag} 4", capsys)


@pytest.mark.parametrize("option", habits.OPTIONS)
def test_an_option_of_a_command_is_answered(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert habits.OPTIONS[option] in refusal(f"{option}=x run=last", capsys)


OPTIONS_OF_COMMANDS = ("run", "resume", "which", "split", "to", "format", "push")


@pytest.mark.parametrize("word", SENTENCES)
def test_an_answer_names_commands_families_and_options_that_exist(word: str) -> None:
    sentence = SENTENCES[word]
    for command in re.findall(r"`blockyard (\w+)", sentence):
        assert command in COMMANDS
    for key in re.findall(r"([\w.]+)=", sentence):
        family = key.partition(".")[0]
        assert family in {*catalog.run_keys(), *options(Root), *OPTIONS_OF_COMMANDS}
    for family, name in re.findall(r"\b(\w+)=([a-z_]+)", sentence):
        if family in catalog.groups():
            assert name in catalog.choices(family)


def test_a_class_of_torch_is_taken_as_it_is() -> None:
    composed = compose(["optimizer._target_=torch.optim.RAdam", "schedule._target_=torch.optim.lr_scheduler.LinearLR"])
    assert composed.issues == []
    assert composed.config["optimizer"]["name"] == "RAdam"
    assert composed.config["schedule"]["name"] == "LinearLR"
    assert composed.choices["optimizer"] == "torch_optim"
    assert composed.choices["schedule"] == "torch_scheduler"
