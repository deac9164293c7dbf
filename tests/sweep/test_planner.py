"""Plans: every cell is composed and checked beforehand, frozen, and small on the disk."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.runs.identity import identity
from blockyard.sweep.cell import trial_store
from blockyard.sweep.cells import cell_name
from blockyard.sweep.plan import history, planner
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search.trial_config import arm_template
from tests.support.every import every
from tests.support.tiny import VIT
from tests.sweep.spec_plans import plan_from, refusals

BASE = f"base: [{', '.join(VIT)}]"


GRID = f"""
claim: x
{BASE}
grid: {{token_mixer: [attention, fourier], position: [learned, rope], optimizer.lr: [1e-3, 3e-3]}}
seeds: [0, 4]
"""


def test_configs_are_those_that_compose_gives(tmp_path):
    """Only what the planner fixes may differ."""
    sweep_plan = plan_from(tmp_path, GRID.replace("[1e-3, 3e-3]", "[3e-3]"), "model.init_std=0.1")
    arms = {arm.name: arm for arm in sweep_plan.arms}
    assert len(sweep_plan.variants) == 3
    for key, variant in sweep_plan.variants.items():
        composed = compose([*VIT, "model.init_std=0.1", *arms[key].overrides, "trainer.precision=32"])
        assert check(composed) == []
        assert variant.config == composed.config
        assert variant.choices == composed.choices


def test_cells_are_runs_with_all_seeds(tmp_path):
    from blockyard.runs.identity import run_name

    sweep_plan = plan_from(tmp_path, GRID)
    assert len(sweep_plan.cells) == 12
    assert len({cell.run for cell in sweep_plan.cells}) == 12
    for cell in sweep_plan.cells:
        config = sweep_plan.config(cell)
        assert (config["seed"], config["outputs"]) == (cell.seed, str(tmp_path / "out"))
        assert cell.run == f"{run_name(config)}/s{cell.seed}"
    config["model"]["dim"] = 1  # the caller's own
    assert sweep_plan.config(sweep_plan.cells[-1])["model"]["dim"] == 16


def test_what_cannot_run_is_refused_with_every_reason(tmp_path):
    sweep_plan = plan_from(tmp_path, GRID.replace("optimizer.lr: [1e-3, 3e-3]", "model.dim: [16, 15]"))
    assert {each.arm for each in sweep_plan.refused} == {
        "attention-learned-dim15",
        "attention-rope-dim15",
        "fourier-learned-dim15",
        "fourier-rope-dim16",
        "fourier-rope-dim15",
    }
    for each in sweep_plan.refused:
        arm = next(arm for arm in sweep_plan.arms if arm.name == each.arm)
        assert list(each.reasons) == [str(issue) for issue in check(compose([*VIT, *arm.overrides]))]


def test_a_plan_that_cannot_stand_is_refused(tmp_path):
    grid = GRID.replace("model.dim=16", "model.dmi=16, block=prenorm")
    assert [p.partition(":")[2].split()[0] for p in refusals(tmp_path, grid)] == ["block:", "model.dmi:"]
    issues = refusals(tmp_path, GRID + "baseline: fourier-rope-lr0.001\n")
    assert issues[0].startswith("baseline fourier-rope-lr0.001: position with token_mixer")
    assert "metric" in refusals(tmp_path, GRID + "metric: test/acuracy\n")[0]
    assert "unknown config key" in refusals(tmp_path, GRID, "dim=3")[0]
    assert "seed cannot be set here" in refusals(tmp_path, GRID, "seed=3")[0]


def test_two_arms_that_are_one_model_are_an_error(tmp_path):
    arms = "arms: {a: [block=pre_norm], b: [norm=rms], c: [model.dim=16, name=other]}"
    (issue,) = refusals(tmp_path, f"claim: x\n{BASE}\n{arms}")
    assert issue.startswith("arms a and c are the same run")
    arms = "arms: {a: [block=post_norm], b: [norm=rms]}\ntune: {model.depth: [1, 2], data.cache: [1]}"
    assert "data.cache" in " ".join(refusals(tmp_path, f"claim: x\n{BASE}\n{arms}"))


def test_a_repeat_is_an_arm_with_runs_of_its_own(tmp_path):
    arms = "arms: {a: [block=pre_norm], again: [block=pre_norm, repeat=1]}"
    sweep_plan = plan_from(tmp_path, f"claim: x\nseeds: 2\n{BASE}\n{arms}")
    assert len({cell.run for cell in sweep_plan.cells}) == 4
    first, again = (dict(sweep_plan.variants[name].config) for name in ("a", "again"))
    assert (first.pop("repeat"), again.pop("repeat")) == (None, 1)
    assert identity(first) == sweep_plan.cells[0].run.partition("/")[0].rpartition("-")[2]  # as of earlier releases
    (issue,) = refusals(tmp_path, f"claim: x\n{BASE}\narms: {{a: [], b: []}}")
    assert "with repeat=1 one of them runs again" in issue


def test_a_setting_that_changes_nothing_is_an_error(tmp_path):
    tuned = "arms: {a: [block=post_norm], b: [norm=rms]}\ntune: {trainer.num_workers: [0, 1]}"
    issue = refusals(tmp_path, f"claim: x\n{BASE}\n{tuned}")
    assert every(problem.endswith("are the same run") for problem in issue)


def test_tuned_arms_try_the_same_settings(tmp_path):
    sweep_plan = plan_from(
        tmp_path, f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}\ntune: {{optimizer.lr: [1e-3, 3e-3]}}"
    )
    assert list(sweep_plan.variants) == ["a#0", "a#1", "b#0", "b#1"]
    assert [v.setting for v in sweep_plan.variants.values()] == [{"optimizer.lr": 1e-3}, {"optimizer.lr": 3e-3}] * 2
    assert sweep_plan.variants["b#1"].config["optimizer"]["lr"] == 3e-3


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], 32), (["trainer.precision=auto"], "auto"), (["trainer.precision=bf16-mixed"], "bf16-mixed")],
)
def test_the_precision_is_fixed_unless_the_file_sets_it(tmp_path, overrides, expected):
    sweep_plan = plan_from(
        tmp_path, f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}", "trainer.accelerator=cpu", *overrides
    )
    assert {v.config["trainer"]["precision"] for v in sweep_plan.variants.values()} == {expected}
    assert any("trainer.precision" in note for note in sweep_plan.facts["notes"]) == (expected == 32)


def test_wandb_is_told_sweep_arm_and_seed(tmp_path):
    text = f"claim: x\n{BASE.replace('logger=none', 'logger=wandb')}\narms: {{a: [], b: [norm=rms]}}"
    sweep_plan = plan_from(tmp_path, text, name="mine")
    logger = sweep_plan.config(sweep_plan.cells[-1])["logger"]
    assert {key: logger[key] for key in ("group", "job_type", "name")} == {
        "group": "mine",
        "job_type": "b",
        "name": "b s2",
    }
    assert logger["tags"] == ["mine", "b"]
    own = plan_from(tmp_path, text, "logger.group=g", "logger.name=n", "logger.job_type=j")
    logger = own.config(own.cells[0])["logger"]
    assert (logger["group"], logger["name"], logger["job_type"]) == ("g", "n", "j")
    assert [c.run for c in own.cells] == [c.run for c in sweep_plan.cells]  # it is no part of a run's identity


def test_a_plan_survives_the_disk(tmp_path):
    sweep_plan = plan_from(tmp_path, GRID + "expect: attention-learned-lr0.001 > fourier-learned-lr0.001\n")
    assert sweep_plan.folder == tmp_path / "out" / "sweeps" / "x"
    assert not sweep_plan.folder.exists()
    sweep_plan.save()
    again = SweepPlan.load(sweep_plan.folder)
    for name in ("name", "question", "outputs", "arms", "variants", "cells", "refused"):
        assert getattr(again, name) == getattr(sweep_plan, name), name
    directions = {"direction": "max", "validation_direction": "max"}
    assert again.facts["metric"] == {"name": "test/accuracy", "validation": "val/accuracy", **directions}


def test_a_plan_holds_no_secret(tmp_path):
    sweep_plan = plan_from(
        tmp_path,
        f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms, 'name=hf_abcdefghijklmnopqrstuvwxyz']}}",
        "tags=['ghp_abcdefghijklmnopqrstuvwxyz']",
    )
    text = sweep_plan.save().read_text()
    assert "abcdefghij" not in text
    assert "redacted" in text
    assert history.store_plan(sweep_plan).messages == []  # and is not taken for another one because of that


def test_a_damaged_plan_is_said(tmp_path):
    sweep_plan = plan_from(tmp_path, GRID)
    sweep_plan.save().write_text('{"name": "x", "nodes": []')
    with pytest.raises(ValueError, match="damaged"):
        SweepPlan.load(sweep_plan.folder)
    (sweep_plan.folder / "plan.json").write_text("[]")
    with pytest.raises(ValueError, match="damaged"):
        SweepPlan.load(sweep_plan.folder)
    with pytest.raises(ValueError, match="is not a sweep's folder"):
        SweepPlan.load(tmp_path)


def test_planners_that_start_together_lose_no_plan(tmp_path):
    """Each finds another question there; every old plan is kept, and the last one stands."""
    from concurrent.futures import ThreadPoolExecutor

    sweep_plan = plan_from(tmp_path, GRID)
    plans = [replace(sweep_plan, question=sweep_plan.question | {"seeds": list(range(n))}) for n in range(2, 10)]
    with ThreadPoolExecutor(8) as pool:
        messages = [stored.messages for stored in pool.map(history.store_plan, plans)]
    kept = [SweepPlan.load(sweep_plan.folder, path.name) for path in sweep_plan.folder.glob("plan*.json")]
    assert sorted(len(kept_plan.question["seeds"]) for kept_plan in kept) == list(range(2, 10))
    assert sum(map(len, messages)) == 7


def test_a_changed_file_keeps_the_old_plan(tmp_path):
    arms = f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}\n"
    first = plan_from(tmp_path, arms + "seeds: 2")
    assert history.store_plan(first).messages == []
    assert history.store_plan(plan_from(tmp_path, arms.replace("claim: x", "claim: y") + "seeds: 2")).messages == []
    assert [path.name for path in first.folder.glob("[!.]*")] == ["plan.json"]
    (message,) = history.store_plan(
        plan_from(tmp_path, arms.replace("b: [", "c: [block=post_norm], b: [") + "seeds: 3")
    ).messages
    assert "new arms: c; 4 runs as before, 5 new; changed keys: arms, seeds" in message
    kept = [path.name for path in first.folder.glob("plan-*.json")]
    assert len(kept) == 1
    assert SweepPlan.load(first.folder, kept[0]).cells == first.cells
    (message,) = history.store_plan(first).messages
    assert "removed arms: c; 4 runs as before, 0 new; 5 no longer part of it" in message
    (first.folder / "plan.json").write_text("{")
    (message,) = history.store_plan(first).messages
    assert "damaged" in message
    assert len(list(first.folder.glob("plan-*.json"))) == 3


def test_gpus_may_be_elsewhere(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}"
    overrides = ["trainer=gpu", "trainer.devices=4"]
    assert "this machine has 0 GPUs" in refusals(tmp_path, text, *overrides)[0]
    sweep_plan = planner.make_plan(tmp_path / "x.yaml", overrides=overrides, elsewhere=True)
    assert {v.config["trainer"]["accelerator"] for v in sweep_plan.variants.values()} == {"gpu"}
    assert {v.config["trainer"]["precision"] for v in sweep_plan.variants.values()} == {"bf16-mixed"}


def test_a_search_leaves_its_cells_open(tmp_path):
    text = (
        f"claim: x\n{BASE}\narms: {{a: [], b: [norm=rms]}}\nsearch: {{trials: 2, space: {{optimizer.lr: [1e-3, 0.1]}}}}"
    )
    sweep_plan = plan_from(tmp_path, text)
    assert (sweep_plan.cells, list(sweep_plan.variants)) == ((), ["a", "b"])
    assert sweep_plan.question["search"]["sampler"] == "tpe"
    issues = refusals(tmp_path, text.replace("[1e-3, 0.1]", "{low: -1, high: 1}, optimizer.lrr: [3]"))
    assert [problem.partition(": ")[0] for problem in issues] == [
        "search.space.optimizer.lr",
        "search.space.optimizer.lrr",
    ]


@pytest.mark.full
def test_a_plan_is_small(tmp_path):
    """Nodes are kept once: thirty arms weigh little more than one."""
    rates = ", ".join(str(n / 1000) for n in range(1, 31))
    text = GRID.replace("[1e-3, 3e-3]", f"[{rates}]").replace("seeds: [0, 4]", "seeds: 10")
    sweep_plan = plan_from(tmp_path, text)
    assert len(sweep_plan.cells) == 900
    assert sweep_plan.save().stat().st_size < 90_000
    nodes = json.loads((sweep_plan.folder / "plan.json").read_text())["nodes"]
    assert len(nodes) < 60


def test_cells_are_named_by_their_setting():
    assert cell_name("rope", {}, 0) == "rope s0"
    assert cell_name("rope", {"optimizer.lr": 1e-3, "model.depth": 2}, 3) == "rope lr=0.001 depth=2 s3"
    assert cell_name("rope", {"optimizer.lr": 1e-3, "schedule.lr": None}) == "rope optimizer.lr=0.001 schedule.lr=None"


def searched(space: str, *, arms: str = "a: [], b: [norm=rms]") -> str:
    return f"claim: x\n{BASE}\narms: {{{arms}}}\nsearch: {{trials: 2, space: {{{space}}}}}"


def test_whole_bounds_of_a_whole_option_are_searched_in_whole_numbers(tmp_path):
    """`model.depth: {low: 1, high: 3}` draws 1, 2 or 3; a rate with whole bounds stays real."""
    depth, rate, step = (
        "model.depth: {low: 1, high: 3}",
        "optimizer.lr: {low: 1, high: 3}",
        "data.shift: {low: 0, high: 4",
    )
    sweep_plan = plan_from(tmp_path, searched(f"{depth}, {rate}, {step}, step: 2}}"))
    space = sweep_plan.question["search"]["space"]
    assert {key: dimension.get("int") for key, dimension in space.items()} == {
        "model.depth": True,
        "optimizer.lr": None,
        "data.shift": True,
    }
    values = trial_store.distributions(space)
    assert {type(values[key]).__name__ for key in ("model.depth", "data.shift")} == {"IntDistribution"}


@pytest.mark.parametrize(
    ("space", "key"),
    [
        ("model.depth: {low: 0, high: 3}", "search.space.model.depth: 0"),
        ("model.depth: {low: 1.5, high: 3}", "search.space.model.depth: 1.5"),
        ("optimizer.lr: {low: 1e-3, high: 1e-2, step: 1}", "search.space.optimizer.lr.step: 1"),
        ("optimizer.lr: {low: 1e-3, high: 1e-2, type: float}", "search.space.optimizer.lr.type"),
        ("token_mixer.rope: {low: 1, high: 2}", "search.space.token_mixer.rope: "),
    ],
)
def test_an_impossible_space_is_refused_by_the_planner(tmp_path, space, key):
    """Bounds outside of the option's range, of another type, and keys that do not exist cost no trial."""
    assert any(key in problem for problem in refusals(tmp_path, searched(space)))


