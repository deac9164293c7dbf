"""Every registered component of every family: its run, killed in the middle, ends with the same bits."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from blockyard.config.choices import catalog
from blockyard.runs.checkpoint import newest_good
from tests.battery import run_catalogue
from tests.battery.attempts import attempt, copy_at, run_folder, strike, wait_for_processes
from tests.battery.cases import battery, cases
from tests.battery.run_catalogue import Choice
from tests.battery.same_run import assert_same_run
from tests.battery.table import BATTERIES
from tests.support.tiny import configured

pytestmark = battery("resume_components")

SAVED, LEFT = 6, 7  # the step of the checkpoint, and the one after which the process ends


@pytest.mark.sampled(100)
@pytest.mark.parametrize("choice", cases(run_catalogue.registered(), short=3, names="=".join))
def test_a_component_resumes_with_the_same_bits(choice: Choice, data_files: Path, tmp_path: Path) -> None:
    overrides = (*run_catalogue.overrides(*choice, data_files), f"callbacks.checkpoint.every={SAVED}")
    whole = attempt(configured(*overrides, f"outputs={tmp_path / 'whole'}"), before=copy_at([LEFT], tmp_path))
    assert whole.code == 0, whole.output
    folder = run_folder(tmp_path / str(LEFT))
    assert folder.status.state == "interrupted"
    assert newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed).step == SAVED
    resumed = attempt(configured(*overrides, f"outputs={tmp_path / str(LEFT)}"))
    assert resumed.code == 0, resumed.output
    assert folder.facts()["start"]["checkpoint"] == "last.ckpt"
    assert_same_run(run_folder(tmp_path / str(LEFT)), run_folder(tmp_path / "whole"))
    assert wait_for_processes([whole, resumed]) == []
    shutil.rmtree(tmp_path)


@pytest.mark.full
def test_loader_workers_end_with_a_killed_run(data_files: Path, tmp_path: Path) -> None:
    """Also where the program's start method is "forkserver", as it is in these tests and as of Python 3.14."""
    overrides = (*run_catalogue.overrides("optimizer", "adamw", data_files), "trainer.num_workers=2")
    killed = attempt(configured(*overrides, f"outputs={tmp_path}"), before=strike(LEFT, signal.SIGKILL))
    assert killed.killed, killed.output
    assert wait_for_processes([killed]) == []


def test_every_name_of_the_catalogue_is_a_case_and_is_in_its_own_run(data_files: Path) -> None:
    """The number that is required is that of the catalogue, and a case's run holds the component that it names."""
    on_disk = [(path.parent.name, path.stem) for path in catalog.conf_dir().glob("*/*.yaml")]
    on_disk = [choice for choice in on_disk if choice[0] not in catalog.OUTSIDE_RUN]
    assert sorted(run_catalogue.registered()) == sorted(on_disk)
    assert BATTERIES["resume_components"].required == len(on_disk)
    for family, name in on_disk[::40]:
        overrides = run_catalogue.overrides(family, name, data_files)
        assert configured(*overrides)[1][family] == name


def test_a_component_that_draws_by_its_process_is_caught(data_files: Path, tmp_path: Path) -> None:
    """The planted bug: random streams that are not set anew in each step."""

    def left_alone() -> None:
        from blockyard.engine.callbacks import loop

        loop.reseed = lambda *_: None

    overrides = (*run_catalogue.overrides("optimizer", "adamw", data_files), "model.dropout=0.2")
    whole = attempt(configured(*overrides, f"outputs={tmp_path / 'whole'}"), before=left_alone)
    run = configured(*overrides, f"outputs={tmp_path / 'killed'}", f"callbacks.checkpoint.every={SAVED}")

    def both() -> None:
        left_alone()
        strike(LEFT, signal.SIGKILL)()

    assert whole.code == 0
    assert attempt(run, before=both).killed
    assert attempt(run, before=left_alone).code == 0
    with pytest.raises(AssertionError):
        assert_same_run(run_folder(tmp_path / "killed"), run_folder(tmp_path / "whole"))
