"""W&B sweep files: W&B's own schema takes them, and what its agent would run is a cell of the sweep."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.sweep.execution import single_cell
from blockyard.sweep.plan import planner
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.plan.wandb_file import files, write
from blockyard.sweep.search.trial_config import arm_template
from tests.support.tiny import TINY, steps

BASE = [*TINY, *steps(2, 2)]
ARMS = {
    "arms": {
        "pre": ["block=pre_norm"],
        "post": ["block=post_norm", "token_mixer.qk_norm=true"],
        "null": ["position=none"],
    }
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "arms": ARMS,
    "tune": ARMS | {"tune": {"optimizer.lr": [1e-5, 1e-3], "trainer.gradient_clip": [None, 1.0]}, "tune_seeds": 1},
    "grid": {
        "grid": {
            "norm": ["layer", "rms"],
            "optimizer.lr": [1e-5, 3e-4],
            "optimizer.betas": [[0.9, 0.95], [0.9, 0.999]],
            "width": {"narrow": ["model.dim=8"], "wide": ["model.dim=16"]},
        }
    },
    "zip": {"zip": {"norm": ["layer", "rms"], "model.dim": [8, 16]}},
    "one_at_a_time": {"one_at_a_time": {"norm": ["layer", "rms"], "model.dim": [8, 16]}},
    "leave_one_out": {"leave_one_out": {"rms": ["norm=rms"], "wide": ["model.dim=32"]}},
    "random": ARMS | {"search": {"trials": 3, "sampler": "random", "pruner": "median", "space": {}}},
    "tpe": ARMS | {"search": {"trials": 4, "sampler": "tpe", "pruner": "halving", "space": {}}},
}
SPACE = {
    "optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "token_mixer.dropout": {"low": 0.0, "high": 0.5},
    "schedule.warmup": {"low": 0, "high": 100, "int": True, "step": 10},
    "model.depth": {"low": 1, "high": 4, "int": True},
    "data.batch_size": {"low": 16, "high": 64, "int": True, "log": True},
    "model.dim": [8, 16],
    "norm": ["layer", "rms"],
    "channel_mixer.bias": [True, False],
    "trainer.gradient_clip": [None, 0.5],
}


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan for many command lines of one question."""
    plans: dict[str, SweepPlan] = {}

    def sweep_plan(path: Path, **more: Any) -> SweepPlan:
        key = str((path, more["outputs"], more["overrides"]))
        plans[key] = plans.get(key) or make_plan(path, **more)
        return plans[key]

    monkeypatch.setattr(planner, "make_plan", sweep_plan)


def question(folder: Path, kind: str) -> Path:
    content = QUESTIONS[kind] | {"claim": "it: 'works'", "base": BASE, "seeds": 2, "metric": "test/loss"}
    if "search" in content:
        content["search"] = content["search"] | {"space": SPACE}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def schema() -> dict[str, Any]:
    """W&B's own, from its package of search strategies; only the file is read: the package wants an old numpy."""
    try:
        distribution = importlib.metadata.distribution("sweeps")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("W&B's package `sweeps`, which holds its schema, is not installed (pip install --no-deps sweeps)")
    return json.loads(Path(str(distribution.locate_file("sweeps/config/schema.json"))).read_text())


def agent(config: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The command line that `wandb agent` runs for these values, by its own functions."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sent = json.loads(json.dumps({"args": {name: {"value": value} for name, value in values.items()}}))
    macros = utils.create_sweep_command_args(sent) | {"env": ["/usr/bin/env"], "program": [config["program"]]}
    line: list[str] = []
    for argument in utils.create_sweep_command(list(config["command"])):
        line += macros[argument[2:-1]] if argument.startswith("${") and argument.endswith("}") else [argument]
    return line


def drawn(parameters: dict[str, Any], last: bool = False) -> dict[str, Any]:
    """One value of each parameter: the first or the last that W&B could draw."""

    def value(of: dict[str, Any]) -> Any:
        if "value" in of:
            return of["value"]
        return of["values"][-1 if last else 0] if "values" in of else of["max" if last else "min"]

    return {name: value(of) for name, of in parameters.items()}


def combinations(config: dict[str, Any]) -> list[dict[str, Any]]:
    names = list(config["parameters"])
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(of["values"] for of in config["parameters"].values()))
    ]