def test_the_size_of_a_model_is_searched(tmp_path):
    """A trial has the shape, the parametrization and the steps that the dial sets on a command line."""
    space = "model.size: [100k, 200k], optimizer.lr: [1e-3, 1e-2]"
    text = searched(space, arms="a: [], b: [norm=layer]").replace(BASE, "base: [data=code, trainer=cpu]")
    sweep_plan = plan_from(tmp_path, text)
    template = arm_template(sweep_plan, "b", CellComposer())
    assert template is not None
    config, choices, problems = template.config({"model.size": "200k", "optimizer.lr": 1e-2}, 0)
    typed = compose([*sweep_plan.question["base"], "norm=layer", "model.size=200k", "optimizer.lr=1e-2"])
    assert not problems
    assert typed.sized is not None
    assert abs(typed.sized.value / 200_000 - 1) < 0.1
    for family in ("model", "parametrization", "optimizer"):
        assert config[family] == typed.config[family]
        assert choices[family] == typed.choices[family]
    for key in ("max_steps", "eval_every"):
        assert config["trainer"][key] == typed.config["trainer"][key]
        assert config["trainer"][key] != template.variant.config["trainer"][key]
    assert any("search.space.model.size: huge" in text for text in refusals(tmp_path, text.replace("100k", "huge")))


