"""Data that cells would refuse is refused before the first cell; a cell that finds bad input has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.data.digits import Digits
from blockyard.runs.index import records
from blockyard.runs.query import parse, select
from blockyard.sweep.cell.execute import execute
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor import build
from tests.sweep.executor_tasks import task_of
from tests.sweep.sweep_runs import plan

REASON = "data.test_size=1000: the test split has 359 samples"
FILE = """\
claim: x
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu{more}]
arms: {{plain: [], other: [{other}]}}
seeds: 2
"""


def written(folder: Path, *, more: str = "", other: str = "norm=rms") -> str:
    (folder / "q.yaml").write_text(FILE.format(more=more, other=other))
    return str(folder / "q.yaml")


@pytest.mark.parametrize("flags", [["--dry-run"], []])
def test_a_base_whose_data_is_too_small_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """The dry run and the sweep end with code 2 and the reason, once."""
    path = written(tmp_path, more=", data.test_size=1000")
    assert main(["sweep", path, f"outputs={tmp_path / 'out'}", *flags]) == 2
    assert capsys.readouterr().err.count(REASON) == 1
    assert not (tmp_path / "out").exists()


def test_an_arm_whose_data_is_too_small_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are to run, as with any other reason."""
    path = written(tmp_path, other="data.test_size=1000")
    assert main(["sweep", path, f"outputs={tmp_path / 'out'}", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "refused: other" in out
    assert REASON in out
    assert "2 to run" in out


def test_a_cell_that_finds_bad_input_has_failed_everywhere(tmp_path: Path) -> None:
    """Its status, the log, the index of runs and the outcome name the state and the reason; --retry starts it."""
    sweep_plan = plan(tmp_path, "data.test_size=1000")
    outcome = execute(task_of(sweep_plan))
    assert outcome.code == 2
    assert str(outcome.reason).startswith(REASON)
    path = sweep_plan.path(sweep_plan.cells[0])
    status = read_json(path / "status.json")
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert status["reason"].startswith(REASON)
    assert REASON in (path / "log.txt").read_text()
    assert [run.run for run in select(records(tmp_path), [parse("state=failed")])] == [sweep_plan.cells[0].run]


def test_a_cell_that_was_refused_starts_when_the_cause_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_plan = plan(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Digits, "load", refuse)
        assert execute(task_of(sweep_plan)).code == 2
    assert execute(task_of(sweep_plan, retry=True)).code == 0


def refuse(data: Digits, tokenizer: object) -> None:
    raise ValueError("no such digits")


def test_a_cause_that_all_cells_share_is_printed_once_and_stops_the_sweep(tmp_path: Path) -> None:
    """After two cells that were refused alike, the other four are not started."""
    sweep_plan = plan(tmp_path, "data.test_size=1000", seeds=(0, 1, 2))
    lines: list[str] = []
    assert run_plan(sweep_plan, build("slurm", {"cluster": "debug"}), say=lines.append) == 1
    text = "\n".join(lines)
    assert text.count(REASON) == 1
    assert "4 cells were not started" in text
    assert len(list(tmp_path.glob("*/s*/config.yaml"))) == 2
