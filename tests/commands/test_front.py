"""The front answers without heavy imports, and says what the tree says."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import yaml
from rich.console import Console

from blockyard import address_space
from blockyard.cli import COMMANDS, main
from blockyard.commands.completion import complete
from blockyard.config.choices import catalog
from blockyard.runs.status import reason_of
from blockyard.terminal import table
from tests.support.every import every
from tests.support.paths import ROOT

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
    "line", ["--help", "--version", "list", "list position", "list sweeps", "train --help", "_complete 'blockyard tr'"]
)
def test_light_commands_import_nothing_heavy(line):
    import shlex

    assert imported_by(shlex.split(line)) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["train", "block=parallel"]], ids=" ".join)
def test_windows_is_refused_in_one_line(arguments):
    """Simulated: the name of the platform, and the modules that Windows lacks."""
    code = (
        "import runpy, sys; sys.platform = 'win32'; "
        "sys.modules.update(dict.fromkeys(('fcntl', 'grp', 'pwd', 'resource', 'termios'))); "
        "runpy.run_module('blockyard', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "blockyard: Windows is not supported; use WSL (Windows Subsystem for Linux)\n"


@pytest.mark.full
def test_check_leaves_lightning_alone():
    assert imported_by(["check"]) <= {"torch", "hydra"}


def test_reading_data_for_a_check_leaves_decoding_alone():
    code = "import sys, blockyard.engine.data_reader; print([name for name in sys.modules if 'blockyard.gen' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert every(verb in out for verb in COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_explains_itself(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"blockyard {verb}" in capsys.readouterr().out


def test_list_shows_every_file(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for family in catalog.families():
        for path in (catalog.conf_dir() / family).glob("*.yaml"):
            assert path.stem in out


def test_list_shows_every_sweep_with_its_claim_and_the_recorded_verdict(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "sweeps"
    mine.mkdir()
    (mine / "mine.yaml").write_text("claim: >\n  Mine is\n  better\n")
    (mine / "broken.yaml").write_text("claim: [\n")
    records = json.loads((ROOT / "docs" / "verdicts.json").read_text())
    shadowed = records[0]["sweep"]
    (mine / f"{shadowed}.yaml").write_text("claim: another question of a shipped name\n")
    assert main(["list", "sweeps"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "Mine is better" in lines["mine"]
    assert "broken.yaml cannot be read" in lines["broken"]
    assert lines[shadowed].rstrip().endswith("another question of a shipped name")
    for record in records[1:]:
        content = yaml.safe_load((ROOT / "sweeps" / f"{record['sweep']}.yaml").read_text())
        assert " ".join(content["claim"].split()) in lines[record["sweep"]]
        assert f"{record['verdict']} ({record['seeds']} seeds, " in lines[record["sweep"]]


def test_a_table_is_folded_to_the_terminal_and_loses_no_letter(monkeypatch):
    long = "a_word_of_many_letters_" * 3
    rows = table(None, "name", "text")
    rows.add_row("first", f"some words and {long}")
    screen = Console(width=30, file=io.StringIO())
    screen.print(rows)
    lines = screen.file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 30
    assert long in "".join(line[6:].strip() for line in lines)


@pytest.mark.parametrize("family", catalog.families())
def test_every_choice_has_a_line(family):
    for choice in catalog.choices(family).values():
        assert choice.summary, f"{family}={choice.name} says nothing of itself"


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("blockyard tr", ["train"]),
        ("blockyard train pos", ["position="]),
        ("blockyard train position=ro", ["position=rope"]),
        ("blockyard explain block=pre", ["block=pre_norm"]),
        ("blockyard check block=pre_norm optimizer.lr", ["optimizer.lr="]),
        ("blockyard eval wh", ["which="]),
        ("blockyard list nor", ["norm"]),
        ("blockyard list norm --compatible mod", ["model", "model="]),
        ("blockyard sweep quickstart exec", ["executor="]),
        ("blockyard sweep quickstart executor=sl", ["executor=slurm"]),
        ("blockyard sweep quickstart executor.work", ["executor.workers="]),
        ("blockyard sweep quickstart block=pre", ["block=pre_norm"]),
        ("blockyard sweep quickstart --dry", ["--dry-run"]),
    ],
)
def test_completion(line, completions):
    assert complete(line) == completions


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "blockyard _complete" in capsys.readouterr().out


def test_explain_prints_what_a_choice_declares(capsys):
    """Traits and their values, whatever module of the contracts the family's class is in."""
    assert main(["explain", "token_mixer=attention"]) == 0
    (declares,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  declares ")]
    assert {
        "causal",
        "bidirectional",
        "ports: queries_and_keys, scores",
        "key option: token_mixer.key_dim",
        "cacheable",
    } <= set(declares.removeprefix("  declares   ").split("; "))
    assert main(["explain", "token_mixer=fourier"]) == 0
    assert "not causal" in capsys.readouterr().out
    assert main(["explain", "position=rope"]) == 0
    assert "acts on: rotate" in capsys.readouterr().out


@pytest.mark.full
def test_list_compatible_prints_what_check_accepts(capsys):
    overrides = ["experiment=gpt_code_small", "position=none", "model.depth=1"]
    assert main(["list", "norm", "block", "--compatible", *overrides, "norm=batch"]) == 0
    out = capsys.readouterr().out
    norms, blocks = ({line.split()[0] for line in part.splitlines()[2:]} for part in out.strip().split("\n\n"))
    assert {"layer", "rms"} <= norms
    assert "batch" not in norms  # its statistics would mix tokens of the future in
    assert blocks == set()  # none is compatible with the norm that is asked for
    assert main(["list", "token_mixer", "--compatible", *overrides]) == 0
    mixers = {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:] if line}
    assert {"attention", "conv"} <= mixers
    assert not {"fourier", "token_mlp"} & mixers
    for name in ("conv", "fourier"):
        assert (main(["check", *overrides, f"token_mixer={name}"]) == 0) == (name in mixers)


