"""The sweep file of a question: every choice with its reason, accepted by a dry run, within the hours."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from blockyard.ask import answer, draft, measure, model_sizes
from blockyard.ask.look import look
from blockyard.ask.measure import Measurement, Prepared, RunBesideOthers, prepare, rate_setting
from blockyard.ask.subject import Setting
from blockyard.cli import main
from blockyard.config.size_matching import ModelSizes
from blockyard.engine.data_reader import DataReader
from blockyard.sweep.cell.states import CellState
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import Variant
from tests.ask import files

RUN = MeasuredRun(start=1.0, step=0.05, evaluation=0.1, saving=0.0, total=160, steps_per_epoch=5)


def test_arms_of_optimizers_keep_their_own_rates(tmp_path: Path) -> None:
    path = files.write_texts(tmp_path)
    question = answer.FileQuestion(path, "", None, [], 1.0, tmp_path / "x.yaml", "")
    arms = {"adamw": ["optimizer=adamw"], "muon": ["optimizer=muon"]}
    question_draft = answer.draft_of(question, look(path, {}, tmp_path), arms)
    assert question_draft.varied == {"optimizer"}
    assert not any(setting.key == "optimizer.lr" for setting in question_draft.settings)
    prepared = prepare(question_draft, tmp_path, (), DataReader())
    assert rate_setting(prepared, RUN, 1.0, print) is None


def _fixed_noise(prepared: Prepared, run: MeasuredRun, *_: Any) -> Measurement:
    names = list(prepared.draft.arms)
    return Measurement(
        metric="test/accuracy",
        direction="max",
        run=run,
        config=prepared.config,
        splits=prepared.splits,
        parallel=2,
        beside=dict.fromkeys(names, RunBesideOthers(1.5, 2.0)),
        steps=20,
        scores={name: [0.6 + 0.05 * number, 0.64 + 0.05 * number] for number, name in enumerate(names)},
        baselines={"majority": 0.5, "tf_idf": 0.97},
    )


def test_the_time_beside_others_is_that_of_the_short_run() -> None:
    """A run of the same steps takes as long again; a longer one more by the time of its steps."""
    alone = RUN.start + 20 * RUN.step
    beside = RunBesideOthers.of(0.12, 9.0, RUN, alone)
    assert beside.slower * alone + beside.more == pytest.approx(9.0)
    longer = alone + 30 * RUN.step
    assert beside.slower * longer + beside.more == pytest.approx(9.0 + 30 * 0.12)


@pytest.fixture
def fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, where measuring takes no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answer, "first_steps", lambda *_: RUN)
    monkeypatch.setattr(answer, "rate_setting", lambda *_: Setting("optimizer.lr", 0.002, "a fixed one"))
    monkeypatch.setattr(answer, "measure_noise", _fixed_noise)
    return tmp_path


def test_every_choice_has_its_reason(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_texts(fixed)
    claim = 'does "rotary" beat learned: yes or no?'
    assert main(["ask", "texts.tsv", claim, "arms=rope,learned", "hours=0.05", "model.dim=32"]) == 0
    text = (fixed / "texts.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert content["claim"] == claim
    assert content["arms"] == {"rope": ["position=rope"], "learned": ["position=learned"]}
    assert content["baseline"] == "rope"
    assert {"data.label=kind", "tokenizer=word", "optimizer.lr=0.002", "model.dim=32"} <= set(content["base"])
    assert content["seeds"]["until"] == "decided"
    assert content["margin"] > 0
    base = text.partition("base:\n")[2].partition("baseline:")[0].splitlines()
    bare = [line for line in base if "  # " not in line]
    assert bare == ["  - data.path=texts.tsv"]
    printed = capsys.readouterr().out
    assert "on validation, tf_idf 0.97, majority 0.5; the arms after 20 steps: rope 0.62, learned 0.67" in printed
    assert "init.from=hf:NAME" in re.sub(r"\s+", " ", printed)
    assert "texts.yaml; blockyard sweep texts.yaml runs it" in printed
    most = content["seeds"]["most"]
    assert f"if learned stays better by 0.05, {most} seeds do not decide" in re.sub(r"\s+", " ", printed)


def test_a_plan_accepts_the_file(fixed: Path) -> None:
    files.write_numbers(fixed)
    assert main(["ask", "numbers.csv", "hours=0.02"]) == 0
    reader = DataReader()
    plan = make_plan(Path("numbers.yaml"), outputs=str(fixed / "outputs"), data=reader)
    assert [arm.name for arm in plan.arms] == ["none", "attention"]
    assert not plan.refused
    config = plan.variants["attention"].config
    assert config["model"]["dim"] == 32  # of the recipe
    assert config["data"]["batch_size"] == 4
    assert config["trainer"]["max_steps"] < RUN.total
    question = Path("numbers.yaml").read_text(encoding="utf-8").splitlines()
    assert question[0] == "# Attention between the columns predicts better than each column by itself"


def test_a_model_is_halved_where_the_hours_are_short(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of half the width takes a quarter of the time; the rate carries over, and the plan accepts the file."""

    def first_steps(prepared: Prepared, _say: Any) -> MeasuredRun:
        return replace(RUN, step=RUN.step * (prepared.config["model"]["dim"] / 16) ** 2, evaluation=0.01, start=0.1)

    monkeypatch.setattr(answer, "first_steps", first_steps)
    files.write_texts(fixed)
    assert main(["ask", "texts.tsv", "hours=0.0185"]) == 0
    plan = make_plan(Path("texts.yaml"), outputs=str(fixed / "outputs"))
    config = plan.variants["none"].config
    assert config["model"]["dim"] == 32
    assert plan.variants["none"].choices["parametrization"] == "mup"
    assert config["parametrization"]["base_dim"] == 64


