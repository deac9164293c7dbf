"""Completion offers what each command's own parser accepts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.commands import COMMANDS
from blockyard.commands._signature import functions_of
from blockyard.commands._types import ROOT_KEYS
from blockyard.commands.completion import SCRIPTS, complete
from blockyard.config.schema import Root, options

OWN_KEYS_ONLY = ("eval", "forecast", "generate", "inspect", "export", "soup", "tokenize")


def keys_of(command: str) -> tuple[str, ...]:
    """The keys that the module of a command declares."""
    keys = [key for function in functions_of(command) for each in function.keywords for key in each.keys]
    return tuple(dict.fromkeys(keys))


@pytest.mark.parametrize("command", OWN_KEYS_ONLY)
def test_a_command_offers_the_keys_that_it_accepts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal of an unknown key lists the same keys as completion, and each of them is read."""
    offered = [text.removesuffix("=") for text in complete(f"blockyard {command} ") if text.endswith("=")]
    assert offered == list(keys_of(command))
    place = ["texts"] if command == "tokenize" else ["attention"] if command == "inspect" else []
    assert main([command, *place, "no_such_key=1"]) == 2
    assert f"(options: {', '.join(offered)})" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_offers_the_flags_that_it_accepts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal of an unknown flag lists the same flags as completion."""
    offered = complete(f"blockyard {command} -")
    assert {"--config-dir", "--help"} <= set(offered)
    assert main([command, "--no-such-flag"]) == 2
    assert f"(flags: {', '.join(offered)})" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_offered(command: str) -> None:
    """Beside families, where a command takes them."""
    assert {f"{key}=" for key in keys_of(command)} <= set(complete(f"blockyard {command} "))


def test_bench_offers_both_that_it_measures() -> None:
    assert {"cost", "rates"} <= set(complete("blockyard bench "))
    assert "steps=" in complete("blockyard bench rates ste")


def test_keys_of_the_config_are_those_of_the_schema() -> None:
    """Written out, because reading the schema imports slow packages."""
    assert set(ROOT_KEYS) == set(options(Root))
    for command in ("train", "check"):
        assert {f"{key}=" for key in ROOT_KEYS} <= set(complete(f"blockyard {command} "))


def test_runs_are_those_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs folder of blockyard.yaml is read, newest run first."""
    (tmp_path / "blockyard.yaml").write_text("outputs: results\n")
    run = tmp_path / "results" / "mine-0123456789" / "s0"
    run.mkdir(parents=True)
    (run / "status.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BLOCKYARD_PROJECT", raising=False)
    for line in ("eval run=", "predict run=", "forecast run=", "train resume="):
        first, second, third = complete(f"blockyard {line}")
        assert first.endswith("=last")
        assert second.endswith("=mine")
        assert third.endswith("results/mine-0123456789/s0")
    plan = tmp_path / "results" / "sweeps" / "my_question" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("{}")
    assert complete("blockyard compare my_") == ["my_question"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("eval which=b", ["which=best"]),
        ("tokenize corpus tokenizer=b", ["tokenizer=bpe", "tokenizer=byte"]),
        ("verify token_mixer=atten", ["token_mixer=attention"]),
        ("runs --be", ["--best"]),
        ("export format=h", ["format=hf"]),
        ("forecast run=last lev", ["level="]),
        ("embed run=last pool=", ["pool=mean", "pool=class", "pool=last", "pool=none"]),
        ("nonsense x", []),
    ],
)
def test_values_are_completed(line: str, expected: list[str]) -> None:
    """Values of keys that have few."""
    assert complete(f"blockyard {line}") == expected


def test_completion_imports_nothing_heavy() -> None:
    """Of any command."""
    lines = [f"blockyard {command} {end}" for command in COMMANDS for end in ("", "-")]
    code = (
        f"import sys; from blockyard.commands.completion import complete; [complete(line) for line in {lines!r}]; "
        "print([name for name in ('torch', 'pytorch_lightning', 'wandb', 'timm', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("before", ["", "CUDA_VISIBLE_DEVICES=0 ", "cd study && ", "./venv/bin/"])
def test_what_stands_before_the_command_is_left_out(before: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["_complete", f"{before}blockyard eval wh"]) == 0
    assert capsys.readouterr().out == "which=\n"


def test_a_name_of_any_characters_is_one_word_of_the_shell(tmp_path: Path) -> None:
    """Folders may come from a stranger: their names are neither run nor taken apart."""
    name = "run=/my study/$(touch pwned)*-x/s1"
    code = f"""
        blockyard() {{ printf '%s\\n' {shlex.quote(name)}; }}
        {SCRIPTS["bash"]}
        COMP_LINE="blockyard eval run="; COMP_POINT=${{#COMP_LINE}}
        _blockyard
        eval "words=(${{COMPREPLY[*]}})"
        printf '%s\\n' "${{#words[@]}}" "${{words[0]}}"
    """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["1", name]
    assert list(tmp_path.iterdir()) == []
