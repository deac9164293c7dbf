"""The key `ladder`: every arm at every rung, with the width and the steps of its rung."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from blockyard.commands.sweep import SweepOptions
from blockyard.config.build import Components
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.sweep.execution import tables
from blockyard.sweep.execution.estimate import FinishedRuns, RunSizes
from blockyard.sweep.execution.tables import PlanStatus, print_plan
from blockyard.sweep.plan import planner
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec import question
from blockyard.sweep.spec.keys import label
from tests.sweep.spec_plans import plan_from, refusals

SMALL = "experiment=gpt_code_small, model.depth=1, model.heads=1, data.batch_size=4, logger=none"
TEXT = f"claim: x\nbase: [{SMALL}]\nmetric: test/loss\n"
ARMS = (
    "arms: {wide: ['channel_mixer.expansion=8'], mlp: []}\nbaseline: mlp\nexpect: mlp > wide and wide-1e10 ~ mlp-1e10\n"
)
FLOPS = "ladder: {flops: [1e9, 1e10, 1e11, 1e12], tokens_per_param: 5}\n"
IMAGES = "claim: x\nbase: [experiment=vit_digits, model.depth=1, logger=none]\nmetric: test/loss\n"
PARAMS = "ladder: {params: [1e4, 2e4, 4e4, 8e4]}\n"


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    """The plan of two arms over four rungs of compute."""
    return plan_from(tmp_path_factory.mktemp("climbed"), TEXT + ARMS + FLOPS)


def true_flops(plan: SweepPlan, arm: str) -> float:
    """FLOPs of training one run of an arm, as the estimate of any sweep counts them."""
    flops = RunSizes(plan, FinishedRuns()).flops(arm)
    assert flops is not None
    return flops


def test_every_arm_has_the_compute_of_its_rung_and_the_flops_of_the_baseline(climbed: SweepPlan) -> None:
    plan = climbed
    record = plan.facts["ladder"]
    assert record["by"] == "flops"
    assert [arm.name for arm in plan.arms][:4] == ["wide-1e9", "wide-1e10", "wide-1e11", "wide-1e12"]
    assert plan.question["baseline"] == "mlp-1e12"
    assert plan.question["expect"] == "mlp-1e12 > wide-1e12 and wide-1e10 ~ mlp-1e10"
    assert set(record["arms"]) == set(plan.variants) == {arm.name for arm in plan.arms}
    for name, size in record["arms"].items():
        config, rung = plan.variants[name].config, float(name.rpartition("-")[2])
        assert (config["model"]["dim"], config["trainer"]["max_steps"]) == (size["dim"], size["steps"])
        assert config["trainer"]["max_epochs"] is None
        assert true_flops(plan, name) == size["flops"] == pytest.approx(rung, rel=0.03)
        assert sum(p.numel() for p in Components(config).meta_model().parameters()) == size["params"]
        base = record["arms"][f"mlp-{name.rpartition('-')[2]}"]
        assert size["value"] == pytest.approx(base["value"], rel=0.35)
    base, arm = record["arms"]["mlp-1e12"], record["arms"]["wide-1e12"]
    assert base["tokens"] == pytest.approx(5.0, rel=0.1)
    assert arm["value"] == pytest.approx(base["value"], rel=0.05)
    assert arm["dim"] < base["dim"]


def test_a_rung_is_hit_by_the_best_width_of_the_baseline(climbed: SweepPlan) -> None:
    """Against widths around it: the compute for five tokens a parameter is nearest to the rung."""
    config, sizes = climbed.variants["mlp-1e11"].config, RunSizes(climbed, FinishedRuns()).models

    def compute(dim: int) -> float:
        at = config | {"model": config["model"] | {"dim": dim}}
        params, forward = sizes.measure(at, "params"), sizes.measure(at, "flops")
        return 0.0 if params is None or forward is None else 3 * forward * 5 * params / 64

    best = min(range(40, 80, 2), key=lambda dim: abs(compute(dim) - 1e11))
    assert config["model"]["dim"] == best


@pytest.mark.full
def test_match_says_what_the_arms_of_a_rung_share(tmp_path: Path) -> None:
    record = plan_from(tmp_path, f"{TEXT}{ARMS}{FLOPS}match: params").facts["ladder"]
    for rung in ("1e10", "1e12"):
        base, arm = record["arms"][f"mlp-{rung}"], record["arms"][f"wide-{rung}"]
        assert arm["params"] == pytest.approx(base["params"], rel=0.1)
        assert arm["flops"] == pytest.approx(float(rung), rel=0.03)


@pytest.mark.full
def test_rungs_of_parameters_keep_the_budget_of_the_base(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, f"{IMAGES}arms: {{plain: [], glu: [channel_mixer=glu]}}\n{PARAMS}")
    for name, size in plan.facts["ladder"]["arms"].items():
        assert size["params"] == pytest.approx(float(name.rpartition("-")[2]), rel=0.15)
        assert size["steps"] is None  # epochs of data that nothing has read
        assert plan.variants[name].config["trainer"]["max_epochs"] is not None
    path = tmp_path / "x.yaml"
    read = planner.make_plan(path, outputs=str(tmp_path / "out"), data=DataReader())
    size = read.facts["ladder"]["arms"]["glu-8e4"]
    assert size["steps"] > 1
    assert size["flops"] == RunSizes(read, FinishedRuns(), DataReader()).flops("glu-8e4")


@pytest.mark.full
def test_rungs_of_parameters_may_set_the_tokens(tmp_path: Path) -> None:
    ladder = "ladder: {params: [1e4, 2e4, 4e4, 8e4], tokens_per_param: 10}\n"
    record = plan_from(tmp_path, TEXT + ARMS.partition("expect")[0] + ladder).facts["ladder"]["arms"]
    for name, size in record.items():
        assert size["steps"] == record[name.replace("wide", "mlp")]["steps"]
        assert size["steps"] * 4 * 64 == pytest.approx(10 * size["params"], rel=0.2)


def test_the_dry_run_prints_the_rungs(climbed: SweepPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = climbed
    screen = io.StringIO()
    monkeypatch.setattr(tables, "console", lambda: Console(file=screen, width=200))
    print_plan(PlanStatus.read(plan))
    shown = screen.getvalue()
    assert "1e9, 1e10, 1e11, 1e12 FLOPs, 5 tokens a parameter" in shown
    for column in ("model.dim", "params", "steps", "training FLOPs"):
        assert column in shown
    size = plan.facts["ladder"]["arms"]["wide-1e11"]
    (row,) = [line for line in shown.splitlines() if line.startswith("wide-1e11")]
    assert [str(size["dim"]), f"{size['params']:,}", f"{size['steps']:,}", f"{size['flops']:.3g}"] == row.split()[2:6]


def test_floors_of_their_own_are_a_word_of_the_ladder() -> None:
    rungs = {"params": [1e4, 3e4, 1e5, 3e5]}
    for ladder, expected in (
        ({**rungs, "floors": "own"}, {**rungs, "floors": "own"}),
        ({**rungs, "floors": "shared", "tokens_per_param": None}, rungs),
    ):
        read = question.parse({"claim": "x", "arms": {"a": []}, "ladder": ladder}, name="x")
        assert read.as_dict()["ladder"] == expected


def test_an_arm_of_the_command_line_is_meant_at_all_rungs(climbed: SweepPlan) -> None:
    some = SweepOptions(arms="mlp,wide-1e9").only(climbed).cells
    assert {climbed.variants[cell.variant].arm for cell in some} == {
        *(f"mlp-{rung}" for rung in ("1e9", "1e10", "1e11", "1e12")),
        "wide-1e9",
    }
    with pytest.raises(UserError, match="--arms mlpp: no such arm; did you mean mlp"):
        SweepOptions(arms="mlpp").only(climbed)


@pytest.mark.full
def test_rates_are_tuned_at_every_rung_or_carried_over(tmp_path: Path, climbed: SweepPlan) -> None:
    one_rate = "may suit one width alone"
    assert any(one_rate in note for note in climbed.facts["notes"])
    alone = TEXT + "arms: {mlp: []}\n" + FLOPS
    plan = plan_from(tmp_path, f"{alone}tune: {{optimizer.lr: [1e-3, 4e-3]}}\ntune_seeds: 1")
    assert len(plan.variants) == 4 * 2
    assert not any(one_rate in note for note in plan.facts["notes"])
    mup = plan_from(tmp_path, alone, "parametrization=mup", name="z")
    assert not any(one_rate in note for note in mup.facts["notes"])


@pytest.mark.full
def test_data_that_is_read_again_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT + "arms: {mlp: []}\n" + FLOPS.replace("1e12", "1e13"))
    plan = planner.make_plan(path, outputs=str(tmp_path / "out"), data=DataReader())
    (note,) = [note for note in plan.facts["notes"] if "more than once" in note]
    assert "-1e13" in note


def test_what_one_arm_alone_searches_is_searched_at_each_of_its_rungs(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    search = "search: {trials: 2, space: {optimizer.lr: [1e-3, 3e-3]}, only: {wide: {model.dropout: [0.0, 0.1]}}}\n"
    path.write_text(TEXT + ARMS + FLOPS + search)
    only = question.read(path).as_dict()["search"]["only"]  # type: ignore[index]
    assert only == {f"wide-{rung}": {"model.dropout": [0.0, 0.1]} for rung in ("1e9", "1e10", "1e11", "1e12")}
    path.write_text(TEXT + ARMS + FLOPS + search.replace("model.dropout: [0.0, 0.1]", "trainer.max_steps: [9, 10]"))
    with pytest.raises(question.BadQuestionError, match=r"so search.only.wide cannot contain trainer.max_steps"):
        question.read(path)


def test_rungs_have_short_names() -> None:
    assert [label(rung) for rung in (1e12, 3e4, 12500.0, 128.0, 1.5e9, 2)] == [
        "1e12",
        "3e4",
        "12500",
        "128",
        "1.5e9",
        "2",
    ]


def test_plans_without_a_ladder_are_as_before(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("claim: x\narms: {a: [], b: [block=post_norm]}\n")
    assert "ladder" not in question.read(path).as_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            FLOPS.replace(", 1e12]", "]"),
            "ladder.flops: expected 4 or more numbers above 0, as a law",
        ),
        (FLOPS.replace("1e10, 1e11", "1e11, 1e10"), "do not rise"),
        (FLOPS.replace("1e10, 1e11", "1e10, 1e10"), "do not rise"),
        (FLOPS.replace("1e10", "-1"), "ladder.flops: expected 4 or more numbers above 0"),
        (FLOPS.replace("flops", "flop"), "ladder.flop: unknown key; did you mean flops?"),
        ("ladder: {flops: [1, 2, 3, 4], params: [1, 2, 3, 4]}", "not one list of rungs"),
        (FLOPS.replace("tokens_per_param", "tokens_per_params"), "did you mean tokens_per_param?"),
        (
            FLOPS.replace("param: 5", "param: 0"),
            "tokens_per_param: expected a number above 0, such as 20, where",
        ),
        (FLOPS.replace("param: 5", "param: 5, floors: each"), 'ladder.floors: "each" is not one of shared, own'),
        (FLOPS.replace("param: 5", "param: null"), "such as 20, where rungs set the steps, not null"),
        (FLOPS + "seeds: {first: 3, most: 9, until: decided}", "a sweep that stops when it is decided has no law"),
        (FLOPS + "tune: {model.dim: [8, 16]}", "ladder: it solves for the width, so tune cannot contain model.dim"),
        (FLOPS.replace("1e9", "1e3"), "1e3 FLOPs are out of reach of mlp by model.dim; the nearest is"),
        (FLOPS.replace("1e9, 1e10", "9.9e9, 1e10"), "the rungs 9.9e9 and 1e10 of mlp both have model.dim="),
        (FLOPS.replace("1e9", "2e7").replace("m: 5", "m: 0.05"), "would train"),
        (FLOPS + "tune: {model.depth: [1, 2]}", "it changes the forward FLOPs per sample of wide-1e9"),
    ],
)
@pytest.mark.sampled(3)
def test_what_is_no_ladder_is_refused(tmp_path: Path, text: str, message: str) -> None:
    problems = refusals(tmp_path, TEXT + ARMS + text)
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("override", ["model.dim=8", "trainer.max_steps=7", "trainer.max_epochs=3"])
def test_no_arm_may_set_what_the_ladder_solves_for(tmp_path: Path, override: str) -> None:
    (problem,) = refusals(tmp_path, f"{TEXT}arms: {{a: [], b: [{override}]}}\n{FLOPS}")
    assert f"no arm may set {override.partition('=')[0]}; remove it from b" in problem


@pytest.mark.parametrize(
    ("base", "what"),
    [
        ("vit_digits", "images"),
        ("recall", "symbols"),
        ("code_topics", "labelled texts"),
        ("translate_dates", "texts with a source"),
    ],
)
def test_tokens_of_other_data_are_refused(tmp_path: Path, base: str, what: str) -> None:
    text = f"claim: x\nbase: [experiment={base}, logger=none]\narms: {{a: [], b: [norm=layer]}}\n{FLOPS}"
    problems = refusals(tmp_path, text)
    assert any(f"the data of a are {what}; write ladder: {{params:" in problem for problem in problems), problems


@pytest.mark.full
def test_an_arm_without_a_width_is_refused_and_says_why(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, f"{TEXT}arms: {{a: [], b: ['channel_mixer.expansion=2048']}}\n{FLOPS}")
    refused = {one.arm: one.reasons[0] for one in plan.refused}
    assert "b-1e9" in refused
    assert "at 1e9 FLOPs are out of reach by model.dim; the nearest is" in refused["b-1e9"]
    assert "a-1e9" in plan.variants


def test_a_base_that_is_matched_already_is_refused(tmp_path: Path) -> None:
    (problem,) = refusals(tmp_path, TEXT + ARMS + FLOPS, "match.params=1e5")
    assert problem == "ladder: the base sets match.params too; remove one of them"