def _steps_as_long_as_the_model_is_large(prepared: Prepared, _say: Any) -> MeasuredRun:
    """Return the times of a run whose step takes a millionth of a second for each parameter."""
    trainer = prepared.config["trainer"]
    parameters = ModelSizes().measure(prepared.config, "params")
    assert parameters is not None
    # Without a limit in steps these are eight epochs, whatever the size.
    total = trainer["max_steps"] or 160
    return MeasuredRun(0.1, parameters * 1e-6, 0.01, 0.0, total, 20)


@pytest.fixture
def many_tokens(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text whose tokens are enough for a model of four times the recipe's parameters."""
    monkeypatch.setattr(answer, "first_steps", _steps_as_long_as_the_model_is_large)
    monkeypatch.setattr(model_sizes, "TOKENS_OF_PARAMETER", 0.001)
    return files.write_play(fixed)


def _planned(folder: Path, *arguments: str) -> Variant:
    """Return the baseline of the sweep file that `ask` writes for play.txt."""
    (folder / "play.yaml").unlink(missing_ok=True)
    assert main(["ask", "play.txt", "data.context=32", "trainer.max_steps=200", *arguments]) == 0
    return make_plan(Path("play.yaml"), outputs=str(folder / "outputs")).variants["none"]


def test_the_model_is_larger_where_the_hours_are_long(many_tokens: Path) -> None:
    """All seeds of the recipe's model fit before; its rate carries over, and the arms have one shape."""
    folder = many_tokens.parent
    small = _planned(folder, "hours=1")
    large = _planned(folder, "hours=30")
    sizes = ModelSizes()
    base = sizes.measure(small.config, "params")
    grown = sizes.measure(large.config, "params")
    assert base is not None
    assert grown is not None
    assert 2 <= grown / base <= model_sizes.MOST_GROWTH * 1.1
    assert "parametrization" not in small.choices
    assert large.choices["parametrization"] == "mup"
    assert large.config["parametrization"]["base_dim"] == small.config["model"]["dim"]
    assert large.config["optimizer"] == small.config["optimizer"]
    text = (folder / "play.yaml").read_text(encoding="utf-8")
    reasons = [line for line in text.splitlines() if f"{grown:,} parameters, as many as" in line]
    assert len(reasons) == 1
    assert f"before {base:,}" in reasons[0]
    other = make_plan(Path("play.yaml"), outputs=str(folder / "outputs")).variants["rope"]
    assert other.config["model"]["dim"] == large.config["model"]["dim"]


@pytest.mark.parametrize("typed", ["model.dim=64", "parametrization=mup", "arms=model.depth=1,model.depth=2"])
def test_a_size_that_is_typed_stays(many_tokens: Path, typed: str) -> None:
    (many_tokens.parent / "play.yaml").unlink(missing_ok=True)
    assert main(["ask", "play.txt", "hours=30", "data.context=32", "trainer.max_steps=200", typed]) == 0
    assert "parameters, as many as" not in (many_tokens.parent / "play.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("room", "tokens_of_parameter", "growth", "limit"),
    [
        (9.0, 1e-6, 3, "the hours have room for"),
        (1e6, 1e-6, 16, "a learning rate carries over to"),
        (3.0, 1e-6, 0, ""),  # for less than twice the model
        (1e6, 20, 0, ""),  # so few tokens are enough for a much smaller one
    ],
)
def test_hours_data_and_rate_limit_the_size(
    many_tokens: Path,
    monkeypatch: pytest.MonkeyPatch,
    room: float,
    tokens_of_parameter: float,
    growth: float,
    limit: str,
) -> None:
    """The recipe limits the steps, which grow with the model: nine times the time are for three times the model."""
    monkeypatch.setattr(model_sizes, "TOKENS_OF_PARAMETER", tokens_of_parameter)
    folder = many_tokens.parent
    question = answer.FileQuestion(many_tokens, "", None, ["data.context=32"], 1.0, folder / "x.yaml", "")
    prepared = prepare(answer.draft_of(question, look(many_tokens, {}, folder), None), folder, (), DataReader())
    models = list(model_sizes.larger_models(prepared, (), (), room))
    if not growth:
        assert not models
        return
    settings = {setting.key: setting for setting in models[0]}
    base = ModelSizes().measure(prepared.config, "params")
    assert base is not None
    reason = settings["model.dim"].reason
    assert limit in reason
    assert int(reason.partition(" ")[0].replace(",", "")) == pytest.approx(growth * base, rel=0.1)
    grown = settings["trainer.max_steps"].value / prepared.config["trainer"]["max_steps"]
    assert grown == pytest.approx(growth, rel=0.01)


def _numbers_with(folder: Path, test_label: str) -> Prepared:
    folder.mkdir()
    path = files.write_numbers(folder, test_label=test_label)
    question = answer.FileQuestion(path, "", None, ["model.depth=1"], 0.01, folder / "x.yaml", "")
    return prepare(answer.draft_of(question, look(path, {}, folder), None), folder, (), DataReader())


def test_noise_is_measured_on_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of the short runs, and the simple models: with test labels of one class alone majority would be 1."""
    state = CellState("done", metrics={"val/accuracy": 0.7, "test/accuracy": 0.9}, seconds=1.0)
    monkeypatch.setattr(measure, "run_plan", lambda *_, **__: 0)
    monkeypatch.setattr(measure, "read_state", lambda *_: state)
    prepared = _numbers_with(tmp_path / "table", "small")
    measurement = measure.measure_noise(prepared, RUN, 0.01, tmp_path, (), print)
    assert measurement.metric == "test/accuracy"
    assert measurement.scores == {"none": [0.7, 0.7], "attention": [0.7, 0.7]}
    validation = prepared.splits.validation
    target = validation.batch(torch.arange(len(validation)), None).target
    assert isinstance(target, Tensor)
    assert measurement.baselines["majority"] == pytest.approx(float(target.bincount().max()) / len(target))
    assert measurement.baselines["majority"] < 0.9


@pytest.mark.full
def test_no_choice_looks_at_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that differ in the labels of their test rows alone have the same scores and the same simple models."""
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.0)
    measurements = []
    for label in ("small", "large"):
        prepared = _numbers_with(tmp_path / label, label)
        measurements.append(measure.measure_noise(prepared, RUN, 0.01, tmp_path / label, (), print))
    first, second = measurements
    assert first.scores == second.scores
    assert first.baselines == second.baselines
    assert {"majority", "linear"} <= set(first.baselines)


