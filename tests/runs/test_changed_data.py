"""A finished run is done for the data that it was trained on, not for what its file holds later."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.runs.changed_data import newest
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor.local import LocalExecutor
from blockyard.sweep.plan.planner import make_plan
from tests.support.engine_runs import folder, run

LINES = "to be, or not to be, that is the question.\n" * 60
TEXT = ("data=text_file", "data.context=8", "tokenizer=byte", "model=decoder", "head=token", "objective=next_token")


@pytest.fixture
def overrides(tmp_path: Path) -> tuple[str, ...]:
    """A run on a file of the user's that is done."""
    file = tmp_path / "input.txt"
    file.write_text(LINES)
    return (*TEXT, f"data.path={file}", "trainer.max_steps=2")


def write(file: Path, text: str) -> None:
    """Write a file later than any run began."""
    file.write_text(text)
    os.utime(file, (time.time() + 60, time.time() + 60))


def test_a_file_with_other_content_is_refused(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run(tmp_path / "out", *overrides)
    with pytest.raises(AlreadyDoneError):
        folder(tmp_path / "out", *overrides)
    write(tmp_path / "input.txt", LINES)  # written again, and the same
    with pytest.raises(AlreadyDoneError):
        folder(tmp_path / "out", *overrides)
    write(tmp_path / "input.txt", LINES.upper())
    with pytest.raises(UserError, match="its data changed since it began") as refused:
        folder(tmp_path / "out", *overrides)
    assert not isinstance(refused.value, AlreadyDoneError)
    run(tmp_path / "out", *overrides, "force=true")
    write(tmp_path / "input.txt", LINES.upper())
    with pytest.raises(AlreadyDoneError):
        folder(tmp_path / "out", *overrides)


@pytest.mark.parametrize("pattern", ["part-*.txt", "part-?.txt", "part-[0-9].txt", "part-{0..3}.txt"])
def test_files_that_a_pattern_names_are_looked_at(pattern: str, tmp_path: Path) -> None:
    write(tmp_path / "part-1.txt", LINES)
    assert newest({"path": str(tmp_path / pattern)}) > time.time()


def test_a_file_that_an_older_one_replaced_is_looked_at(tmp_path: Path) -> None:
    """As `mv`, `cp -p` and `rsync -t` leave it: with the time of the file that took its place."""
    began = time.time() - 1
    (tmp_path / "old.txt").write_text(LINES.upper())
    os.utime(tmp_path / "old.txt", (began - 1000, began - 1000))
    (tmp_path / "old.txt").replace(tmp_path / "input.txt")
    assert newest({"path": str(tmp_path / "input.txt")}) > began


@pytest.mark.full
def test_a_sweep_refuses_it_before_it_starts_anything(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    question = tmp_path / "norms.yaml"
    base = ", ".join(
        f'"{override}"' for override in (*overrides, "debug=fast", "logger=none") if not override.startswith("trainer")
    )
    question.write_text(f"claim: Nothing\nbase: [{base}]\narms: {{a: [norm=layer], b: [norm=rms]}}\nseeds: 2\n")
    for seeds, text, code in ((1, LINES, 0), (1, LINES, 0), (2, LINES.upper(), 2)):
        write(tmp_path / "input.txt", text)
        plan = make_plan(question, outputs=str(tmp_path / "out"), overrides=[], seeds=seeds)
        executor = LocalExecutor(workers=1, gpus=None, threads=1)
        if code:
            with pytest.raises(UserError, match="its data changed"):
                run_plan(plan, executor, say=str, live=False)
            assert len(list((tmp_path / "out").glob("*/s*"))) == 2
        else:
            assert run_plan(plan, executor, say=str, live=False) == 0
