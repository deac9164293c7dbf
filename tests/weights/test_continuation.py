"""A finished run trained longer: a new run that goes on where it ended, to the last bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from blockyard.commands.train import continue_run
from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.start import create_run
from blockyard.weights import continuation
from blockyard.weights.continuation import is_longer, longer
from tests.support.engine_runs import folder, rows, run, state
from tests.support.fork import forked
from tests.support.tiny import SHORTEST, steps

pytestmark = pytest.mark.xdist_group("continuation")  # most tests share one run

CONSTANT = ("schedule=constant", "schedule.warmup=2", *steps(12, 4), "trainer.max_epochs=null")
LONGER = ["trainer.max_steps=20"]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("parent"), *CONSTANT)


@pytest.fixture(scope="module")
def further(parent: RunFolder) -> RunFolder:
    return trained(parent, *LONGER)


def run_folder(parent: RunFolder, *overrides: str) -> RunFolder:
    """The folder of the longer run, locked, as the command makes it."""
    plain, choices, _ = longer(str(parent.path), overrides)
    return create_run(plain, command=["test"], choices=choices)


def trained(parent: RunFolder, *overrides: str) -> RunFolder:
    with run_folder(parent, *overrides) as longer_run:
        assert train(longer_run, resume=longer_run.resumes) == 0
    return longer_run


@pytest.mark.full
def test_it_goes_on_as_a_run_of_that_length_would(parent: RunFolder, further: RunFolder, tmp_path: Path) -> None:
    plain = run(tmp_path, *CONSTANT, *LONGER)
    ours, theirs = state(further), state(plain)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0, msg=name)
    assert rows(further) == rows(plain)
    assert len({parent.identity, further.identity, plain.identity}) == 3
    assert further.summary()["steps"] == 20


def test_flops_and_seconds_are_budgets_too(parent: RunFolder) -> None:
    summary = parent.summary()
    flops = summary["flops_per_sample"]["training"] * summary["samples"]
    config, _, line = longer(str(parent.path), ["trainer.max_steps=null", f"trainer.max_flops={2 * flops}"])
    assert line.endswith("at step 12 of 24")
    assert config["trainer"]["max_flops"] == 2 * flops
    _, _, line = longer(str(parent.path), ["trainer.max_steps=null", "trainer.max_seconds=1000"])
    assert "at step 12 for " in line


def test_its_parent_is_recorded(parent: RunFolder, further: RunFolder) -> None:
    facts = further.facts()["parent"]
    assert facts["run"] == parent.name
    assert facts["step"] == 12
    assert further.config["init"]["parent"] == str(parent.path)
    assert identity(further.config) == identity(
        further.config | {"init": further.config["init"] | {"parent": "elsewhere"}}
    )
    assert parent.finished
    assert parent.summary()["steps"] == 12


def test_a_kill_changes_nothing_of_it(parent: RunFolder, further: RunFolder, tmp_path: Path) -> None:
    """Killed before its first step, and in between."""
    own = run(tmp_path, *CONSTANT)
    with run_folder(own, *LONGER):
        pass  # no checkpoint yet

    def work() -> int:
        original = LoopCallback.on_train_batch_start

        def strike(self: LoopCallback, *arguments: object) -> None:
            original(self, *arguments)
            if self.state.step == 17:
                os.kill(os.getpid(), signal.SIGKILL)

        LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]
        with run_folder(own, *LONGER) as again:
            return train(again, resume=again.resumes)

    assert forked(work) == -signal.SIGKILL
    again = trained(own, *LONGER)
    for name, value in state(again).items():
        torch.testing.assert_close(value, state(further)[name], rtol=0, atol=0, msg=name)
    assert rows(again) == rows(further)


def test_a_stable_phase_decays_at_the_end_of_the_longer_run(parent: RunFolder) -> None:
    decayed = trained(parent, *LONGER, "schedule=wsd", "schedule.warmup=2", "schedule.decay=8", "schedule.shape=linear")
    assert decayed.summary()["steps"] == 20
    (group, *_) = read(decayed.checkpoints / "last.ckpt")["optimizer_states"][0]["param_groups"]
    assert group["lr"] == pytest.approx(group["initial_lr"] * (1 - 7 / 8))  # of step 19, the last of 8 that decay
    assert decayed.facts()["choices"]["schedule"] == "wsd"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["trainer.max_steps=20", "optimizer.lr=0.5"], "goes on with another budget"),
        (["trainer.max_steps=20", "model.dim=32"], "model.dim is 16 and cannot become 32"),
        (["trainer.max_steps=20", "seed=3"], "it numbers the replicate"),
        (["trainer.max_steps=11"], "has done 12 steps, and this budget ends after 11"),
        (["trainer.max_steps=20", "trainer.max_epochs=0"], "max_epochs"),
        (["trainer.max_steps=null", "trainer.max_seconds=0.001"], r"has trained for .* s, and this budget ends after"),
        (["trainer.max_steps=null", "trainer.max_flops=1e7"], r"this budget ends after \d+ \(.*max_flops=1"),
        (["trainer.max_steps=20", "schedule.decay=0.1"], "not a setting"),
        (["trainer.max_steps=20", "schedule=nonsense"], "nonsense"),
    ],
)
def test_anything_but_the_budget_is_refused(parent: RunFolder, overrides: list[str], reason: str) -> None:
    assert is_longer(str(parent.path), overrides)
    with pytest.raises(UserError, match=reason):
        longer(str(parent.path), overrides)


def test_without_another_budget_and_before_the_end_it_is_a_resume(parent: RunFolder, tmp_path: Path) -> None:
    assert not is_longer(str(parent.path), ["trainer.max_steps=12"])
    assert not is_longer(str(parent.path), ["optimizer.lr=0.5"])
    with folder(tmp_path, base=SHORTEST) as queued:
        pass
    assert not is_longer(str(queued.path), LONGER)
    with pytest.raises(UserError, match="cannot be resumed with other settings"):
        continue_run(str(queued.path), LONGER)


def test_a_parent_that_stopped_early_or_has_changed_is_refused(tmp_path: Path) -> None:
    own = run(tmp_path, *CONSTANT)
    with run_folder(own, *LONGER) as longer_run:
        summary = own.summary()
        (own.checkpoints / "last.ckpt").unlink()
        (own.checkpoints / "best.ckpt").rename(own.checkpoints / "last.ckpt")
        with pytest.raises(UserError, match="its last state is not the one"):
            train(longer_run)
    own.write_json("summary.json", summary | {"stopped": "callbacks.early_stopping"})
    with pytest.raises(UserError, match="ended before its budget"):
        longer(str(own.path), LONGER)


def test_only_the_command_names_a_parent(parent: RunFolder) -> None:
    (reason,) = reasons(compose([f"init.parent={parent.path}"]))
    assert "go together" in reason


def test_a_name_means_the_last_run_that_is_shorter_than_the_budget(tmp_path: Path) -> None:
    """Of 10 and 20 epochs of one name, 30 go on from the 20, and 12 with another schedule from the 10."""
    run_folders: list[RunFolder] = []
    for epochs in (10, 20):
        init = {"parent": str(run_folders[-1].path), "parent_sha256": "x"} if run_folders else {}
        config = {"seed": 0, "name": "stable", "outputs": str(tmp_path), "init": init}
        with create_run(config | {"trainer": {"max_epochs": epochs}}) as one:
            run_folders.append(one)
    ten, twenty = run_folders
    for epochs, expected in ((30, twenty), (20, twenty), (12, ten)):
        assert continuation._parent("stable", {"trainer.max_epochs": epochs}, str(tmp_path)).path == expected.path
    assert continuation._parent(twenty.name, {"trainer.max_epochs": 12}, str(tmp_path)).path == twenty.path
