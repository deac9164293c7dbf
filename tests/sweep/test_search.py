"""A search tries the same number of settings for every arm and knows what became of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import write_yaml
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.status import Status, write_status
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.plan.target_metric import validation_metric
from blockyard.sweep.search import search_runner
from tests.support.every import every
from tests.sweep.search_runs import ARMS, PRUNED, Fake, peak, plan, states, trials


def test_the_best_setting_of_each_arm_becomes_its_cells(tmp_path: Path) -> None:
    executor, lines = Fake(), []
    finished = search_runner.run_search(plan(tmp_path), executor, say=lines.append)
    assert states(finished, "pre") == states(finished, "post") == ["COMPLETE"] * 6
    assert len(executor.tasks) == 12
    for arm in ("pre", "post"):
        best = max(trials(finished, arm), key=lambda trial: trial.value)
        (variant,) = [v for v in finished.variants.values() if v.arm == arm]
        assert variant.setting == best.user_attrs["setting"]
        assert variant.config["optimizer"]["lr"] == variant.setting["optimizer.lr"]
        cells = [cell for cell in finished.cells if cell.variant == variant.key]
        assert [cell.seed for cell in cells] == [0, 1]
        assert cells[0].run == best.user_attrs["run"]  # the first seed is already done
        assert RunFolder.open(finished.path(cells[0])).finished
        assert finished.facts["search"]["arms"][arm]["chosen"] == variant.key
        assert len(finished.facts["search"]["arms"][arm]["trials"]) == 6
    assert SweepPlan.load(finished.folder).cells == finished.cells
    assert sum("6 of 6 ended" in line for line in lines) == 2
    assert finished.facts["search"]["metric"] == "val/accuracy"


@pytest.mark.full
def test_random_tries_the_same_settings_for_every_arm_and_repeats_none_after_a_restart(tmp_path: Path) -> None:
    def settings(result: SweepPlan, arm: str) -> list[Any]:
        return [trial.user_attrs["setting"] for trial in trials(result, arm)]

    short = search_runner.run_search(plan(tmp_path, sampler="random", trials=3), Fake())
    longer = search_runner.run_search(plan(tmp_path, sampler="random", trials=6), Fake())
    assert settings(longer, "pre") == settings(longer, "post")
    assert settings(longer, "pre")[:3] == settings(short, "pre")[:3]
    assert len({str(setting) for setting in settings(longer, "pre")}) == 6
    again = Fake()
    search_runner.run_search(plan(tmp_path, sampler="random", trials=6), again)
    assert again.tasks == []


@pytest.mark.full
def test_tpe_learns_from_what_it_has_seen(tmp_path: Path) -> None:
    wide = {"optimizer.lr": {"low": 1e-6, "high": 1.0, "log": True}}
    for sampler in ("tpe", "random"):
        sweep_plan = plan(tmp_path / sampler, trials=40, arms=ARMS[:1], space=wide, sampler=sampler)
        finished = search_runner.run_search(sweep_plan, Fake(capacity=1))
        values = [trial.value for trial in trials(finished, "pre")]
        better = sum(values[20:]) / 20 > sum(values[:10]) / 10 + 0.04
        assert better == (sampler == "tpe")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ((1, "NotFinite: the loss is nan at step 3"), "the loss is nan at step 3"),
        (float("nan"), "val/accuracy is not a finite number"),
        (float("inf"), "val/accuracy is not a finite number"),
        ((2, "trainer.require_flash=true"), "require_flash"),
        ((-9, "killed by SIGKILL (out of memory?)"), "out of memory"),
    ],
)
@pytest.mark.sampled(100)
def test_a_run_that_fails_is_a_failed_trial_and_the_search_goes_on(tmp_path: Path, outcome: Any, reason: str) -> None:
    def score(config: dict[str, Any]) -> Any:
        return outcome if config["optimizer"]["lr"] > 0.003 else peak(config)

    executor = Fake(score)
    finished = search_runner.run_search(plan(tmp_path, sampler="random", trials=6, arms=ARMS[:1]), executor)
    assert set(states(finished, "pre")) == {"FAIL", "COMPLETE"}
    failed = [trial for trial in trials(finished, "pre") if trial.state.name == "FAIL"]
    assert every(reason in trial.user_attrs["reason"] and "run" in trial.user_attrs for trial in failed)
    assert finished.cells
    killed = isinstance(outcome, tuple) and outcome[0] < 0
    assert len(executor.tasks) == 6 + (len(failed) if killed else 0)  # a killed process gets a second chance
    assert sum(task.retry for task in executor.tasks) == (len(failed) if killed else 0)


def test_a_run_that_the_executor_lost_is_made_once_more(tmp_path: Path) -> None:
    class Losing(Fake):
        def end(self, task: Task) -> Outcome:
            path = Path(task.config["outputs"]) / task.key
            if path.exists():
                return super().end(task)
            write_status(path, Status("interrupted", "Ray lost the cell"))
            write_yaml(path / "config.yaml", task.config)
            return Outcome(task.key, 1, "Ray lost the cell")

    executor = Losing()
    finished = search_runner.run_search(plan(tmp_path, sampler="random", trials=3, arms=ARMS[:1]), executor)
    assert states(finished, "pre") == ["COMPLETE"] * 3
    assert len(executor.tasks) == 6


@pytest.mark.full
def test_an_arm_of_which_every_trial_fails_is_refused_with_the_reasons(tmp_path: Path) -> None:
    def score(config: dict[str, Any]) -> Any:
        return (1, "no luck") if "PostNorm" in config["block"]["_target_"] else peak(config)

    finished = search_runner.run_search(plan(tmp_path, trials=2), Fake(score))
    assert {finished.variants[cell.variant].arm for cell in finished.cells} == {"pre"}
    (refused,) = finished.refused
    assert refused.arm == "post"
    assert "no luck" in str(refused.reasons)


@pytest.mark.full
def test_what_check_refuses_is_a_failed_trial_with_the_reason_and_no_run(tmp_path: Path) -> None:
    executor = Fake()
    space = {"model.heads": [2, 3], "token_mixer.dropout": {"low": 0.0, "high": 0.5}}
    finished = search_runner.run_search(
        plan(tmp_path, sampler="random", trials=8, space=space, arms=ARMS[:1]), executor
    )
    refused = [trial for trial in trials(finished, "pre") if trial.params["model.heads"] == 3]
    assert refused
    assert every(trial.state.name == "FAIL" for trial in refused)
    assert every("does not divide" in trial.user_attrs["reason"] for trial in refused)
    assert len(executor.tasks) == 8 - len(refused)


@pytest.mark.full
def test_a_space_of_choices_ints_steps_and_families(tmp_path: Path) -> None:
    space = {
        "norm": ["layer", "rms"],
        "model.depth": {"low": 1, "high": 4, "int": True},
        "token_mixer.dropout": {"low": 0.0, "high": 0.3, "step": 0.1},
        "optimizer.betas": [[0.9, 0.95], [0.9, 0.999]],
        "trainer.gradient_clip": [None, 1.0],
    }
    finished = search_runner.run_search(
        plan(tmp_path, sampler="random", trials=12, space=space, arms=ARMS[:1]), executor := Fake()
    )
    assert len({task.key for task in executor.tasks}) == len(executor.tasks)
    configs = [task.config for task in executor.tasks]
    assert {config["norm"]["_target_"].rsplit(".", 1)[-1] for config in configs} == {"Layer", "RMS"}
    assert {config["model"]["depth"] for config in configs} <= {1, 2, 3, 4}
    assert {config["token_mixer"]["dropout"] for config in configs} <= {0.0, 0.1, 0.2, 0.3}
    assert [0.9, 0.95] in [config["optimizer"]["betas"] for config in configs]
    assert {config["trainer"]["gradient_clip"] for config in configs} == {None, 1.0}
    assert {task.choices["norm"] for task in executor.tasks} == {"layer", "rms"}
    assert set(states(finished, "pre")) == {"COMPLETE"}


@pytest.mark.full
def test_the_same_setting_again_counts_and_is_not_run_again(tmp_path: Path) -> None:
    space = {"optimizer.lr": [1e-3, 1e-2]}
    finished = search_runner.run_search(
        plan(tmp_path, sampler="random", trials=7, space=space, arms=ARMS[:1]), executor := Fake()
    )
    assert len(executor.tasks) == 2
    assert states(finished, "pre") == ["COMPLETE"] * 7
    assert len({trial.value for trial in trials(finished, "pre")}) == 2


@pytest.mark.full
def test_a_pruned_trial_is_no_candidate(tmp_path: Path) -> None:
    def score(config: dict[str, Any]) -> Any:
        return PRUNED if config["optimizer"]["lr"] < 0.005 else peak(config)

    finished = search_runner.run_search(plan(tmp_path, sampler="random", trials=8, arms=ARMS[:1]), Fake(score))
    assert set(states(finished, "pre")) == {"PRUNED", "COMPLETE"}
    (variant,) = finished.variants.values()
    assert variant.setting["optimizer.lr"] >= 0.005
    pruned = [t for t in finished.facts["search"]["arms"]["pre"]["trials"] if t["state"] == "pruned"]
    assert every("pruned at step 8" in trial["reason"] for trial in pruned)


@pytest.mark.full
def test_a_metric_that_falls_is_minimised_and_one_that_is_not_measured_refused(tmp_path: Path) -> None:
    finished = search_runner.run_search(plan(tmp_path, metric="test/loss", arms=ARMS[:1]), Fake())
    (variant,) = finished.variants.values()
    best = min(trials(finished, "pre"), key=lambda trial: trial.value)
    assert variant.setting == best.user_attrs["setting"]
    assert finished.facts["search"]["metric"] == "val/loss"
    with pytest.raises(UserError, match=r"test/parameters is not measured on validation.*test/accuracy"):
        search_runner.run_search(plan(tmp_path, metric="test/parameters"), Fake())


def test_a_metric_at_longer_rows_is_known_where_the_base_asks_for_them() -> None:
    objective = {"_target_": "blockyard.objective.next_token.NextToken"}
    tokenizer = {"_target_": "blockyard.tokenizer.byte.Byte"}
    task = {"objective": objective, "tokenizer": tokenizer, "data": {"_target_": "blockyard.data.code.Code"}}
    config = task | {"trainer": {"extrapolate": [2, 4]}}
    assert validation_metric("test/loss@4x", config, []) == ("val/loss@4x", "min")
    assert validation_metric("test/accuracy@1x", config, []) == ("val/accuracy@1x", "max")
    with pytest.raises(UserError, match=r"test/loss@3x is not measured.*test/loss@1x, test/loss@2x, test/loss@4x"):
        validation_metric("test/loss@3x", config, [])
    with pytest.raises(UserError, match=r"base: \[trainer.extrapolate=\[2,4\]\] evaluates longer sequences"):
        validation_metric("test/loss@4x", task, [])


def test_without_a_search_the_plan_stays_as_it_is(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path)
    sweep_plan = replace(sweep_plan, question=sweep_plan.question | {"search": None})
    assert search_runner.run_search(sweep_plan, Fake()) is sweep_plan
    assert not list(tmp_path.iterdir())


def noisy(config: dict[str, Any]) -> float:
    """A score whose best setting on seed 0 is not the best one of the mean: rates above 0.02 only please seed 0."""
    rate = config["optimizer"]["lr"]
    return peak(config) + (0.5 if config["seed"] == 0 else -0.5) * (rate > 0.02)


@pytest.mark.full
def test_a_setting_is_tried_on_several_seeds_and_chosen_by_the_mean(tmp_path: Path) -> None:
    several = plan(tmp_path, trials=8, sampler="random", seeds=4)
    several.search["seeds"] = 3
    executor = Fake(noisy)
    finished = search_runner.run_search(several, executor)
    assert len(executor.tasks) == 2 * 8 * 3
    assert sum(task.trial["prunes"] for task in executor.tasks if task.trial) == 16
    for arm in ("pre", "post"):
        (variant,) = [v for v in finished.variants.values() if v.arm == arm]
        assert variant.setting["optimizer.lr"] <= 0.02
        tried = [trial for trial in trials(finished, arm) if trial.user_attrs["setting"]["optimizer.lr"] > 0.02]
        assert tried, "a rate that seed 0 alone likes"
        for trial in trials(finished, arm):
            values = trial.user_attrs["values"]
            assert set(values) == {"0", "1", "2"}
            assert trial.value == pytest.approx(sum(values.values()) / 3)
        assert [cell.seed for cell in finished.cells if cell.variant == variant.key] == [0, 1, 2, 3]
    again = Fake(noisy)
    search_runner.run_search(several, again)
    assert again.tasks == []


@pytest.mark.full
def test_a_search_on_several_seeds_goes_on_within_a_trial(tmp_path: Path) -> None:
    """What a killed process left: some seeds of a trial have ended, or all, without a value of the trial."""
    several = plan(tmp_path, trials=4, sampler="random", seeds=3, arms=ARMS[:1])
    several.search["seeds"] = 2
    first = Fake(capacity=1)
    search_runner.run_search(several, first, stopped=lambda: len(first.tasks) >= 4)
    done = len(first.tasks) - len(first.waiting)
    second = Fake(capacity=1)
    finished = search_runner.run_search(several, second)
    assert states(finished, "pre") == ["COMPLETE"] * 4
    assert done + len(second.tasks) == 8


@pytest.mark.full
def test_a_seed_that_fails_fails_the_trial(tmp_path: Path) -> None:
    several = plan(tmp_path, trials=3, sampler="random", seeds=2, arms=ARMS[:1])
    several.search["seeds"] = 2
    finished = search_runner.run_search(
        several, Fake(lambda config: peak(config) if config["seed"] == 0 else (1, "the loss is nan"))
    )
    assert states(finished, "pre") == ["FAIL"] * 3
    assert finished.cells == ()


@pytest.mark.full
def test_a_key_that_only_one_arm_has(tmp_path: Path) -> None:
    own = {"pre": {"block.dropout": [0.0, 0.1, 0.2]}}
    conditional = plan(tmp_path, trials=6, sampler="random")
    conditional.search["only"] = own
    executor = Fake()
    finished = search_runner.run_search(conditional, executor)
    assert len(executor.tasks) == 12
    keys = {arm: {tuple(t.user_attrs["setting"]) for t in trials(finished, arm)} for arm in ("pre", "post")}
    assert keys == {"pre": {("optimizer.lr", "block.dropout")}, "post": {("optimizer.lr",)}}
    tried = {t.user_attrs["setting"]["block.dropout"] for t in trials(finished, "pre")}
    assert len(tried) > 1