def test_a_space_that_one_arm_does_not_have_is_refused(tmp_path):
    """An option of the baseline's mixer alone would be unknown in every trial of the other arm."""
    text = searched("token_mixer.dropout: {low: 0.1, high: 0.2}", arms="a: [], b: [token_mixer=fourier, position=none]")
    assert "arm b has no such option" in refusals(tmp_path, text)[0]


@pytest.mark.parametrize(("cost", "direction"), [("step_seconds", "min"), ("samples_per_second", "max")])
def test_a_cost_has_a_direction_of_its_own(tmp_path, cost, direction):
    """Runs are watched by the metric of validation, and compared by the cost."""
    plan = plan_from(tmp_path, f"claim: x\n{BASE}\nmetric: {cost}\narms: {{a: [], b: [norm=rms]}}")
    metric = {"name": cost, "validation": "val/accuracy", "direction": direction, "validation_direction": "max"}
    assert plan.facts["metric"] == metric


def test_a_wrong_metric_does_not_hide_wrong_arms(tmp_path):
    """Both are reported at once."""
    text = f"claim: x\n{BASE}\nmetric: test/speed\narms: {{a: [], b: [norm=rmss]}}"
    issues = refusals(tmp_path, text)
    assert any("test/speed is not measured" in problem for problem in issues)
    assert any("unknown norm 'rmss'" in problem for problem in issues)
