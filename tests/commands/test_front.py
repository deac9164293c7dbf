"""The front answers without heavy imports, and says what the tree says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockyard.cli import VERBS, main
from blockyard.commands.completion import complete
from blockyard.config import catalog

HEAVY = ("torch", "pytorch_lightning", "wandb", "timm", "torchvision", "torchmetrics", "hydra", "sklearn")


def imported_by(arguments: list[str]) -> set[str]:
    """The heavy packages that a command line imports in a fresh process."""
    code = (
        "import sys; from blockyard.cli import main; code = main(sys.argv[1:]); "
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "line", ["--help", "--version", "list", "list position", "train --help", "_complete 'blockyard tr'"]
)
def test_light_commands_import_nothing_heavy(line):
    import shlex

    assert imported_by(shlex.split(line)) == set()


def test_check_and_explain_leave_lightning_alone():
    assert imported_by(["check"]) <= {"torch", "hydra"}
    assert imported_by(["explain", "token_mixer=attention"]) <= {"torch", "hydra"}


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"blockyard {verb}" in capsys.readouterr().out


def test_list_shows_every_file(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for family in catalog.families():
        for path in (catalog.conf_dir() / family).glob("*.yaml"):
            assert path.stem in out


@pytest.mark.parametrize("family", catalog.families())
def test_every_choice_has_a_line(family):
    for choice in catalog.choices(family).values():
        assert choice.summary, f"{family}={choice.name} says nothing of itself"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("blockyard tr", ["train"]),
        ("blockyard train pos", ["position="]),
        ("blockyard train position=ro", ["position=rope"]),
        ("blockyard explain block=pre", ["block=pre_norm"]),
        ("blockyard check block=pre_norm optimizer.l", ["optimizer.lr="]),
        ("blockyard eval wh", ["which="]),
        ("blockyard list nor", ["norm"]),
    ],
)
def test_completion(line, found):
    assert complete(line) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "blockyard _complete" in capsys.readouterr().out
