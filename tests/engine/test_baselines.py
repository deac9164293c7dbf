"""Baselines beside the runs: computed once for a data set, after the figures of a run, which they never lose."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockyard.atomic_files import TEMPORARY, read_json, write_json
from blockyard.cli import main
from blockyard.contracts import Baseline, Baselines, SimpleModel
from blockyard.data.splits import simple_models
from blockyard.data.splits.images import ImageSplit
from blockyard.engine import baselines as engine_baselines
from blockyard.objective import _baselines
from blockyard.runs.folder import RunFolder
from tests.support.fork import forked

SHORT = ["experiment=vit_digits", "trainer=cpu", "trainer.max_steps=2", "logger=none", "model.dim=16", "model.depth=1"]


def train(outputs: Path, *arguments: str) -> tuple[int, RunFolder]:
    code = main(["train", *SHORT, f"outputs={outputs}", *arguments])
    (path,) = outputs.glob(f"*/s{next((override[5:] for override in arguments if override.startswith('seed=')), '0')}")
    return code, RunFolder.open(path)


def test_baselines_are_computed_once_for_all_runs_of_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second seed reads what the first has computed, and both have it in their summaries."""
    computed: list[str] = []
    original = engine_baselines._computed

    def counting(baselines: Any, name: str) -> dict[str, Any]:
        computed.append(name)
        return original(baselines, name)

    monkeypatch.setattr(engine_baselines, "_computed", counting)
    summaries = []
    for seed in ("0", "1"):
        code, folder = train(tmp_path, f"seed={seed}")
        assert code == 0
        summaries.append(folder.summary())
    assert computed == ["majority", "nearest_centroid", "linear"]
    assert summaries[0]["baselines"] == summaries[1]["baselines"]
    assert summaries[0]["baselines"]["linear"]["accuracy"] > 0.9
    (file,) = (tmp_path / ".baselines").glob("*.json")
    assert set(json.loads(file.read_text())) >= set(computed)


def test_asking_for_a_name_computes_nothing() -> None:
    """A run that finds every baseline in the file computes none again."""

    def fail() -> dict[str, float]:
        raise AssertionError("computed")

    assert "linear" in Baselines([Baseline("linear", fail)])
    assert "majority" not in Baselines([Baseline("linear", fail)])


@pytest.mark.parametrize("error", [MemoryError("too many words"), RuntimeError("planted")])
def test_a_baseline_that_fails_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is done with its figures and the other baselines, and the reason is recorded and printed."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(_baselines, "linear", fail)
    code, folder = train(tmp_path)
    assert (code, folder.status.state) == (0, "done")
    summary = folder.summary()
    assert "test/accuracy" in summary["metrics"]
    assert set(summary["baselines"]) == {"majority", "nearest_centroid"}
    assert str(error) in summary["baselines_missing"]["linear"]
    assert "baseline linear: no value" in capsys.readouterr().out


@pytest.mark.full
def test_a_run_whose_baseline_is_killed_is_done(tmp_path: Path) -> None:
    """As by a lack of memory: figures and reason are on disk. The next run tries once more, those after it do not."""

    def killed(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def work(seed: str) -> int:
        _baselines.linear = killed
        return train(tmp_path, f"seed={seed}")[0]

    for seed in ("0", "1"):
        assert forked(partial(work, seed)) == -signal.SIGKILL
        (path,) = tmp_path.glob(f"*/s{seed}")
        folder = RunFolder.open(path)
        assert folder.status.state == "done"
        assert "test/accuracy" in folder.summary()["metrics"]
        assert folder.summary()["baselines_missing"]["linear"] == engine_baselines.LOST
    code, again = train(tmp_path, "seed=2")
    assert code == 0
    assert set(again.summary()["baselines"]) == {"majority", "nearest_centroid"}
    assert again.summary()["baselines_missing"] == {"linear": engine_baselines.LOST}


@pytest.mark.parametrize("entry", [{}, {"attempts": 1}, {"attempts": 2}], ids=str)
def test_a_baseline_whose_process_was_killed_is_tried_again(tmp_path: Path, entry: dict[str, int]) -> None:
    """A scheduler may have killed it: the next run of the task computes it, at most twice in all."""
    assert train(tmp_path)[0] == 0
    (file,) = (tmp_path / engine_baselines.FOLDER).glob("*.json")
    write_json(file, read_json(file) | {"linear": {"missing": engine_baselines.LOST} | entry}, checked=True)
    summary = train(tmp_path, "seed=1")[1].summary()
    tried = entry.get("attempts", 1) < engine_baselines.MOST_ATTEMPTS
    assert ("linear" in summary["baselines"]) == tried
    assert ("linear" in summary.get("baselines_missing", {})) != tried


def test_files_of_killed_runs_are_removed_beside_the_baselines(tmp_path: Path) -> None:
    """A temporary file in outputs/.baselines goes once it is older than an hour; a younger one may have a writer."""
    path = tmp_path / engine_baselines.FOLDER / "0123456789abcdef.json"
    path.parent.mkdir()
    old, young = (path.parent / f"{TEMPORARY}{path.name}-1-{mark * 8}" for mark in "ab")
    for file, age in ((old, engine_baselines._LEFT + 60), (young, engine_baselines._LEFT - 60)):
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    with engine_baselines._alone(path):
        pass
    assert not old.exists()
    assert young.exists()


def test_a_signal_ends_the_baselines_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_baselines, "linear", stopped)
    code, folder = train(tmp_path)
    assert (code, folder.status.state) == (0, "done")
    assert "SIGTERM" in folder.summary()["baselines_missing"]["linear"]


def test_bounds_that_are_reached_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_baselines, "MAX_FITTED_SAMPLES", 500)
    monkeypatch.setattr(_baselines, "MAX_TESTED_SAMPLES", 100)
    _, folder = train(tmp_path)
    note = folder.summary()["baseline_notes"]["linear"]
    assert note == "fitted on 500 of 1,295 samples; tested on 100 of 359 samples"


def test_classes_beyond_the_bound_have_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simple_models, "MOST_CLASSES", 9)
    _, folder = train(tmp_path)
    assert "10 classes" in folder.summary()["baselines_missing"]["linear"]


def test_models_of_a_split_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split may name a model as the objective does; the split's own is kept."""

    def fit() -> Callable[[Tensor], Tensor]:
        return lambda order: torch.zeros(len(order), 10)

    monkeypatch.setattr(ImageSplit, "baselines", lambda split: [SimpleModel("linear", fit)], raising=False)
    _, folder = train(tmp_path)
    assert folder.summary()["baselines"]["linear"]["accuracy"] < 0.2
