"""Every experiment on the disk makes two steps, on its own data where that is embedded or made here."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.config.choices import catalog
from tests.support.experiment_data import experiments, own_data
from tests.support.tiny import ONE_BATCH, steps

TWO_STEPS = (*steps(2, 2), *ONE_BATCH, "logger=none")


@pytest.mark.parametrize("name", list(experiments()))
@pytest.mark.sampled(12)
def test_two_steps(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = own_data(name, tmp_path / "own") if (tmp_path / "own").mkdir() is None else []
    assert main(["train", f"experiment={name}", *TWO_STEPS, *overrides]) == 0
    (summary,) = tmp_path.glob("outputs/*/s0/summary.json")
    assert json.loads(summary.read_text())["steps"] == 2


@pytest.mark.full
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["translate_pairs", "views_folder"])
def test_two_steps_on_shared_data(
    name: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "views_folder":
        with zipfile.ZipFile(shared_data / "cifar10" / "cifar10_folder.zip") as archive:
            archive.extractall(tmp_path / "photographs")
        where = f"data.root={tmp_path / 'photographs'}"
    else:
        where = f"data.path={shared_data / 'parallel' / 'en-de.tsv.gz'}"
    assert main(["train", f"experiment={name}", *TWO_STEPS, where, "data.eval_batch_size=32"]) == 0
    (summary,) = tmp_path.glob("outputs/*/s0/summary.json")
    assert json.loads(summary.read_text())["steps"] == 2


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("spam_table", "data.path="),
        ("speech_ctc", "data.path="),
        ("translate_languages", "data.path="),
        ("translate_pairs", "data.path="),
        ("views_folder", "data.root="),
    ],
)
def test_an_experiment_without_its_data_says_what_is_missing(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"experiment={name}", "logger=none"]) == 2
    assert f"set {key}" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(catalog.choices("experiment")))
def test_header_says_question_command_and_cost(name):
    head = catalog.choices("experiment")[name].path.read_text().partition("defaults:")[0]
    for text in ("question", f"command    blockyard train experiment={name}", "cost", "expected"):
        assert text in head