def named(arguments: list[str], plan: SweepPlan) -> tuple[str, dict[str, Any]]:
    """The run that a command line stands for, and its config."""
    assert arguments[:2] == ["/usr/bin/env", "blockyard"]
    assert arguments[2:5] == ["sweep", plan.question["path"], "--one"]
    assert f"outputs={plan.outputs}" in arguments
    own = [text for text in arguments[5:] if not text.startswith("outputs=")]
    config, _ = single_cell.cell_config(Path(plan.question["path"]), own, outputs=plan.outputs)
    return f"{run_name(config)}/s{config['seed']}", config


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.sampled(2)
def test_wandbs_own_schema_and_parser_take_every_file(tmp_path: Path, kind: str) -> None:
    plan = make_plan(question(tmp_path, kind))
    validator = jsonschema.Draft7Validator(schema())
    for content in files(plan).values():
        config = yaml.safe_load(content)
        assert [error.message for error in validator.iter_errors(config)] == []
        assert config["metric"] == {"name": "val/loss", "goal": "minimize"}
        assert not any("parameters" in of for of in config["parameters"].values()), "a nested parameter"
        scheduler = pytest.importorskip("wandb.sdk.sweeps.scheduler.optuna")
        assert set(scheduler.search_space_from_sweep_config(config["parameters"])) == set(config["parameters"])


def test_the_schema_is_strict(tmp_path: Path) -> None:
    config = yaml.safe_load(next(iter(files(make_plan(question(tmp_path, "arms"))).values())))
    validator = jsonschema.Draft7Validator(schema())
    assert list(validator.iter_errors(config | {"methods": "grid"}))
    assert list(validator.iter_errors(config | {"parameters": {"optimizer/lr": {"values": [1]}}}))


@pytest.mark.sampled(100)
@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("kind", ["arms", "grid", "zip", "one_at_a_time", "leave_one_out"])
def test_the_agent_runs_exactly_the_cells_of_the_sweep(tmp_path: Path, kind: str) -> None:
    plan = make_plan(question(tmp_path, kind), outputs=str(tmp_path / "outputs"))
    (content,) = files(plan).values()
    config = yaml.safe_load(content)
    chosen = combinations(config)
    if kind == "grid":
        assert set(config["parameters"]) == {"norm", "optimizer.lr", "optimizer.betas", "width", "seed"}
        chosen = [*chosen[:2], *chosen[-2:]]
    result = [named(agent(config, values), plan) for values in chosen]
    planned = {cell.run: plan.config(cell) for cell in plan.cells}
    assert {run for run, _ in result} == (set(planned) if kind != "grid" else {run for run, _ in result} & set(planned))
    assert len({run for run, _ in result}) == len(result)
    for run, of in result:
        assert of == planned[run]


@pytest.mark.usefixtures("once")
def test_a_tuned_sweep_tries_its_settings_on_the_first_seeds(tmp_path: Path) -> None:
    plan = make_plan(question(tmp_path, "tune"), outputs=str(tmp_path / "outputs"))
    (content,) = files(plan).values()
    config = yaml.safe_load(content)
    assert config["parameters"]["seed"] == {"values": [0]}
    assert "on the first seeds only" in content
    result = {named(agent(config, values), plan)[0] for values in combinations(config)[::5]}
    assert len(result) == 3
    assert result <= {cell.run for cell in plan.cells}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("kind", ["tpe", pytest.param("random", marks=pytest.mark.full)])
