"""The sweep file of a question: every choice with its reason, accepted by a dry run, within the hours."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.ask import answer, draft
from blockyard.ask.look import look
from blockyard.ask.measure import Measurement, Prepared, RunBesideOthers, prepare, rate_setting
from blockyard.ask.subject import Setting
from blockyard.cli import main
from blockyard.engine.data_reader import DataReader
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.plan.planner import make_plan
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
    assert "tf_idf 0.97, majority 0.5; the arms after 20 steps: rope 0.62, learned 0.67" in printed
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