def test_what_the_user_typed_stays(fixed: Path) -> None:
    files.write_numbers(fixed)
    assert (
        main(["ask", "numbers.csv", "hours=0.5", "optimizer.lr=0.1", "data.batch_size=16", "trainer.max_steps=30"]) == 0
    )
    plan = make_plan(Path("numbers.yaml"), outputs=str(fixed / "outputs"))
    config = plan.variants["none"].config
    assert config["optimizer"]["lr"] == 0.1
    assert config["data"]["batch_size"] == 16
    assert config["trainer"]["max_steps"] == 30


def test_the_sample_of_a_large_table_lies_beside_the_file(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockyard.ask import sample

    path = files.write_texts(fixed, count=2000)
    monkeypatch.setattr(sample, "MOST_BYTES", 1000)
    monkeypatch.setattr(sample, "SAMPLED_BYTES", path.stat().st_size // 4)
    assert main(["ask", "texts.tsv", "hours=0.05"]) == 0
    text = (fixed / "texts.yaml").read_text(encoding="utf-8")
    assert "data.path=texts-sample.tsv" in text
    assert "of 2,000 rows" in text
    make_plan(Path("texts.yaml"), outputs=str(fixed / "outputs"), data=DataReader())


@pytest.mark.parametrize(
    "text", ["yes", "null", "a: b", "a #b", "- a", "é?", "0x1", "plain", "two words, no more", "'"]
)
def test_a_scalar_is_read_back(text: str) -> None:
    question = draft.SweepDraft(text, (Setting("name", "x"),), {"a": ["b=c"], "d": ["e=[1,2]"]})
    content = yaml.safe_load(question.text())
    assert content["claim"] == text
    assert content["arms"] == {"a": ["b=c"], "d": ["e=[1,2]"]}


@pytest.mark.full
def test_from_a_file_to_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_texts(tmp_path, count=400)
    arguments = ["model.dim=16", "model.heads=2", "data.context=16", "logger=none"]
    code = main(["ask", "texts.tsv", "does order matter", "arms=none,rope", "hours=0.05", *arguments, "--run"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "measuring: the time of a step" in captured.err
    assert "does order matter" in captured.out
    assert (tmp_path / "outputs" / "sweeps" / "texts" / "report.html").is_file()
