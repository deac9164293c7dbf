"""Cells that share a process: which ones do, and what becomes of them."""

from __future__ import annotations

import os
import signal
from collections import deque

import pytest

from blockyard.atomic_files import read_json
from blockyard.config.size_matching import ModelSizes
from blockyard.errors import UserError
from blockyard.runs.metrics import read_metrics
from blockyard.runs.status import read_status
from blockyard.sweep.cell.execute import STACKED
from blockyard.sweep.cells import Task
from blockyard.sweep.executor import build
from blockyard.sweep.executor.local import LocalExecutor, large_step, obstacle, together
from tests.support.tiny import configured
from tests.sweep.executor_tasks import read_lock, task_of, until_ended
from tests.sweep.sweep_runs import plan, wait_for

pytestmark = pytest.mark.xdist_group("sweep_executors")

STACKABLE = ("token_mixer.dropout=0", "optimizer=adamw")
CONFIG = {
    "data": {"batch_size": 4},
    "model": {"dim": 8, "dropout": 0.0, "init_std": None},
    "trainer": {"devices": 1, "num_workers": 0, "precision": 32},
    "optimizer": {"lr": 0.1},
    "seed": 0,
}


def task(key: str, **changes: object) -> Task:
    """A task of a config in which these values are changed, by key with two underscores for a point."""
    config = {family: dict(value) if isinstance(value, dict) else value for family, value in CONFIG.items()}
    for name, value in changes.items():
        family, _, option = name.partition("__")
        config[family] = {**config[family], option: value} if option else value
    return Task(key, config)


def test_cells_of_one_form_share_a_process() -> None:
    queue = deque(
        [
            task("a"),
            task("wide", model__dim=16),
            task("b", seed=1, optimizer__lr=0.2),
            task("c", seed=2, model__init_std=0.1),
            task("d", seed=3),
        ]
    )
    chosen, reason = together(queue, 3)
    assert [each.key for each in chosen] == ["a", "b", "c"]
    assert reason is None
    assert [each.key for each in queue] == ["wide", "d"]
    chosen, reason = together(queue, 3)
    assert [each.key for each in chosen] == ["wide"]
    assert reason == "no other cell of its form was waiting"
    assert together(queue, 1) == ([task("d", seed=3)], None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"trainer__devices": 2}, "trainer.devices=2"),
        ({"trainer__num_workers": 4}, "trainer.num_workers=4"),
        ({"trainer__compile": True}, "trainer.compile=True"),
        ({"trainer__precision": "16-mixed"}, "trainer.precision=16-mixed"),
        ({"model__dropout": 0.1}, "model.dropout=0.1"),
        ({"block": {"drop_path": 0.2}}, "block.drop_path=0.2"),
        ({"objective": {"teacher": "run"}}, "objective.teacher"),
    ],
)
def test_an_obstacle_is_named(change: dict[str, object], says: str) -> None:
    assert obstacle(task("a").config) is None
    assert says in str(obstacle(task("a", **change).config))
    queue = deque([task("a", **change), task("b", seed=1, **change)])
    chosen, reason = together(queue, 2)
    assert [each.key for each in chosen] == ["a"]
    assert says in str(reason)


def test_auto_leaves_large_steps_alone() -> None:
    sizes = ModelSizes()
    small, _ = configured("experiment=gpt_code_small", "model.dim=16", "model.heads=2", "data.batch_size=1")
    large, _ = configured("experiment=gpt_code_small")
    assert large_step(small, sizes, gpu=False) is None
    assert "is too large to gain" in str(large_step(large, sizes, gpu=False))
    assert large_step(large, sizes, gpu=True) is None
    assert "not known" in str(large_step({**small, "model": {}}, sizes, gpu=False))
    queue = deque([task("a"), task("b", seed=1)])
    assert together(queue, 2, lambda _: "no gain") == ([task("a")], "no gain")


