"""Answers and refusals that need no PyTorch never import it, and say what they say with it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.commands import _without_torch
from blockyard.config.choices import catalog
from blockyard.config.schema import options
from blockyard.config.untrusted import placeholders
from blockyard.config.untrusted.targets import locate
from tests.support.described_options import described

CHECKOUT = Path(__file__).parents[2]
HEAVY = ("torch", "pytorch_lightning", "torchmetrics", "timm")
MARK = "a heavy library was imported"
ANSWERED = ("explain token_mixer=attention norm=rms experiment=vit_digits", "explain qk_norm", "schema to=schemas")
REFUSED = (
    ("train block=nope modle.dim=3 model.depth=deep", ("unknown block 'nope'", "did you mean model?", "'deep'")),
    ("check position=rope token_mixer=fourier model.dim=65", ("acts on queries_and_keys", "does not divide")),
    ("explain nope=3", ("unknown family",)),
)


@pytest.fixture
def poisoned(tmp_path: Path) -> dict[str, str]:
    """An environment in which the import of a heavy library writes a file and fails."""
    folder = tmp_path / "poison"
    for name in HEAVY:
        module = folder / name / "__init__.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError({MARK!r})\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(line: str, tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blockyard", *shlex.split(line)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert not (tmp_path / "imported").exists(), done.stderr
    return done


@pytest.mark.parametrize("line", ANSWERED)
def test_an_answer_imports_no_heavy_library(line: str, tmp_path: Path, poisoned: dict[str, str]) -> None:
    done = run(line, tmp_path, poisoned)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(("line", "parts"), REFUSED)
def test_a_refusal_imports_no_heavy_library(
    line: str, parts: tuple[str, ...], tmp_path: Path, poisoned: dict[str, str]
) -> None:
    done = run(line, tmp_path, poisoned)
    assert done.returncode == 2, done.stderr
    for part in parts:
        assert part in done.stderr


def test_the_poison_works(tmp_path: Path, poisoned: dict[str, str]) -> None:
    command = [sys.executable, "-m", "blockyard", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=poisoned, cwd=tmp_path)
    assert done.returncode != 0
    assert (tmp_path / "imported").exists()


def targets() -> list[str]:
    """The classes of the package that choices name."""
    named = {choice.target for family in catalog.groups() for choice in catalog.choices(family).values()}
    return sorted(target for target in named if target and target.startswith("blockyard."))


def test_every_class_has_the_same_options_with_stand_ins() -> None:
    names = targets()
    code = (
        "import json, sys; from blockyard.config.untrusted import placeholders; placeholders.install(); "
        "from tests.support.described_options import described; print(json.dumps(described(json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(names), capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(without_addresses(done.stdout)) == json.loads(without_addresses(json.dumps(described(names))))


def without_addresses(text: str) -> str:
    """The text without the addresses of functions, which differ between processes."""
    return re.sub(r"0x[0-9a-f]+", "", text)


def test_completion_offers_the_options_of_every_class() -> None:
    """It reads their names from the source: a shell asks at each press of a key, and runs no code for it."""
    for name in targets():
        assert set(catalog.parameters(name)) == set(options(locate(name))), name


@pytest.mark.parametrize("printed", ["text", ""])
def test_the_answer_of_the_other_process_is_handed_back(
    printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "LIBRARIES", ())

    def command() -> int:
        sys.stdout.write(printed)
        sys.stderr.write("refused")
        return 2

    assert _without_torch.answer(command) == 2
    assert capsys.readouterr() == (printed, "refused")


def test_nothing_is_printed_where_the_answer_needs_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "LIBRARIES", ())

    def command() -> int:
        sys.stdout.write("half an answer")
        placeholders.require_torch()
        return 0

    assert _without_torch.answer(command) is None
    assert capsys.readouterr().out == ""
