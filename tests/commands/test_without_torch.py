"""Answers and refusals that need no PyTorch never import it, and say what they say with it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import write_json, write_yaml
from blockyard.commands import _without_torch
from blockyard.config.choices import catalog
from blockyard.config.schema import options
from blockyard.config.untrusted import placeholders
from blockyard.config.untrusted.targets import locate
from blockyard.runs.status import Status, write_status
from blockyard.sweep.cells import Cell
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.finished import stored_plan
from blockyard.sweep.plan.history import store_plan
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.question import read
from tests.support.declared_specs import UNREAD, declared_specs
from tests.support.paths import ROOT

HEAVY = ("torch", "pytorch_lightning", "torchmetrics", "timm")
MARK = "a heavy library was imported"
ANSWERED = ("explain token_mixer=attention norm=rms experiment=vit_digits", "explain qk_norm", "schema to=schemas")
REFUSED = (
    ("train block=nope model.dmi=3 model.depth=deep", ("unknown block 'nope'", "no option 'dmi'", "'deep'")),
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


def test_a_library_cannot_be_called_but_while_a_module_is_imported(tmp_path: Path, poisoned: dict[str, str]) -> None:
    """The result of such a call would be taken for a value: a checkpoint, a number of devices."""
    code = (
        "from blockyard.config.untrusted import placeholders\n"
        "placeholders.install()\n"
        "import torch, blockyard.token_mixer.attention\n"
        "try:\n    torch.load('run.ckpt')\n"
        "except placeholders.NeedsTorchError:\n    print('needed')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=poisoned, cwd=tmp_path)
    assert done.stdout == "needed\n", done.stderr


def test_the_poison_works(tmp_path: Path, poisoned: dict[str, str]) -> None:
    command = [sys.executable, "-m", "blockyard", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=poisoned, cwd=tmp_path)
    assert done.returncode != 0
    assert (tmp_path / "imported").exists()


def targets() -> list[str]:
    """The classes of the package that choices name."""
    named = {choice.target for family in catalog.groups() for choice in catalog.choices(family).values()}
    return sorted(target for target in named if target and target.startswith("blockyard."))


def with_stand_ins(imports: str, expression: str) -> Any:
    """The value of an expression in a process with stand-ins."""
    code = (
        "import json; from blockyard.config.untrusted import placeholders; assert placeholders.install(); "
        f"{imports}; print(json.dumps({expression}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_data_and_tokenizers_declare_the_same_with_stand_ins() -> None:
    """The tokenizers with a network of timm are the only ones whose tokens are known from a built network alone."""
    read = with_stand_ins("from tests.support.declared_specs import declared_specs", "declared_specs()")
    assert {name.partition(" ")[2] for name, text in read.items() if text == UNREAD} == {"tokenizer=timm"}
    declared = declared_specs()
    assert set(read) == set(declared)
    assert [name for name, text in read.items() if text not in (UNREAD, declared[name])] == []


def test_options_and_identities_are_the_golden_ones_with_stand_ins() -> None:
    """They follow from the signatures of all classes, which a stand-in among the bases must not change."""
    read = with_stand_ins(
        "from tests.golden.content import class_options, identities", "[class_options(), identities()]"
    )
    folder = ROOT / "tests" / "golden"
    assert read == [json.loads((folder / f"{name}.json").read_text()) for name in ("options", "identities")]


SWEEP = """
claim: One is better
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu]
arms: {plain: [], rms: [norm=rms]}
seeds: 2
"""


def test_the_dry_run_of_a_finished_sweep_imports_no_heavy_library(tmp_path: Path, poisoned: dict[str, str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SWEEP)
    plan = make_plan(file, outputs=str(tmp_path / "outputs"))
    store_plan(plan)
    for cell in plan.cells:
        folder = plan.path(cell)
        folder.mkdir(parents=True)
        write_yaml(folder / "config.yaml", plan.config(cell))
        summary = {"metrics": {"test/accuracy": 0.5}, "data": {"train": 100, "test": 400}}
        write_json(folder / "summary.json", summary)
        write_status(folder, Status("done"))
    done = run("sweep mine.yaml --dry-run", tmp_path, poisoned)
    assert done.returncode == 0, done.stderr
    assert "400 test samples" in done.stdout
    assert done.stdout.endswith("nothing is left to run\n")
    file.write_text(SWEEP.replace("plain: []", "plain: [], misspelt: [nrom=rms]"))
    refused = run("sweep mine.yaml --dry-run", tmp_path, poisoned)
    assert "misspelt: nrom: unknown config key" in refused.stderr
    assert stored(SWEEP, plan, tmp_path) == plan.cells
    assert stored(SWEEP.replace("seeds: 2", "seeds: 3"), plan, tmp_path) is None
    assert stored(SWEEP.replace("norm=rms", "norm=none"), plan, tmp_path) is None


def stored(content: str, plan: SweepPlan, folder: Path) -> tuple[Cell, ...] | None:
    """The cells of the stored plan, where it still is the plan of a file with this content."""
    file = folder / "mine.yaml"
    file.write_text(content)
    question = read(file)
    answer = stored_plan(question, question.base, plan.outputs, CellComposer())
    return None if answer is None else answer.cells


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

    assert _without_torch.answer("check", command) == 2
    assert capsys.readouterr() == (printed, "refused")


def test_nothing_is_printed_where_the_answer_needs_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "LIBRARIES", ())

    def command() -> int:
        sys.stdout.write("half an answer")
        placeholders.require_torch()
        return 0

    assert _without_torch.answer("check", command) is None
    assert capsys.readouterr().out == ""


def test_a_result_is_handed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholders, "LIBRARIES", ())

    def command() -> int:
        assert _without_torch.once("sum", lambda: 1 + 1) == 2
        placeholders.require_torch()
        return 0

    assert _without_torch.answer("check", command) is None
    assert _without_torch.once("product", lambda: 3) == 3
    assert _without_torch.once("sum", lambda: 4) == 2
    assert _without_torch.once("sum", lambda: 4) == 4


def test_a_sound_config_is_composed_in_one_of_the_two_processes(tmp_path: Path) -> None:
    code = (
        "from blockyard.cli import main\n"
        "assert main(['check', 'experiment=vit_digits']) == 0\n"
        "from blockyard.config.merge import _merge_files\n"
        "print(_merge_files.cache_info().misses)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0"