def test_a_search_is_a_file_for_each_arm_with_its_own_budget(tmp_path: Path, kind: str) -> None:
    plan = make_plan(question(tmp_path, kind), outputs=str(tmp_path / "outputs"))
    written = files(plan)
    assert list(written) == [f"{kind}.{arm}.yaml" for arm in ("pre", "post", "null")]
    for arm, content in zip(("pre", "post", "null"), written.values(), strict=True):
        config = yaml.safe_load(content)
        assert config["run_cap"] == plan.question["search"]["trials"]
        assert config["method"] == {"random": "random", "tpe": "bayes"}[kind]
        assert ("early_terminate" in config, "no median pruning" in content) == (kind == "tpe", kind == "random")
        if arm != "post":
            continue
        for last in (False, True):
            values = drawn(config["parameters"], last)
            assert values["arm"] == arm
            run, overrides = named(agent(config, values), plan)
            setting = {
                "optimizer.lr": 1e-1 if last else 1e-5,
                "token_mixer.dropout": 0.5 if last else 0.0,
                "schedule.warmup": 100 if last else 0,
                "model.depth": 4 if last else 1,
                "data.batch_size": 64 if last else 16,
                "model.dim": 16 if last else 8,
                "norm": "rms" if last else "layer",
                "channel_mixer.bias": not last,
                "trainer.gradient_clip": 0.5 if last else None,
            }
            template = arm_template(plan, arm, CellComposer())
            assert template is not None
            trial, _, problems = template.config(setting, 0)
            assert not problems
            assert run == f"{run_name(trial)}/s0"
            assert {key: _at(overrides, key) for key in setting if "." in key} == {
                k: setting[k] for k in setting if "." in k
            }


def _at(config: dict[str, Any], key: str) -> Any:
    family, option = key.split(".")
    return config[family][option]


def test_a_cell_of_a_sweep_that_splits_anew_has_the_split_of_its_seed(tmp_path: Path) -> None:
    file = tmp_path / "splits.yaml"
    file.write_text(
        "claim: x\nbase: [experiment=vit_digits]\narms: {a: [norm=rms], b: [norm=layer]}\nseeds: 3\nresplit: true\n"
    )
    plan = make_plan(file, outputs=str(tmp_path))
    cell = next(cell for cell in plan.cells if (cell.variant, cell.seed) == ("b", 2))
    config, _ = single_cell.cell_config(file, ["arm=b", "seed=2"], outputs=str(tmp_path))
    assert config["data"]["split_seed"] == 2
    assert identity(config) == identity(plan.config(cell))


@pytest.mark.full
@pytest.mark.usefixtures("once")
def test_words_that_name_no_cell_are_refused(tmp_path: Path) -> None:
    arms, grid, tune = (question(tmp_path, kind) for kind in ("arms", "grid", "tune"))
    for path, arguments, message in [
        (arms, ["arm=preference", "seed=0"], r"no such arm \(arms: pre, post, null\)"),
        (arms, ["seed=0"], "arm=None"),
        (arms, ["arm=pre"], "seed=None"),
        (grid, ["norm=rms", "width=narrow", "seed=0"], "give optimizer.lr=... and optimizer.betas=..."),
        (grid, ["norm=rms", "width=broad", "optimizer.lr=1e-5", "optimizer.betas=[0.9,0.95]", "seed=0"], "no arm of"),
        (tune, ["arm=pre", "seed=0", "optimizer.lr=1e-3"], "give a value for trainer.gradient_clip"),
        (tune, ["arm=pre", "seed=0", "optimizer.lr=7", "trainer.gradient_clip=null"], "is not a setting of the file"),
    ]:
        with pytest.raises(UserError, match=message):
            single_cell.cell_config(path, arguments, outputs=str(tmp_path))


def test_what_was_added_on_the_command_line_is_in_the_agents(tmp_path: Path) -> None:
    plan = make_plan(question(tmp_path, "arms"), outputs=str(tmp_path), overrides=["model.depth=2"])
    (content,) = files(plan).values()
    config = yaml.safe_load(content)
    line = agent(config, drawn(config["parameters"]))
    assert "model.depth=2" in line
    assert named(line, plan)[0] in {cell.run for cell in plan.cells}


def test_a_secret_on_the_command_line_is_refused(tmp_path: Path) -> None:
    """The agents' command line had it in clear text."""
    overrides = ["logger=none", "logger.api_key=s3cr3tvalue42"]
    plan = make_plan(question(tmp_path, "arms"), outputs=str(tmp_path))
    plan = replace(plan, facts={**plan.facts, "overrides": overrides})
    with pytest.raises(UserError, match=r"logger.api_key=<redacted> would be a secret in the file"):
        files(plan)


