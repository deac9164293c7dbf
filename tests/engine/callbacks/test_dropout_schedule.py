"""Dropout that changes during training: its factors, the rates it sets, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.callbacks.dropout_schedule import DropoutSchedule, rates
from blockyard.errors import UserError
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run
from tests.support.tiny import TINY, configured

TARGET = "callbacks.early._target_=blockyard.engine.callbacks.dropout_schedule.DropoutSchedule"


def state_of(model: nn.Module, step: int, total: int = 10, *, compiled: bool = False) -> Any:
    learner = SimpleNamespace(model=model, settings=SimpleNamespace(compile=compiled))
    return SimpleNamespace(learner=learner, step=step, expected_total=lambda _: total)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"until": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0]),
        ({"until": 4, "shape": "step"}, [1, 1, 1, 1, 0, 0, 0]),
        ({"start": 0.0, "end": 1.0, "begin": 2, "until": 6}, [0, 0, 0, 0.25, 0.5, 0.75, 1]),
        ({"start": 0.2, "end": 1.0, "until": 1.0}, [0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68]),
        ({"start": 0.0, "end": 1.0, "begin": 3, "until": 3}, [0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_factors(options: dict[str, Any], factors: list[float]) -> None:
    schedule = DropoutSchedule(**options)
    assert [schedule.factor(step, 10) for step in range(7)] == pytest.approx(factors)


def test_every_rate_of_a_model_follows() -> None:
    options = ("token_mixer.dropout=0.1", "channel_mixer.dropout=0.2", "block.dropout=0.3", "block.drop_path=0.4")
    model = Components(configured("model.depth=2", "model.dropout=0.5", "logger=none", *options)[0]).model(0)
    values = sorted(value for _, _, value in rates(model))
    # A block has one rate of attention, one of its channel mixer, and one on its branches; its depth sets drop_path.
    assert values == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.5])
    schedule = DropoutSchedule(until=4)
    schedule.on_run_start(state_of(model, 0))
    assert sorted(value for _, _, value in rates(model)) == pytest.approx(values)
    schedule.on_step(state_of(model, 2))
    assert sorted(value for _, _, value in rates(model)) == pytest.approx([value / 2 for value in values])
    schedule.on_step(state_of(model, 4))
    assert rates(model) == []


@pytest.mark.full
def test_a_killed_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    options = (TARGET, "callbacks.early.until=20", "callbacks.checkpoint.every=3")
    whole = run(tmp_path / "whole", *options)
    plain = run(tmp_path / "plain")
    logged = [row["dropout_factor"] for row in rows(whole) if "train/loss" in row]
    assert logged == pytest.approx([0.85, 0.65, 0.45, 0.25, 0.05, 0, 0, 0])
    assert rows(whole)[-1]["val/loss"] != rows(plain)[-1]["val/loss"]
    assert killed_at(11, tmp_path / "killed", *options) == -9
    assert_same_bits(run(tmp_path / "killed", *options), whole)


def test_nothing_to_change_is_refused() -> None:
    no_dropout = tuple(override for override in TINY if "dropout" not in override)
    message = r"every dropout rate of the model is 0; set one, such as model.dropout=0.1"
    with pytest.raises(UserError, match=message):
        DropoutSchedule().on_run_start(state_of(nn.Dropout(0.0), 0))
    [issue] = check(compose([*no_dropout, "callbacks=dropout_schedule"]))
    assert issue.key == "callbacks.dropout_schedule"
    assert re.search(message, str(issue))
    assert check(compose([*no_dropout, "callbacks=dropout_schedule", "block.drop_path=0.1"])) == []


def test_what_would_compile_at_each_step_is_refused() -> None:
    message = r"shape=linear with trainer.compile=true"
    with pytest.raises(UserError, match=message):
        DropoutSchedule().on_run_start(state_of(nn.Dropout(0.1), 0, compiled=True))
    [issue] = check(compose([*TINY, "callbacks=dropout_schedule", "model.dropout=0.1", "trainer.compile=true"]))
    assert re.search(message, str(issue))
    with pytest.raises(ValueError, match=r"begin=5 comes after until=3"):
        DropoutSchedule(begin=5, until=3)


def test_an_average_of_sharded_weights_is_refused_by_the_check() -> None:
    [issue] = check(compose([*TINY, "callbacks=ema", "trainer.strategy=fsdp", "trainer.devices=2"]))
    assert str(issue).startswith("callbacks.ema: trainer.strategy=fsdp leaves no process all the weights")
