"""Trials that failed are tried again on request, in their place; and how many trials are open at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from blockyard.sweep.cell import trial_store
from blockyard.sweep.executor import build
from blockyard.sweep.plan import history
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import search_runner
from blockyard.sweep.search.trial_config import arm_template
from tests.support.every import every
from tests.sweep.search_runs import ARMS, Fake, peak, plan


def _trials(sweep_plan: SweepPlan, arm: str) -> list[dict[str, Any]]:
    return sweep_plan.facts["search"]["arms"][arm]["trials"]


def _settings(sweep_plan: SweepPlan, arm: str) -> list[Any]:
    return [trial["setting"] for trial in _trials(sweep_plan, arm)]


def _states(sweep_plan: SweepPlan, arm: str) -> list[str]:
    return [trial["state"] for trial in _trials(sweep_plan, arm)]


def _ill(config: dict[str, Any]) -> Any:
    """Of the first arm the high rates fail."""
    ill = "PreNorm" in config["block"]["_target_"] and config["optimizer"]["lr"] > 0.003
    return (1, "no memory today") if ill else peak(config)


@pytest.mark.full
def test_failed_trials_are_tried_again_in_their_place(tmp_path: Path) -> None:
    lines: list[str] = []
    sweep_plan = plan(tmp_path, sampler="random", trials=6)
    first = search_runner.run_search(sweep_plan, Fake(_ill), say=lines.append)
    failed = _states(first, "pre").count("fail")
    assert 0 < failed < 6
    assert f"pre: {failed} of 6 trials failed; --retry tries them again" in lines

    search_runner.run_search(sweep_plan, quiet := Fake())
    assert quiet.tasks == []  # only --retry reaches them

    again = search_runner.run_search(sweep_plan, executor := Fake(), retry=True)
    assert len(executor.tasks) == failed
    assert every(task.retry for task in executor.tasks)
    assert _states(again, "pre") == ["complete"] * 6
    assert _settings(again, "pre") == _settings(first, "pre")
    rates = {trial["number"]: trial["value"] for trial in _trials(again, "pre")}
    (chosen,) = [v for v in again.variants.values() if v.arm == "pre"]
    assert chosen.key == f"pre#{max(rates, key=lambda number: rates[number])}"
    assert chosen.config["optimizer"]["lr"] > 0.003  # one that had failed

    search_runner.run_search(sweep_plan, quiet := Fake(), retry=True)
    assert quiet.tasks == []  # nothing is left to try again

    more = search_runner.run_search(plan(tmp_path, sampler="random", trials=9), Fake())
    assert _settings(more, "pre") == _settings(more, "post")  # attempts shift nobody's settings
    assert _settings(more, "pre")[:6] == _settings(first, "pre")


def test_what_fails_again_stays_failed_and_can_be_tried_once_more(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, sampler="random", trials=4, arms=ARMS[:1])
    first = search_runner.run_search(sweep_plan, Fake(_ill))
    failed = _states(first, "pre").count("fail")
    for _ in range(2):
        finished = search_runner.run_search(sweep_plan, executor := Fake(_ill), retry=True)
        assert len(executor.tasks) == failed
        assert _states(finished, "pre") == _states(first, "pre")
    finished = search_runner.run_search(sweep_plan, Fake(), retry=True)
    assert _states(finished, "pre") == ["complete"] * 4


@pytest.mark.full
def test_a_copy_of_a_failed_trial_follows_its_second_attempt(tmp_path: Path) -> None:
    space = {"optimizer.lr": [1e-3, 1e-2]}
    sweep_plan = plan(tmp_path, sampler="random", trials=6, space=space, arms=ARMS[:1])
    first = search_runner.run_search(sweep_plan, Fake(_ill))
    assert _states(first, "pre").count("fail") > 1  # one, and copies of it
    finished = search_runner.run_search(sweep_plan, executor := Fake(), retry=True)
    assert len(executor.tasks) == 1
    assert _states(finished, "pre") == ["complete"] * 6


@pytest.mark.full
def test_an_attempt_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, sampler="random", trials=4, arms=ARMS[:1])
    search_runner.run_search(sweep_plan, Fake(_ill))

    class Dies(Fake):
        def poll(self, seconds: float) -> list[Any]:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        search_runner.run_search(sweep_plan, Dies(), retry=True)
    finished = search_runner.run_search(sweep_plan, executor := Fake())  # without --retry: they are open already
    assert executor.tasks
    assert every(task.retry for task in executor.tasks)
    assert _states(finished, "pre") == ["complete"] * 4


@pytest.mark.full
def test_no_more_trials_are_open_than_run_together(tmp_path: Path) -> None:
    class Queue(Fake):
        most = 0

        @property
        def parallel(self) -> int | None:
            return None

        def poll(self, seconds: float) -> list[Any]:
            self.most = max(self.most, len(self.waiting))
            return super().poll(seconds)

    learns = {"sampler": "tpe", "pruner": "none"}
    assert search_runner.parallel_trials(Queue(capacity=10_000), learns) == search_runner.DEFAULT_PARALLEL
    assert (
        search_runner.parallel_trials(Queue(capacity=10_000), {"sampler": "random", "pruner": "median"})
        == search_runner.DEFAULT_PARALLEL
    )
    assert search_runner.parallel_trials(Queue(capacity=10_000), {"sampler": "random", "pruner": "none"}) == 10_000
    assert search_runner.parallel_trials(Fake(capacity=3), learns) == 3
    search_runner.run_search(plan(tmp_path, trials=6), executor := Queue(capacity=10_000))
    assert executor.most == search_runner.DEFAULT_PARALLEL


def test_slurm_says_how_many_run_together_where_it_is_told() -> None:
    pytest.importorskip("submitit")
    learns = {"sampler": "tpe", "pruner": "median"}
    assert search_runner.parallel_trials(build("slurm", {}), learns) == search_runner.DEFAULT_PARALLEL
    assert search_runner.parallel_trials(build("slurm", {"workers": 20}), learns) == 20
    assert build("slurm", {}).parallel is None
    assert build("slurm", {"setup": ["module load cuda"], "sbatch": ["nice=5"]}).parallel is None


@pytest.mark.full
def test_trials_may_run_where_the_gpus_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sweep_plan = plan(tmp_path, arms=ARMS[:1])
    variant = sweep_plan.variants["pre"]
    variant.config["trainer"]["accelerator"] = "gpu"
    try:
        for elsewhere, refused in ((False, True), (True, False)):
            finished = arm_template(sweep_plan, "pre", CellComposer(elsewhere=elsewhere))
            assert finished is not None
            assert bool(finished.config({"optimizer.lr": 0.01}, 0)[2]) is refused
        finished = search_runner.run_search(sweep_plan, executor := Fake(), elsewhere=True)
        assert len(executor.tasks) == 6
        assert {task.config["trainer"]["accelerator"] for task in executor.tasks} == {"gpu"}
        assert finished.cells
    finally:
        variant.config["trainer"]["accelerator"] = "cpu"  # configs are shared between tests


def test_an_old_plan_stays_until_a_search_has_its_cells(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, sampler="random", trials=2, arms=ARMS[:1])
    assert history.store_plan(sweep_plan).messages == []
    assert SweepPlan.load(sweep_plan.folder).cells == ()
    first = search_runner.run_search(sweep_plan, Fake())
    assert history.store_plan(sweep_plan).messages == []  # the same command again
    assert SweepPlan.load(sweep_plan.folder).cells == first.cells
    more = plan(tmp_path, sampler="random", trials=4, arms=ARMS[:1])
    (message,) = history.store_plan(more).messages
    assert "changed keys: search; the old plan stays until the search has ended" in message
    assert SweepPlan.load(sweep_plan.folder).cells == first.cells
    lines: list[str] = []
    finished = search_runner.run_search(more, Fake(), say=lines.append)
    assert any("the old plan is kept as plan-" in line for line in lines)
    assert SweepPlan.load(sweep_plan.folder).question["search"]["trials"] == 4
    assert SweepPlan.load(sweep_plan.folder).cells == finished.cells


def test_tpe_draws_four_at_random_and_learns_from_then_on() -> None:
    study = optuna.create_study(sampler=trial_store.make_sampler("tpe", 0))
    space = trial_store.distributions({"x": {"low": 0.0, "high": 1.0}})
    for number in range(4):
        study.add_trial(optuna.trial.create_trial(params={"x": 0.1 * number}, distributions=space, value=0.1 * number))
        fourth = number < 3  # three are done, and the fourth is drawn
        drawn = []
        for sampler in ("tpe", "random"):
            other = optuna.create_study(sampler=trial_store.make_sampler(sampler, 4))
            other.add_trials(study.trials)
            drawn.append(other.ask(fixed_distributions=space).params["x"])
        assert (drawn[0] == drawn[1]) == fourth