def test_the_first_lines_name_the_file_and_the_command_that_finds_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command would train other runs than the agents."""
    monkeypatch.chdir(tmp_path)
    question(tmp_path / "own questions", "arms")
    typed = ["own questions/arms.yaml", "--seeds", "3", "outputs=elsewhere", "model.depth=2"]
    assert main(["sweep", *typed, "--to-wandb"]) == 0
    text = (tmp_path / "own questions" / "wandb" / "arms.yaml").read_text()
    assert "# wandb sweep 'own questions/wandb/arms.yaml' " in text
    assert f"# {shlex.join(['blockyard', 'sweep', *typed])} " in text
    assert f"outputs={tmp_path / 'elsewhere'}" in yaml.safe_load(text)["command"]


@pytest.mark.parametrize("several", [False, True])
def test_the_account_is_that_of_the_logger(tmp_path: Path, several: bool) -> None:
    path = question(tmp_path, "arms")
    logger = "logger=[tensorboard,wandb]" if several else "logger=wandb"
    prefix = "logger.wandb" if several else "logger"
    path.write_text(path.read_text().replace("- logger=none", f"- {logger}"))
    plan = make_plan(path, outputs=str(tmp_path), overrides=[f"{prefix}.entity=team", f"{prefix}.project=mine"])
    (content,) = files(plan).values()
    config = yaml.safe_load(content)
    assert (config["entity"], config["project"]) == ("team", "mine")


@pytest.mark.full
def test_the_agents_command_line_trains_the_cell_and_tells_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = question(tmp_path, "arms")
    path.write_text(path.read_text().replace("logger=none", "logger=wandb"))
    message = write(make_plan(path, outputs=str(tmp_path / "outputs")))
    assert message == str(tmp_path / "wandb" / "arms.yaml")
    config = yaml.safe_load(Path(message).read_text())
    line = agent(config, {"arm": "post", "seed": 1})
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "WANDB_MODE": "offline",
        "WANDB_SWEEP_ID": "abc123",
    }
    done = subprocess.run(
        line, cwd=tmp_path, env=environment | {"WANDB_RUN_ID": "firstrun"}, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    for name, value in {"WANDB_MODE": "offline", "WANDB_SWEEP_ID": "abc123", "WANDB_RUN_ID": "secondrun"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(line[2:]) == 0
    assert "is already done" in capsys.readouterr().out
    (folder,) = (RunFolder.open(config_path.parent) for config_path in tmp_path.glob("outputs/*/s1/config.yaml"))
    logger = folder.config["logger"]
    assert (logger["group"], logger["job_type"], logger["name"]) == ("arms", "post", "post s1")
    assert folder.status.finished
    # The second agent was told of the run that the first had made.
    assert len(list((folder.path / "wandb").glob("offline-run-*-firstrun"))) == 1
    assert len(list((folder.path / "wandb").glob("offline-run-*-secondrun"))) == 1
    assert folder.facts()["wandb"]["id"] == "secondrun"


@pytest.mark.parametrize("shipped", ["src/blockyard/sweeps", "sweeps"])  # of a wheel, of a checkout
def test_a_file_that_was_installed_is_written_into_the_users_own_folder(
    shipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from blockyard import cli
    from blockyard.sweep.spec import locate

    folder = tmp_path / "installed" / shipped
    folder.mkdir(parents=True)
    path = question(tmp_path, "arms")
    installed = folder / path.name
    installed.write_text(path.read_text())
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setattr(locate, "PACKAGE", tmp_path / "installed/src/blockyard")
    assert cli.main(["sweep", str(installed), "--to-wandb"]) == 0
    assert capsys.readouterr().out == "sweeps/wandb/arms.yaml\n"
    assert sorted(child.name for child in folder.iterdir()) == ["arms.yaml"]
    # A folder that cannot be written is bad input.
    monkeypatch.setattr(locate, "PACKAGE", tmp_path / "nowhere/a/b")
    (folder / "wandb").write_text("no folder")
    assert cli.main(["sweep", str(installed), "--to-wandb"]) == 2
    assert "cannot write " in (message := capsys.readouterr().err)
    assert "copy the sweep file to a folder of your own" in message
