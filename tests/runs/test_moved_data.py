"""A run is continued on its data at another path, and on no other data."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.atomic_files import read_json, read_yaml
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.resume import reopen
from tests.support.engine_runs import assert_same_bits, folder, killed_at, run

LINES = "to be, or not to be, that is the question.\n" * 60
TEXT = (
    *("data=text_file", "data.context=8", "tokenizer=byte", "model=decoder", "head=token", "objective=next_token"),
    *("trainer.max_steps=4", "trainer.eval_every=2", "data.batch_size=4"),
)


def file_overrides(file: Path) -> tuple[str, ...]:
    file.parent.mkdir(exist_ok=True)
    file.write_text(LINES)
    return (*TEXT, f"data.path={file}")


def files(run_folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run_folder.path.rglob("*") if path.is_file()}


def moved(tmp_path: Path) -> tuple[Path, Path]:
    """Move the file of the data, and write another one of its name and size."""
    (tmp_path / "new").mkdir()
    new = (tmp_path / "old" / "input.txt").rename(tmp_path / "new" / "input.txt")
    other = tmp_path / "other" / "input.txt"
    other.parent.mkdir()
    other.write_text(LINES.replace("question", "QUESTION"))
    return new, other


def test_other_data_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    run_folder = run(tmp_path / "out", *file_overrides(tmp_path / "old" / "input.txt"))
    new, other = moved(tmp_path)
    with pytest.raises(AlreadyDoneError):
        reopen(run_folder.path, [f"data.path={new}"])
    with pytest.raises(UserError, match="was trained on other data"):
        reopen(run_folder.path, [f"data.path={other}"])
    run_folder = RunFolder.open(run_folder.path)
    with run_folder.lock():
        run_folder.set_status("interrupted", "Ctrl-C at step 2", step=2, exit_code=130)
    before = files(run_folder)
    for overrides, message in (
        ([], "nothing at"),
        ([f"data.path={other}"], "was trained on other data"),
        ([f"data.path={tmp_path / 'none.txt'}"], "nothing at"),
        (["data.path=null"], "cannot become"),
        ([f"data.path={new}", "data.context=16"], "cannot become 16"),
        ([f"data.path={new}", "trainer.devices=2"], "the other processes of a run read its own"),
    ):
        with pytest.raises(UserError, match=message):
            reopen(run_folder.path, overrides)
    assert files(run_folder) == before
    with reopen(run_folder.path, [f"data.path={new}"]) as again:
        assert again.resumes
        assert again.config["data"]["path"] == str(new)
        assert again.identity == run_folder.identity
    assert read_yaml(run_folder.path / "config.yaml")["data"]["path"] == str(tmp_path / "old" / "input.txt")


@pytest.mark.full
def test_a_moved_file_continues_the_run_to_the_same_bits(tmp_path: Path) -> None:
    config = file_overrides(tmp_path / "old" / "input.txt")
    killed_at(3, tmp_path / "out", *config)
    stopped = RunFolder.open(next((tmp_path / "out").glob("*/s0")))
    new, _ = moved(tmp_path)
    with reopen(stopped.path, [f"data.path={new}"]) as again:
        assert train(again, resume=again.resumes) == 0
    assert read_json(again.path / "run.json")["identity"] == stopped.identity
    new.rename(tmp_path / "old" / "input.txt")
    with pytest.raises(AlreadyDoneError):
        folder(tmp_path / "out", *config)
    assert_same_bits(again, run(tmp_path / "whole", *config))


def test_a_run_that_recorded_no_fingerprint_is_refused(tmp_path: Path) -> None:
    config = file_overrides(tmp_path / "input.txt")
    with folder(tmp_path / "out", *config) as run_folder:
        run_folder.set_status("interrupted", "Ctrl-C", step=0, exit_code=130)
    new = (tmp_path / "input.txt").rename(tmp_path / "moved.txt")
    with pytest.raises(UserError, match="recorded no fingerprint of its data to compare with; put a link to the data"):
        reopen(run_folder.path, [f"data.path={new}"])
