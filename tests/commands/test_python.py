"""The commands as functions."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import blockyard
from blockyard.commands import _python
from blockyard.commands._python import as_texts
from blockyard.config.override_grammar import parse_value
from blockyard.data.digits import Digits
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.runs.folder import RunFolder
from blockyard.sweep.spec.question import command_keys
from tests.support.every import every
from tests.support.tiny import DEBUG


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    outputs = tmp_path_factory.mktemp("python")
    return blockyard.train(*DEBUG, {"model.depth": 1, "name": "mine"}, outputs=outputs)


def test_a_run_is_trained_once(run_folder: RunFolder) -> None:
    outputs = run_folder.path.parents[1]
    before = run_folder.summary()
    again = blockyard.train(*DEBUG, {"model.depth": 1, "name": "mine"}, outputs=outputs)
    assert again.path == run_folder.path
    assert again.summary() == before
    with pytest.raises(UserError, match=r"unknown block 'pre_norn'; did you mean pre_norm"):
        blockyard.train("block=pre_norn", outputs=outputs)


def test_a_config_is_checked_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sound = blockyard.check(*DEBUG, {"model.depth": 1})
    assert sound.problems == ()
    assert sound.config["model"]["depth"] == 1
    both = blockyard.check("block=pre_norn", "position=rope", "token_mixer=fourier")
    assert len(both.problems) == 2
    assert "did you mean pre_norm?" in both.problems[0]
    (missing,) = blockyard.check("experiment=spam_table", "data.path=none.csv").problems
    assert "none.csv" in missing
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AttributeError, match="cannot assign"):
        sound.problems = ()  # type: ignore[misc]


def test_a_run_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.engine.run._train_and_test", lambda attempt: 1 / 0)
    with pytest.raises(blockyard.RunFailed, match=r"is failed: .*division by zero"):
        blockyard.train(*DEBUG, outputs=tmp_path)


def test_runs_are_a_table(run_folder: RunFolder) -> None:
    outputs = run_folder.path.parents[1]
    result = blockyard.runs("block=pre_norm", outputs=outputs)
    assert len(result) == 1
    assert result[0].metrics == run_folder.summary()["metrics"]
    pytest.importorskip("pandas")
    table = result.to_frame()
    assert list(table["block"]) == ["pre_norm"]
    assert list(table["test/accuracy"]) == [run_folder.summary()["metrics"]["test/accuracy"]]
    assert len(blockyard.runs("block=post_norm", outputs=outputs)) == 0
    with pytest.raises(UserError, match=r"no run has it"):
        blockyard.runs("blocks=post_norm", outputs=outputs)


def test_a_model_is_loaded_without_its_data(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = blockyard.load(run_folder).model.state_dict()
    monkeypatch.setattr(Digits, "missing", lambda self: "no files in data/; set data.root=FOLDER")
    loaded = blockyard.load(run_folder)
    assert every(value.equal(expected[name]) for name, value in loaded.model.state_dict().items())
    with pytest.raises(UserError, match=r"no files in data/; set data.root=FOLDER"):
        evaluate(run_folder.path)


def test_mappings_are_overrides() -> None:
    values = {
        "a.b": 1e-3,
        "c": "rope",
        "d": [1, 2],
        "e": None,
        "f": {"top5": {"metric": "Accuracy", "top_k": 5}},
        "g": True,
    }
    assert as_texts(["x=1", values]) == [
        *("x=1", "a.b=0.001", "c=rope", "d=[1,2]", "e=null"),
        *("f={top5:{metric:Accuracy,top_k:5}}", "g=true"),
    ]


def test_values_of_mappings_are_read_as_they_were() -> None:
    values = {
        "a": ["größe", r"\d+", "it's", "a,b"],
        "b": {"c": (1, 2.5)},
        "d": [math.inf, True, None],
        "e": np.float64(0.1),
        "f": np.int64(3),
    }
    read = {key: parse_value(text) for key, _, text in (each.partition("=") for each in as_texts([values]))}
    assert read == {
        "a": ["größe", r"\d+", "it's", "a,b"],
        "b": {"c": [1, 2.5]},
        "d": [math.inf, True, None],
        "e": 0.1,
        "f": 3,
    }
    assert as_texts([{"data.path": Path("a folder")}]) == ["data.path='a folder'"]
    assert as_texts([{"data.path": Path("a${x}")}]) == [r"data.path='a\${x}'"]
    with pytest.raises(UserError, match=r"data.columns: .* is a set; a config has texts"):
        as_texts([{"data.columns": {"a"}}])


def test_packages_that_are_functions_stay_packages() -> None:
    import blockyard.runs.store
    import blockyard.sweep.plan.sweep_plan

    assert callable(blockyard.runs)
    assert callable(blockyard.sweep)
    assert blockyard.runs.store.find


def test_a_sweep_from_a_mapping_is_a_sweep_file(tmp_path: Path) -> None:
    """The content is kept in the sweep's folder, and bad content is refused with what is taken."""
    content = {
        "claim": "x",
        "base": [*DEBUG, "model.depth=1"],
        "arms": {"layer": [], "rms": ["norm=rms"]},
        "seeds": 1,
    }
    for bad, options, message in (
        (content, {}, "needs a name"),
        (content | {"arm": 1}, {"name": "mine"}, "did you mean arms"),
        (5, {}, "takes a path, a name or a mapping"),
        ("quickstart", {"name": "mine"}, "has its own name"),
    ):
        with pytest.raises(UserError, match=message):
            blockyard.sweep(bad, outputs=tmp_path, **options)
    compared = blockyard.sweep(content, outputs=tmp_path, name="mine", workers=1)
    assert [arm.name for arm in compared.arms] == ["layer", "rms"]
    assert (tmp_path / "sweeps" / "mine" / "mine.yaml").is_file()
    assert "mine" in repr(compared)
    assert "layer, rms" in repr(compared)
    cells = blockyard.runs("sweep=mine", outputs=tmp_path)  # as `blockyard runs sweep=mine` does
    assert {cell.value("arm") for cell in cells} == {("layer",), ("rms",)}


