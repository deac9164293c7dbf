"""`eval` gives the figures that the training run gave itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from blockyard import atomic_files
from blockyard.errors import UserError
from blockyard.evaluate import api
from blockyard.evaluate.api import evaluate
from blockyard.runs.checkpoint import LAST
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from tests.support import engine_runs
from tests.support.engine_runs import run
from tests.support.tiny import steps

pytestmark = pytest.mark.xdist_group("evaluate")  # its runs are made once

WHOLE_SPLITS = (*steps(12, 4), "trainer.limit_val=null", "trainer.limit_test=null")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("image"), *WHOLE_SPLITS)


def test_the_same_figures_to_the_last_digit(image: RunFolder) -> None:
    recorded = image.summary()["metrics"]
    test, validation = evaluate(image.path), evaluate(image.path, split="validation")
    assert test == {key: value for key, value in recorded.items() if key.startswith("test/")}
    assert validation == {key: value for key, value in recorded.items() if key.startswith("val/")}
    assert test["test/accuracy"] > 0
    assert evaluate(image.path, split="train").keys() == {"train/loss", "train/accuracy"}


def test_the_threads_are_the_runs_and_given_back(image: RunFolder, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert evaluate(image.path)["test/loss"] == image.summary()["metrics"]["test/loss"]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_model_returns_from_the_device_of_the_run(image: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, moves = load(image.path), list[str]()
    monkeypatch.setattr(api, "_device", lambda summary, accelerator: "cuda")  # which need not be there
    monkeypatch.setattr(loaded.model, "to", lambda device: (moves.append(str(device)), loaded.model)[1])
    assert api.as_recorded(loaded, "test", lambda model, split, settings: settings["device"]) == "cuda"
    with pytest.raises(KeyError):
        api.as_recorded(loaded, "test", lambda model, split, settings: {}["failed"])
    assert moves == ["cuda", "cpu"] * 2


def test_other_weights_give_other_figures(image: RunFolder, tmp_path: Path) -> None:
    """The planted bug: weights that are not those of the run must show."""
    shutil.copytree(image.path.parent, tmp_path / image.path.parent.name)
    copied = RunFolder.open(tmp_path / image.path.parent.name / "s0")
    content = torch.load(copied.checkpoints / LAST, weights_only=True)
    content["state_dict"] = {name: value * 1.5 for name, value in content["state_dict"].items()}
    torch.save(content, copied.checkpoints / LAST)
    assert evaluate(copied.path, which="last") != evaluate(image.path, which="last")


def test_other_data_is_said(image: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(image.path.parent, tmp_path / image.path.parent.name)
    copied = RunFolder.open(tmp_path / image.path.parent.name / "s0")
    summary = copied.summary()
    summary["data"]["fingerprint"] = "0" * 64
    atomic_files.write_json(copied.path / "summary.json", summary)
    evaluate(copied.path)
    assert "the data differs from what the run was trained on" in caplog.text


def test_a_text_that_changed_is_read_with_the_runs_vocabulary_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "book.txt").write_text("abc def ghi jkl. " * 400)
    overrides = ("data=text_file", f"data.path={tmp_path / 'book.txt'}", "data.context=8", "tokenizer=char")
    run_folder = engine_runs.text_run(tmp_path / "out", *overrides)
    before = evaluate(run_folder.path)
    assert before.items() <= run_folder.summary()["metrics"].items()
    assert "the data is not" not in caplog.text
    (tmp_path / "book.txt").write_text("ABC def ghi jkl. " * 400)
    assert evaluate(run_folder.path) != before
    assert "the data differs from what the run was trained on" in caplog.text
    (tmp_path / "book.txt").unlink()
    with pytest.raises(UserError, match=r"book\.txt"):
        evaluate(run_folder.path)


def test_bad_words_are_refused(image: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split='tests': expected one of test, validation, train"):
        evaluate(image.path, split="tests")
    with pytest.raises(UserError, match="no runs under"):
        evaluate("last", outputs=tmp_path)


def test_a_damaged_summary_is_said(image: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(image.path.parent, tmp_path / image.path.parent.name)
    copied = RunFolder.open(tmp_path / image.path.parent.name / "s0")
    for text in ('{"metrics": ', "[1]"):
        (copied.path / "summary.json").write_text(text)
        with pytest.raises(UserError, match=r"summary\.json is damaged"):
            evaluate(copied.path)


def test_an_unfinished_run_is_judged_in_its_own_precision(
    image: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockyard.evaluate import loop

    shutil.copytree(image.path.parent, tmp_path / image.path.parent.name)
    copied = RunFolder.open(tmp_path / image.path.parent.name / "s0")
    (copied.path / "summary.json").unlink()
    copied.add_facts({"precision": {"asked": "auto", "precision": "bf16-mixed"}})
    precisions = []
    monkeypatch.setattr(loop, "evaluate", lambda *_, precision, **__: precisions.append(precision) or {})
    evaluate(copied.path)
    assert precisions == ["bf16-mixed"]


def test_a_damaged_tokenizer_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 80)
    data = ("data=text_file", f"data.path={tmp_path / 'text.txt'}", "tokenizer=bpe", "tokenizer.vocab_size=300")
    run_folder = engine_runs.text_run(tmp_path, *data, "position=rope")
    (run_folder.path / "tokenizer.json").write_text('{"tokenizer": "{}", "vocabulary": 3}')
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        evaluate(run_folder.path)