def test_list_takes_overrides_only_to_compare_with(capsys):
    assert main(["list", "norm", "model.dim=3"]) == 2
    assert "model.dim=3: list takes overrides with --compatible only" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        SystemError("initialization of _C failed"),
    ],
)
def test_a_library_that_does_not_fit_into_memory_is_one_message(error, monkeypatch, capsys):
    """A limit of `ulimit -v` that is too small for torch ends a command with a message, code 1 and no traceback."""
    from blockyard.commands import _reader

    def run(name, arguments):
        raise error

    monkeypatch.setattr(_reader, "run", run)
    monkeypatch.setattr("resource.getrlimit", lambda which: (2_500_000_000, -1))
    assert main(["runs"]) == 1
    message = capsys.readouterr().err
    assert "out of memory" in message
    assert "2.5 GB" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("end", ["import os; os.abort()", "raise MemoryError", "import os; os._exit(1)"])
@pytest.mark.parametrize("command", ["check", "train"])
def test_libraries_that_would_end_the_process_are_loaded_by_another_one_first(command, end, monkeypatch, capfd):
    """Where a limit of the address space makes a library in C abort, the command names the limit and ends with 1."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (3_072_000_000, -1))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(address_space._LIBRARIES, command, end)
    assert main([command, "experiment=vit_digits"]) == 1
    message = capfd.readouterr().err
    assert "out of memory" in message
    assert "3.1 GB" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("imports", ["pass", "import no_such_library", "raise KeyError"])
def test_libraries_that_fit_or_fail_for_another_reason_are_left_to_the_command(imports, monkeypatch):
    """An error that is not about memory is reported by the command itself."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (3_072_000_000, -1))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(address_space._LIBRARIES, "check", imports)
    assert address_space.problem_of("check") is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 262144")])
def test_a_run_that_is_out_of_memory_names_the_limit(error, monkeypatch):
    """The reason of a failed run was `MemoryError: no message`."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (3_300_000_000, -1))
    assert "`ulimit -v` allows 3.3 GB" in reason_of(error)
    monkeypatch.setattr("resource.getrlimit", lambda which: (-1, -1))
    assert "ulimit" not in reason_of(error)
    assert "no message" not in reason_of(error)


def test_other_import_errors_are_not_called_a_lack_of_memory(monkeypatch):
    from blockyard.commands import _reader

    def run(name, arguments):
        raise ImportError("no module")

    monkeypatch.setattr(_reader, "run", run)
    with pytest.raises(ImportError):
        main(["runs"])
