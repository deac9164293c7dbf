"""Runs of different data or objectives never get into one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.load.from_runs import by_task
from blockyard.report.load.run_record import LoadedRun
from tests.report.report_runs import ARMS, run, sweep

OTHER = {"data": {"fingerprint": "e" * 64, "train": 10, "validation": 10, "test": 10}}


def record(data: str, objective: str, fingerprint: str | None, seed: int = 0) -> LoadedRun:
    facts = {"choices": {"data": data, "objective": objective}}
    summary = {"data": {"fingerprint": fingerprint}} if fingerprint else {}
    return LoadedRun("", seed, Path("x"), "done", facts=facts, summary=summary)


def names(records: list[LoadedRun], *by: str) -> list[str]:
    return [str(task) for task in by_task(records, by)]


def test_tasks_are_data_and_objective() -> None:
    digits = [record("digits", "classify", "aaaaaaaaaa", seed) for seed in range(3)]
    mail = [record("table", "classify", fingerprint * 10) for fingerprint in ("b", "c")]
    values = record("table", "regress", "b" * 10)
    assert names([*mail, *digits, values]) == [
        "data=digits objective=classify (3 runs)",
        "data=table objective=classify fingerprint bbbbbbbb (1 run)",
        "data=table objective=classify fingerprint cccccccc (1 run)",
        "data=table objective=regress (1 run)",
    ]


def test_a_run_that_has_not_read_its_data_goes_with_its_choice() -> None:
    waiting = record("digits", "classify", None)
    assert names([waiting, record("digits", "classify", "a" * 10)]) == ["data=digits objective=classify (2 runs)"]
    assert len(names([waiting, record("table", "classify", "b" * 10)])) == 2
    assert names([waiting]) == ["data=digits objective=classify (1 run)"]


def test_what_is_compared_on_purpose_is_one_task() -> None:
    small, large = record("digits", "classify", "a" * 10), record("digits", "classify", "b" * 10)
    assert len(names([small, large])) == 2
    assert len(names([small, large], "data.train_size")) == 1
    assert len(names([small, record("digits", "masked_token", "a" * 10)], "objective")) == 1
    assert len(names([small, large], "objective")) == 2


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    for seed in range(3):
        run(tmp_path, "block=pre_norm", "name=digits", seed=seed, figure=0.95 + 0.001 * seed)
        run(tmp_path, "block=post_norm", "name=digits", seed=seed, figure=0.90 + 0.002 * seed)
        run(tmp_path, "block=sandwich", "name=digits", seed=seed, figure=0.92)
    for seed in range(3):
        run(tmp_path, "position=none", "name=reviews", seed=seed, figure=0.3, summary=OTHER)
        run(tmp_path, "position=alibi", "name=film", seed=seed, figure=0.4 + 0.01 * seed, summary=OTHER)
    return tmp_path


def test_a_comparison_is_about_one_task_and_names_the_others(mixed: Path) -> None:
    first = compare(mixed, changes=False)
    assert {arm.name for arm in first.arms} == {"block=pre_norm", "block=post_norm", "block=sandwich"}
    assert len(first.tasks) == 2
    assert any("2 tasks" in line and "(6 runs)" in line for line in first.warnings)
    second = compare(mixed, changes=False, task=1)
    assert {arm.name for arm in second.arms} == {"reviews position=none", "film position=alibi"}
    assert not any("data (fingerprint)" in line for line in (*first.warnings, *second.warnings))
    with pytest.raises(UserError, match="task=2: there are 2, from 0"):
        compare(mixed, task=2)


def test_the_command_shows_every_task(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(mixed)]) == 0
    text = capsys.readouterr().out
    assert text.index("block=post_norm") < text.index("film position=alibi")
    assert text.count("more is better") == 2
    assert main(["compare", str(mixed), "--runs", str(mixed / "runs.csv"), "--markdown", str(mixed / "t.md")]) == 0
    assert "runs-2.csv" in capsys.readouterr().err
    assert "film" not in (mixed / "runs.csv").read_text()
    assert "film" in (mixed / "runs-2.csv").read_text()
    assert (mixed / "t-2.md").is_file()


def test_a_flag_that_one_task_lacks_leaves_it_out(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(mixed), "--baseline", "film"]) == 0
    printed = capsys.readouterr()
    assert "film position=alibi" in printed.out
    assert "a task is left out: baseline=film" in printed.err
    assert main(["compare", str(mixed), "--baseline", "nobody"]) == 2
    assert "baseline=nobody" in capsys.readouterr().err
    assert main(["compare", str(mixed / "nowhere")]) == 2


def test_a_sweep_asks_its_own_question(tmp_path: Path) -> None:
    """The arms of one sweep are what its file says, also where it compares data; the page warns of it."""
    values: dict[str, dict[int, Any]] = {arm: dict.fromkeys(range(3), 0.9) for arm in ARMS}
    plan = sweep(tmp_path, ARMS, values, summaries={"pre": OTHER})
    result = compare(plan, changes=False)
    assert len(result.arms) == 3
    assert any("data (fingerprint)" in line for line in result.warnings)