def test_the_folder_of_runs_may_be_an_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_python, "_train", lambda arguments, config_dirs, config: (arguments, config))
    named = f"outputs={tmp_path}"
    assert blockyard.train("seed=1", named) == (["seed=1", named], None)
    assert blockyard.train("seed=1", {"outputs": str(tmp_path)}) == (["seed=1", named], None)
    assert blockyard.train(config={"outputs": "mine"}) == ([], {"outputs": "mine"})
    assert blockyard.train(config={"outputs": "mine"}, outputs=tmp_path) == ([], {"outputs": str(tmp_path)})
    monkeypatch.setattr(_python, "_sweep", lambda path, typed, outputs: (typed, outputs))
    assert blockyard.sweep("quickstart", named, "seed=1") == (["seed=1"], str(tmp_path))
    assert blockyard.sweep("quickstart", outputs=tmp_path, seeds=0) == (["--seeds", "0"], str(tmp_path))
    assert blockyard.sweep("quickstart") == ([], "outputs")
    for call in (blockyard.train, partial(blockyard.sweep, "quickstart")):
        with pytest.raises(UserError, match="leave one out"):
            call(named, outputs=tmp_path)


def test_a_sweep_that_is_refused_says_why(tmp_path: Path) -> None:
    content = {"claim": "x", "base": [*DEBUG, "block=pre_norn"], "arms": {"layer": [], "rms": ["norm=rms"]}, "seeds": 1}
    with pytest.raises(UserError, match=r"unknown block 'pre_norn'; did you mean pre_norm"):
        blockyard.sweep(content, outputs=tmp_path, name="mine")
    with pytest.raises(UserError, match="--workers"):
        blockyard.sweep("quickstart", outputs=tmp_path, workers=0)


def test_config_folders_of_a_mapping_start_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"claim": "x", "base": DEBUG, "arms": {"a": [], "b": ["norm=rms"]}, "config_dirs": ["mine"]}
    path = _python._written(content, "q", "outputs/sweeps")
    assert command_keys(path)[0] == [str(tmp_path / "mine")]


def test_runs_are_compared_as_they_are_returned(run_folder: RunFolder) -> None:
    outputs = run_folder.path.parents[1]
    expected = blockyard.compare(run_folder.path, changes=False).as_dict()["arms"]
    for selection in (run_folder, [run_folder], blockyard.runs(outputs=outputs), blockyard.runs(outputs=outputs)[0]):
        assert blockyard.compare(selection, outputs=outputs, changes=False).as_dict()["arms"] == expected


def test_mistakes_are_errors_of_the_package(run_folder: RunFolder) -> None:
    """A text was taken for a list of its letters, and the error that the docs name could not be named."""
    assert blockyard.UserError is UserError
    for inputs in ("good film", []):
        with pytest.raises(blockyard.UserError, match=r"inputs is a list|no input"):
            blockyard.predict(run_folder, inputs)
    with pytest.raises(blockyard.UserError, match="inputs is a list"):
        blockyard.embed(run_folder, "good film")
    with pytest.raises(blockyard.UserError, match=r"resume: .* in Python the call that began a run continues it"):
        blockyard.train("resume=last")
    with pytest.raises(blockyard.UserError, match=r"\['seed=1'\] is neither .* passed as \*overrides"):
        blockyard.check(["seed=1"])


def test_results_print_as_one_line(run_folder: RunFolder) -> None:
    assert repr(run_folder) == f"<run {run_folder.path}: done>"
    runs = blockyard.runs(outputs=run_folder.path.parents[1])
    assert repr(runs) == f"<1 run: {run_folder.name} (done)>"
