"""The average of the weights: its formula, its metrics, its place in checkpoints, exact resumes, several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockyard
from blockyard.engine.callbacks.ema import EMA
from blockyard.engine.callbacks.loop import LoopActions
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.sweep.plan.target_metric import validation_metric
from tests.support.engine_runs import assert_same_bits, config, killed_at, rows, run
from tests.support.every import every

TARGET = "callbacks.ema._target_=blockyard.engine.callbacks.ema.EMA"
OPTIONS = (TARGET, "callbacks.ema.decay=0.8")
SAVE = "callbacks.checkpoint.every=3"


def average(folder: RunFolder, name: str = "last.ckpt") -> dict[str, Tensor]:
    return dict(read(folder.checkpoints / name)["callbacks"]["LoopCallback"]["watchers"]["ema"]["average"])


class Tied(nn.Module):
    """A table that the head shares, and a batch norm, whose statistics are averaged too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("constant", torch.ones(2), persistent=False)


def state_of(model: nn.Module, step: int = 0, *, sharded: bool = False) -> Any:
    return SimpleNamespace(learner=SimpleNamespace(model=model, settings=SimpleNamespace(sharded=sharded)), step=step)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_is_its_formula(warmup: bool) -> None:
    torch.manual_seed(0)
    model, ema = Tied(), EMA(decay=0.9, warmup=warmup)
    ema.on_run_start(state_of(model))
    expected = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
    for step in range(1, 120):
        with torch.no_grad():
            for tensor in (*model.parameters(), model.norm.running_mean, model.norm.running_var):
                tensor.add_(torch.randn_like(tensor))
        ema.on_step(state_of(model, step))
        decay = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor
    result = ema.state_dict()["average"]
    assert result.keys() == model.state_dict().keys()
    for name, tensor in result.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=1e-4)
    assert torch.equal(result["head.weight"], result["table.weight"])
    raw = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with ema.in_place():
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=1e-4)
    assert every(torch.equal(tensor, raw[name]) for name, tensor in model.state_dict().items())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("ema"), *OPTIONS)


def test_training_is_that_without_an_average(run_folder: RunFolder, tmp_path: Path) -> None:
    plain = run(tmp_path)
    with_average, without_average = (read(each.checkpoints / "last.ckpt")["state_dict"] for each in (run_folder, plain))
    assert with_average.keys() == without_average.keys()
    assert every(torch.equal(with_average[name], without_average[name]) for name in with_average)
    assert [{k: v for k, v in row.items() if "@" not in k} for row in rows(run_folder)] == rows(plain)
    assert run_folder.identity != plain.identity


def test_the_average_is_evaluated_saved_and_tested_beside_the_raw_weights(run_folder: RunFolder) -> None:
    evaluated = [row for row in rows(run_folder) if "val/loss" in row]
    assert every(row["val/loss@ema"] != row["val/loss"] for row in evaluated)
    metrics = run_folder.summary()["metrics"]
    assert {"val/loss@ema", "val/accuracy@ema", "test/loss@ema", "test/accuracy@ema"} <= metrics.keys()
    assert run_folder.summary()["directions"]["test/loss@ema"] == "min"
    for which, suffix in (("best", ""), ("best@ema", "@ema")):
        for split, prefix in (("test", "test"), ("validation", "val")):
            result = evaluate(run_folder.path, split=split, which=which)
            assert result[f"{prefix}/loss"] == pytest.approx(metrics[f"{prefix}/loss{suffix}"])
    loaded = blockyard.load(run_folder.path, which="last@ema")
    assert loaded.weights == "last.ckpt@ema"
    saved = average(run_folder)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, saved[name]), name


def test_a_decay_of_zero_is_the_raw_weights(tmp_path: Path) -> None:
    short = ("trainer.max_steps=6", "trainer.eval_every=3")
    run_folder = run(tmp_path, TARGET, "callbacks.ema.decay=0.0", *short)
    assert every(row["val/loss@ema"] == row["val/loss"] for row in rows(run_folder) if "val/loss" in row)
    metrics = run_folder.summary()["metrics"]
    assert metrics["test/loss@ema"] == metrics["test/loss"]


@pytest.mark.full
def test_a_killed_run_ends_with_the_same_average(run_folder: RunFolder, tmp_path: Path) -> None:
    assert killed_at(11, tmp_path, *OPTIONS, SAVE) == -9
    again = run(tmp_path, *OPTIONS, SAVE)
    assert_same_bits(again, run_folder)
    for name in ("last.ckpt", "best.ckpt"):
        resumed, uninterrupted = average(again, name), average(run_folder, name)
        assert every(torch.equal(resumed[key], uninterrupted[key]) for key in uninterrupted)
    assert again.summary()["metrics"] == run_folder.summary()["metrics"]


def test_a_run_that_a_signal_stops_in_its_last_evaluation_is_finished(
    run_folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to train, so that Lightning begins no training."""
    evaluate, struck = LoopActions.evaluate, []

    def strike(actions: Any, trainer: Any, module: Any) -> None:
        if actions.state.finished and not struck:
            struck.append(actions.state.step)
            os.kill(os.getpid(), signal.SIGTERM)
        evaluate(actions, trainer, module)

    monkeypatch.setattr(LoopActions, "evaluate", strike)
    run(tmp_path, *OPTIONS, SAVE, code=143)
    assert struck
    again = run(tmp_path, *OPTIONS, SAVE)
    assert again.summary()["metrics"] == run_folder.summary()["metrics"]


def test_only_one_average_may_select(tmp_path: Path) -> None:
    own = (TARGET.removeprefix("callbacks.ema."), "select=average")
    two = [f"callbacks.{name}.{option}" for name in ("slow", "fast") for option in own]
    with pytest.raises(UserError, match=r"callbacks\.\w+ and callbacks\.\w+ each select the best step"):
        run(tmp_path, *two)


def test_the_average_may_select_the_best_step(run_folder: RunFolder, tmp_path: Path) -> None:
    chosen = run(
        tmp_path, TARGET, "callbacks.ema.decay=0.999", "callbacks.ema.warmup=false", "callbacks.ema.select=average"
    )
    evaluated = {row["step"]: row["val/accuracy@ema"] for row in rows(chosen) if "val/accuracy@ema" in row}
    best = chosen.summary()["best"]["step"]
    assert evaluated[best] == max(evaluated.values())
    assert chosen.summary()["monitor"] == ["accuracy@ema", "max"]


def test_a_sweep_may_ask_for_the_metric_of_the_average(tmp_path: Path) -> None:
    plain, _ = config(tmp_path, *OPTIONS)
    assert validation_metric("test/accuracy@ema", plain, []) == ("val/accuracy@ema", "max")
    with pytest.raises(UserError, match=r"test/accuracy@ema is not measured"):
        validation_metric("test/accuracy@ema", config(tmp_path)[0], [])


def test_a_run_without_an_average_says_so(run_folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no average 'fast' of the weights: it has ema"):
        blockyard.load(run_folder.path, which="best@fast")
    plain = run(tmp_path, "trainer.max_steps=1")
    with pytest.raises(UserError, match=r"it has none; callbacks=ema keeps one"):
        blockyard.load(plain.path, which="best@ema")


def test_sharded_weights_are_refused() -> None:
    with pytest.raises(UserError, match=r"callbacks=ema: trainer.strategy=fsdp leaves no process all the weights"):
        EMA().on_run_start(state_of(nn.Linear(1, 1), sharded=True))
