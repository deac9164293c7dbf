"""Words of other tools are answered with what does here what they stand for."""

from __future__ import annotations

import re
import shlex

import pytest

from blockyard.cli import main
from blockyard.commands import COMMANDS
from blockyard.config import habits
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.schema import Root, options
from blockyard.sweep.spec.locate import find_sweep

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


@pytest.mark.parametrize("word", SENTENCES)
def test_an_answer_names_commands_families_and_options_that_exist(word: str) -> None:
    sentence = SENTENCES[word]
    for command in re.findall(r"`blockyard (\w+)", sentence):
        assert command in COMMANDS
    for key in re.findall(r"([\w.]+)=", sentence):
        family = key.partition(".")[0]
        assert family in {*catalog.run_keys(), *options(Root), "run", "resume", "which", "split", "to", "format"}
    for family, name in re.findall(r"\b(\w+)=([a-z_]+)", sentence):
        if family in catalog.groups():
            assert name in catalog.choices(family)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train +mygroup=x", "mygroup: unknown config key; a config has no keys and groups beside its families"),
        ("train block=pre_norm, post_norm", "several values are written without spaces, key=A,B"),
        ("list rope", "rope: not a family but a choice; see `blockyard explain position=rope`"),
        ("sweep quickstat", "unknown sweep 'quickstat'; did you mean quickstart?"),
        ("sweep nosuch/quickstat.yaml", "nosuch; did you mean quickstart?"),
        ("sweep vit_digits", "'vit_digits' is an experiment"),
    ],
)
def test_what_is_nearly_right_is_answered(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in refusal(command, capsys)


def test_plural_families_and_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "optimizers"]) == 0
    assert capsys.readouterr().out.startswith("optimizer")
    assert main(["help", "sweep"]) == 0
    assert capsys.readouterr().out.startswith("blockyard sweep")
    assert find_sweep("quickstart").stem == "quickstart"


def test_a_class_of_torch_is_taken_as_it_is() -> None:
    composed = compose(["optimizer._target_=torch.optim.RAdam", "schedule._target_=torch.optim.lr_scheduler.LinearLR"])
    assert composed.issues == []
    assert composed.config["optimizer"]["name"] == "RAdam"
    assert composed.config["schedule"]["name"] == "LinearLR"
    assert composed.choices["optimizer"] == "torch_optim"
    assert composed.choices["schedule"] == "torch_scheduler"
