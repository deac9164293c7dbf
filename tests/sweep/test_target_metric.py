"""Metrics that a sweep may be judged by: those of the classes of texts, and of the slices of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockyard.config.untrusted.targets import locate
from blockyard.contracts import any_split
from blockyard.errors import UserError
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.target_metric import validation_metric
from tests.support.paths import CONF
from tests.support.tiny import VIT, configured
from tests.sweep.spec_plans import plan_from, refusals

TOPICS = ("data=code_topics", "tokenizer=byte", "head=mean_pool", "objective=classify")


def test_the_metric_of_a_slice_stands_for_itself() -> None:
    config = configured(*TOPICS)[0]
    assert validation_metric("test/accuracy@head", config, []) == ("val/accuracy@head", "max")
    assert validation_metric("test/macro_f1", config, []) == ("val/macro_f1", "max")
    assert validation_metric(None, config, []) == ("val/accuracy", "max")


@pytest.mark.parametrize("metric", ["test/accuracy@nose", "test/loss@head", "test/auroc"])
def test_what_is_not_measured_is_refused_with_what_is(metric: str) -> None:
    with pytest.raises(UserError, match=r"available: .*test/macro_f1.*test/accuracy@head, test/accuracy@body"):
        validation_metric(metric, configured(*TOPICS)[0], [])


def test_scores_of_what_is_written_need_runs_that_write() -> None:
    """Runs are watched by the objective's own metric: what a run writes is scored at its end."""
    pairs = ("experiment=translate_dates",)
    config = configured(*pairs, "trainer.write=true")[0]
    assert validation_metric("test/written_cer", config, []) == ("val/loss", "min")
    assert validation_metric("test/written_bleu", config, []) == ("val/loss", "max")
    with pytest.raises(UserError, match=r"base: \[trainer.write=true\] generates them"):
        validation_metric("test/written_cer", configured(*pairs)[0], [])
    for metric in ("val/written_cer", "test/written_rouge"):
        with pytest.raises(UserError, match=r"available: test/written_exact, .*test/written_cer"):
            validation_metric(metric, config, [])


def test_numbers_from_inside_a_model_need_runs_that_measure_them() -> None:
    config = configured("data=digits", "trainer.inspect=[outliers]")[0]
    assert validation_metric("test/inspect_outliers", config, []) == ("val/accuracy", "min")
    with pytest.raises(UserError, match=r"base: \[trainer.inspect=\[asked\]\]"):
        validation_metric("test/inspect_asked", config, [])
    for metric in ("val/inspect_outliers", "test/inspect_norm"):
        with pytest.raises(UserError, match="available: test/inspect_outliers, test/inspect_asked"):
            validation_metric(metric, config, [])


def test_no_trial_is_pruned_by_what_is_measured_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "longer.yaml"
    text = (
        "claim: x\nbase: [experiment=gpt_code_small, 'trainer.extrapolate=[2]']\nmetric: test/loss@2x\n"
        "arms: {a: [norm=rms], b: [norm=layer]}\n"
        "search: {trials: 2, pruner: PRUNER, space: {optimizer.lr: {low: 1e-4, high: 1e-2}}}\n"
    )
    file.write_text(text.replace("PRUNER", "median"))
    with pytest.raises(UserError, match="val/loss@2x is measured at the end of a run; use pruner: none"):
        make_plan(file, outputs=str(tmp_path))
    file.write_text(text.replace("PRUNER", "none"))
    assert make_plan(file, outputs=str(tmp_path)).facts["metric"]["validation"] == "val/loss@2x"


def test_images_have_neither() -> None:
    config = configured("data=digits")[0]
    for metric in ("test/macro_f1", "test/accuracy@head"):
        with pytest.raises(UserError, match="is not measured on validation and test"):
            validation_metric(metric, config, [])


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "objective").glob("*.yaml")))
def test_an_objective_names_its_metrics_before_a_model_is_built(name: str) -> None:
    """A plan of a sweep asks for them."""
    objective = locate(yaml.safe_load((CONF / "objective" / f"{name}.yaml").read_text())["_target_"])()
    assert objective.best()[0] in objective.metrics(any_split(class_counts=None, units=(), bytes_per_token=1.0))


def test_the_mean_of_the_last_evaluations_has_the_direction_of_one() -> None:
    config = configured(*TOPICS)[0]
    assert validation_metric("val/loss@last5", config, []) == ("val/loss@last5", "min")
    assert validation_metric("val/accuracy@last12", config, []) == ("val/accuracy@last12", "max")
    with pytest.raises(UserError, match="test data is evaluated once, at the end; write val/loss@last5"):
        validation_metric("test/loss@last5", config, [])
    with pytest.raises(UserError, match="val/auroc is not measured on validation and test"):
        validation_metric("val/auroc@last5", config, [])


BASE = f"base: [{', '.join(VIT)}, trainer.max_steps=40, trainer.eval_every=10]"
OF_LAST = f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}\nmetric: val/loss@last4\n"


def test_an_arm_with_too_few_evaluations_is_refused(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, OF_LAST.replace("b: [norm=rms]", "b: [trainer.max_steps=31], c: [trainer.max_steps=30]"))
    assert plan.facts["metric"]["name"] == "val/loss@last4"
    (refused,) = plan.refused
    assert refused.arm == "c"
    assert refused.reasons[0].startswith("metric: val/loss@last4 is the mean of 4 evaluations, and a run has 3;")
    (problem,) = refusals(tmp_path, OF_LAST, "trainer.eval_every=20")
    assert "baseline a: metric: val/loss@last4 is the mean of 4 evaluations, and a run has 2" in problem
    # One evaluation an epoch, of as many steps as the trainer is cut to.
    epochs = ("trainer.max_steps=null", "trainer.eval_every=null", "trainer.limit_train=5")
    assert not plan_from(tmp_path, OF_LAST, *epochs, "trainer.max_epochs=4").refused
    assert "and a run has 3" in refusals(tmp_path, OF_LAST, *epochs, "trainer.max_epochs=3")[0]


def test_settings_are_chosen_by_it_and_judged_by_a_metric_on_test(tmp_path: Path) -> None:
    tuned = OF_LAST + "tune: {optimizer.lr: [1e-3, 3e-3]}\n"
    assert "chooses the settings, so it cannot judge them too; report test/loss" in refusals(tmp_path, tuned)[0]
    metric = plan_from(tmp_path, tuned.replace("metric: val", "tune_by: val")).facts["metric"]
    assert metric == {
        "name": "test/accuracy",
        "validation": "val/loss@last4",
        "direction": "max",
        "validation_direction": "min",
    }
    assert "tune_by: has no effect without tune" in refusals(tmp_path, OF_LAST + "tune_by: val/loss\n")[0]


def test_an_end_that_only_a_whole_run_has_stops_nothing_early(tmp_path: Path) -> None:
    steps_to = OF_LAST.replace("metric: val/loss@last4", "steps_to: val/loss@last4 <= 2")
    assert "is known at the end of a run alone; write val/loss" in refusals(tmp_path, steps_to)[0]
    success = plan_from(tmp_path, OF_LAST.replace("metric: val/loss@last4", "success: val/loss@last4 <= 2"))
    assert success.facts["metric"]["validation"] == "val/loss@last4"
    assert success.metric_names == ("success(val/loss@last4 <= 2)", "val/loss@last4")