def test_auto_is_an_option_of_the_executor() -> None:
    assert LocalExecutor(workers=2, gpus=None, cells_per_process="auto").capacity == 16
    assert build("local", {"cells_per_process": "auto", "gpus": None}, 1).capacity == 8
    with pytest.raises(UserError, match="cells_per_process"):
        build("local", {"cells_per_process": 0})


def test_shipped_defaults_have_no_obstacle() -> None:
    config, _ = configured("experiment=gpt_code_small")
    assert obstacle(config) is None


@pytest.fixture
def pool():
    """A process of up to four cells at a time."""
    executor = LocalExecutor(workers=1, gpus=None, threads=1, cells_per_process=4)
    with executor:
        yield executor


def logged(path):
    """Whether a run has taken steps."""
    return bool(read_metrics(path / "metrics.csv"))


def submit(pool, sweep_plan, *indices, **changes):
    for index in indices:
        pool.submit(task_of(sweep_plan, index, **changes))


def test_the_seeds_of_an_arm_train_together(pool, tmp_path):
    sweep_plan = plan(tmp_path, *STACKABLE, seeds=(0, 1, 2))
    assert (pool.capacity, pool.parallel) == (4, 1)
    submit(pool, sweep_plan, *range(6))
    outcomes = until_ended(pool, 6)
    assert {outcome.code for outcome in outcomes.values()} == {0}
    for cell in sweep_plan.cells:
        path = sweep_plan.path(cell)
        assert read_json(path / "run.json")[STACKED] == {"together": 3, "alone": 0}
        assert read_metrics(path / "metrics.csv")[-1]["step"] == 3
        assert (path / "log.txt").is_file()


@pytest.mark.full
def test_cells_with_an_obstacle_have_processes_of_their_own(pool, tmp_path):
    sweep_plan = plan(tmp_path, arms={"dropout": ["token_mixer.dropout=0.1"]})
    submit(pool, sweep_plan, 0, 1)
    assert {outcome.code for outcome in until_ended(pool, 2).values()} == {0}
    for cell in sweep_plan.cells:
        facts = read_json(sweep_plan.path(cell) / "run.json")[STACKED]
        assert "token_mixer.dropout=0.1" in facts["reason"]


@pytest.mark.full
def test_a_killed_process_loses_its_cells_only(pool, tmp_path):
    long = ("trainer.max_steps=100000", "trainer.max_epochs=null")
    sweep_plan = plan(tmp_path, *STACKABLE, *long, arms={"a": []})
    submit(pool, sweep_plan, 0, 1)
    paths = [sweep_plan.path(cell) for cell in sweep_plan.cells]
    wait_for(lambda: pool.poll(0.1) or all(logged(path) for path in paths))
    pids = {read_lock(path)["pid"] for path in paths}
    assert len(pids) == 1
    os.kill(pids.pop(), signal.SIGKILL)
    outcomes = until_ended(pool, 2)
    assert {outcome.code for outcome in outcomes.values()} == {-9}
    assert {read_status(path).state for path in paths} == {"interrupted"}


@pytest.mark.full
def test_cells_beyond_their_time_save_and_have_failed(tmp_path, monkeypatch):
    long = ("trainer.max_steps=100000", "trainer.max_epochs=null")
    sweep_plan = plan(tmp_path, *STACKABLE, *long, arms={"a": []})
    paths = [sweep_plan.path(cell) for cell in sweep_plan.cells]
    executor = LocalExecutor(workers=1, gpus=None, threads=1, cells_per_process=2, timeout_min=60)
    with executor as pool:
        submit(pool, sweep_plan, 0, 1)
        wait_for(lambda: pool.poll(0.1) or all(logged(path) for path in paths))
        monkeypatch.setattr(pool, "_timeout_min", 1e-6)
        outcomes = until_ended(pool, 2)
    assert {outcome.code for outcome in outcomes.values()} == {1}
    for path in paths:
        assert read_status(path).state == "failed"
        assert (path / "checkpoints" / "last.ckpt").is_file()
