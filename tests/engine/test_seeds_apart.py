"""First weights, the order of the data, and the draws of dropout and augmentation have seeds that vary apart."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path

import pytest
import torch

from blockyard.atomic_files import read_json
from blockyard.config.build import Components
from blockyard.contracts import Batch
from blockyard.engine.data_reader import layout_of
from blockyard.engine.loader import BatchDataset
from blockyard.engine.run import train
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.sweep.cell.execute import STACKED, execute, execute_together
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor.local import together
from tests.support.engine_runs import assert_same_bits, config, folder, killed_at, rows, run
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, configured, steps

pytestmark = pytest.mark.xdist_group("engine_seeds_apart")

STACKABLE = (
    *("data=digits", *ON_CPU, *ONE_LAYER, "data.batch_size=8", "name=stacked", *ONE_BATCH),
    *(*steps(12, 6), "trainer.log_every=4", "optimizer=adamw", "optimizer.lr=0.001"),
)
WITHOUT_DRAWS = ("token_mixer.dropout=0", "data.shift=0")
SHORT = steps(6, 3)


def weights(*overrides: str) -> dict[str, torch.Tensor]:
    """The first weights of a run."""
    plain, _ = config(Path("unused"), *overrides)
    return dict(Components(plain).model(int(plain["seed"])).state_dict())


def batch(number: int, *overrides: str) -> Batch:
    """A training batch of a run."""
    plain, _ = config(Path("unused"), *overrides)
    components = Components(plain)
    splits = components.load()
    layout = layout_of(plain, components, splits)
    return BatchDataset(splits.train, layout, components.objective)[number]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether all tensors are equal to the bit."""
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_first_weights_follow_their_own_seed_and_the_order_the_run_s() -> None:
    assert same(weights("init.seed=7"), weights("init.seed=7", "seed=1"))
    assert same(weights("init.seed=7"), weights("seed=7"))
    assert not same(weights("init.seed=7"), weights("init.seed=8"))
    one, other = batch(0, "init.seed=7"), batch(0, "init.seed=7", "seed=1")
    assert not torch.equal(one.target, other.target)
    assert torch.equal(one.inputs, batch(0).inputs)


def test_the_order_follows_its_own_seed_and_augmentation_the_run_s() -> None:
    one, other = batch(3, "trainer.order_seed=7"), batch(3, "trainer.order_seed=7", "seed=1")
    assert torch.equal(one.target, other.target)
    assert not torch.equal(one.inputs, other.inputs)  # shifted by draws of the run's seed
    still = "data.shift=0"
    assert torch.equal(
        batch(3, "trainer.order_seed=7", still).inputs, batch(3, "trainer.order_seed=7", "seed=1", still).inputs
    )
    assert torch.equal(batch(3, "trainer.order_seed=7", "seed=7").inputs, batch(3, "seed=7").inputs)
    assert not torch.equal(batch(3, "trainer.order_seed=7").target, batch(3, "trainer.order_seed=8").target)
    assert same(weights("trainer.order_seed=7"), weights())


def test_batches_of_equally_many_samples_a_class_follow_the_seed_of_the_order() -> None:
    balanced = "trainer.sampling=balanced"
    one, other = (batch(0, balanced, "trainer.order_seed=5", f"seed={seed}") for seed in (0, 1))
    assert torch.equal(one.target, other.target)
    assert not torch.equal(one.target, batch(0, balanced).target)


def test_seeds_that_are_not_set_leave_the_identity_and_set_ones_change_it() -> None:
    plain, _ = config(Path("unused"))
    assert "init" not in plain
    trainer = {key: value for key, value in plain["trainer"].items() if key != "order_seed"}
    assert plain["trainer"] == trainer | {"order_seed": None}
    before = plain | {"trainer": trainer}  # a config of an earlier release
    assert identity(before) == identity(plain)
    of_seeds = {identity(config(Path("unused"), *extra)[0]) for extra in [("init.seed=0",), ("trainer.order_seed=0",)]}
    assert len(of_seeds | {identity(plain)}) == 3


def test_with_both_fixed_the_seed_moves_dropout_and_augmentation_alone(tmp_path: Path) -> None:
    fixed = (*SHORT, "init.seed=3", "trainer.order_seed=4")
    one, other = (run(tmp_path, *fixed, *WITHOUT_DRAWS, f"seed={seed}") for seed in (0, 1))
    weights_of = [read(run_folder.checkpoints / "last.ckpt")["state_dict"] for run_folder in (one, other)]
    assert same(*weights_of)
    assert rows(one) == rows(other)
    one, other = (run(tmp_path, *fixed, f"seed={seed}") for seed in (0, 1))
    assert rows(one) != rows(other)


def test_a_killed_run_with_seeds_of_its_own_ends_with_the_same_bits(tmp_path: Path) -> None:
    seeds = (*steps(30, 8), "init.seed=3", "trainer.order_seed=4", "seed=2")
    whole = run(tmp_path / "whole", *seeds)
    assert killed_at(21, tmp_path / "killed", *seeds) == -signal.SIGKILL  # in the second epoch
    with folder(tmp_path / "killed", *seeds) as run_folder:
        assert train(run_folder, resume=run_folder.resumes) == 0
    assert_same_bits(run_folder, whole)


def test_runs_that_differ_in_these_seeds_take_their_steps_together(tmp_path: Path) -> None:
    cells: dict[str, list[Task]] = {}
    for place in ("joint", "lone"):
        cells[place] = []
        for seeds in (("init.seed=3",), ("trainer.order_seed=4",), ("init.seed=3", "trainer.order_seed=4", "seed=1")):
            plain, choices = configured(*STACKABLE, f"outputs={tmp_path / place}", *seeds)
            cells[place].append(Task(f"{run_name(plain)}/s{plain['seed']}", plain, choices, ("test",)))
    chosen, reason = together(deque(cells["joint"]), 8)
    assert (len(chosen), reason) == (3, None)
    outcomes: list[Outcome] = []
    execute_together(cells["joint"], outcomes.append)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    for task in cells["lone"]:
        assert execute(task).code == 0
        joint, lone = tmp_path / "joint" / task.key, tmp_path / "lone" / task.key
        assert read_json(joint / "run.json")[STACKED]["together"] > 0
        for row, expected in zip(rows(RunFolder.open(joint)), rows(RunFolder.open(lone)), strict=True):
            assert row == pytest.approx(expected, rel=1e-4)
