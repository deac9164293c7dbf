"""Runs of optimizer=schedule_free: metrics and checkpoints are of the average; a killed run ends with the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from blockyard.config.build import Components
from blockyard.engine import module
from blockyard.runs.checkpoint import read
from blockyard.runs.metrics import read_metrics
from tests.support.engine_runs import assert_same_bits, killed_at, run
from tests.support.every import every

OPTIONS = (
    *("optimizer=schedule_free", "schedule=constant", "optimizer.lr=0.01", "trainer.max_epochs=null"),
    *("trainer.max_steps=12", "trainer.eval_every=4", "callbacks.checkpoint.every=3"),
)


@pytest.mark.full
@pytest.mark.parametrize("step", [5, 9])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, step: int) -> None:
    whole = run(tmp_path / "whole", *OPTIONS)
    assert killed_at(step, tmp_path / "killed", *OPTIONS) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *OPTIONS), whole)


def validation_accuracy(folder, weights: dict[str, torch.Tensor]) -> float:
    components = Components(folder.config)
    model = components.model(0).eval()
    model.load_state_dict(weights)
    split = components.data.load(components.tokenizer).validation
    batch = split.batch(torch.arange(len(split)), None)
    return float((model(batch.inputs).argmax(-1) == batch.target).double().mean())


def test_metrics_and_checkpoints_are_of_the_average(tmp_path: Path) -> None:
    folder = run(tmp_path, *OPTIONS)
    content = read(folder.checkpoints / "last.ckpt")
    weights, optimizer = content["state_dict"], content["optimizer_states"][0]
    assert every(group["exchanged"] for group in optimizer["param_groups"])
    weights = {name.removeprefix("model."): each for name, each in weights.items()}
    (logged,) = [
        row for row in read_metrics(folder.path / "metrics.csv") if row.get("val/accuracy") and row["step"] == 12
    ]
    assert validation_accuracy(folder, weights) == pytest.approx(logged["val/accuracy"])
    # The state has what training goes on with, from which the average differs.
    model = Components(folder.config).model(0)
    trained = [p for group in Components(folder.config).optimizer.build(model).param_groups for p in group["params"]]
    names = {id(p): name for name, p in model.named_parameters()}
    for index, p in enumerate(trained):
        state = optimizer["state"][index]
        assert not torch.equal(state["average"], weights[names[id(p)]])
        mixed = 0.1 * state["z"] + 0.9 * weights[names[id(p)]]
        torch.testing.assert_close(state["average"], mixed, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_exchanged_back_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a resumed run goes on from the average, which the optimizer refuses."""
    assert killed_at(5, tmp_path, *OPTIONS) == -signal.SIGKILL
    monkeypatch.setattr(module.Learner, "use_trained_weights", lambda *_: None)
    assert run(tmp_path, *OPTIONS, code=1).status.state == "failed"
