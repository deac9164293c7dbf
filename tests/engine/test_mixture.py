"""Runs on a mixture whose weights change: resumed to the bit, the same over processes, and what is recorded."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from blockyard.config.build import Components
from blockyard.contracts import Batch, Mixed
from blockyard.data.splits import mixed
from blockyard.data.splits.mixed import MixedOrder
from blockyard.engine.loader import BatchDataset, Layout
from blockyard.runs.predictions_file import TEST, read_predictions
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run
from tests.support.tiny import ON_CPU, ONE_LAYER, configured, steps

STEPS = 8
BASE = (
    *(*ON_CPU, *ONE_LAYER, *steps(STEPS, 4), "trainer.log_every=1", "callbacks.checkpoint.every=3", "data=mixture"),
    *("data.parts={easy: associative_recall, hard: associative_recall}", "data.batch_size=8", "tokenizer=symbols"),
    *("data.members.easy.length=16", "data.members.easy.pairs=2", "data.members.easy.symbols=16"),
    *("data.members.hard.length=16", "data.members.hard.pairs=4", "data.members.hard.symbols=16"),
    *("data.members.easy.samples=40", "data.members.easy.eval_samples=24", "data.members.hard.samples=40"),
    *("data.members.hard.eval_samples=20", "data.eval_batch_size=16", "position=learned"),
    *("model=decoder", "head=token", "objective=answer"),
)
SCHEDULE = "data.schedule=[{at: 0.1, weights: {easy: 1, hard: 0}}, {at: 0.9, weights: {easy: 0, hard: 1}}]"
RAMP = ("trainer.first_batch=2", "trainer.batch_warmup=0.5")


def batches(world: int = 1, micro_batches: int = 1) -> list[list[Batch]]:
    """The micro-batches of each step over all processes."""
    components = Components(configured(*BASE, SCHEDULE)[0])
    split = components.load().train
    assert isinstance(split, Mixed)
    layout = {"seed": 1, "samples": 80, "batch_size": 8, "micro_batches": micro_batches, "world": world}
    plan = split.plan(1, STEPS, lambda step: 8)
    datasets = [
        BatchDataset(split, Layout(**layout, rank=rank, planned=plan), components.objective) for rank in range(world)
    ]
    parts = range(micro_batches)
    return [[each[step * len(parts) + part] for part in parts for each in datasets] for step in range(STEPS)]


@pytest.mark.parametrize("sizes", [{"micro_batches": 2}, {"world": 2}, {"world": 2, "micro_batches": 2}])
def test_processes_and_micro_batches_share_a_step(sizes: dict[str, int]) -> None:
    """Together they take the samples of the step, each once."""
    for (whole,), parts in zip(batches(), batches(**sizes), strict=True):
        assert whole.sample is not None
        assert whole.slice is not None
        for number, part in enumerate(parts):
            chosen = torch.arange(number, 8, len(parts))
            assert torch.equal(part.sample, whole.sample[chosen])
            assert torch.equal(part.inputs, whole.inputs[chosen])
            assert torch.equal(part.slice, whole.slice[chosen])
        assert int(whole.sample.max()) < 80
        assert torch.equal(whole.slice, (whole.sample >= 40).long())


@pytest.mark.sampled(100)
@pytest.mark.parametrize("options", [(), ("trainer.num_workers=1", *RAMP)], ids=["plain", "worker"])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Killed while the weights change, between two checkpoints."""
    whole = run(tmp_path / "whole", SCHEDULE, *options, base=BASE)
    assert killed_at(5, tmp_path / "killed", *BASE, SCHEDULE, *options) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", SCHEDULE, *options, base=BASE), whole)
    if not options:
        _records(whole.path)
        constant = run(tmp_path / "constant", "data.weights={easy: 1, hard: 1}", base=BASE)
        assert constant.identity != whole.identity


def _records(path: Path) -> None:
    """What metrics.csv, the summary and the predictions of a run say of its parts."""
    summary = json.loads((path / "summary.json").read_text())
    metrics = summary["metrics"]
    names = {name.partition("@")[0] for name in metrics if name.endswith("@hard")}
    assert names == {name for name in metrics if "@" not in name}
    assert {name: summary["directions"][name] for name in ("test/accuracy@easy", "val/loss@hard")} == {
        "test/accuracy@easy": "max",
        "val/loss@hard": "min",
    }
    predictions = path / TEST
    assert not predictions.exists(), "this objective has no one prediction for a sample"


def test_rows_count_the_samples_of_each_part(tmp_path: Path) -> None:
    """By the formula of the weights: after step s, 8 samples times the sum of the weights, give or take one."""
    folder = run(tmp_path, SCHEDULE, *RAMP, base=BASE)
    due = {"easy": 0.0, "hard": 0.0}
    for step, row in enumerate(row for row in rows(folder) if "samples" in row):
        hard = min(max(((step + 0.5) / STEPS - 0.1) / 0.8, 0.0), 1.0)
        size = row["samples"] - sum(due.values())
        due = {"easy": due["easy"] + size * (1 - hard), "hard": due["hard"] + size * hard}
        for name, count in due.items():
            assert abs(row[f"samples@{name}"] - count) < 1
    assert sum(due.values()) == row["samples"] < 8 * STEPS


def test_predictions_say_which_part_a_sample_is_of(tmp_path: Path) -> None:
    overrides = (
        *(*ON_CPU, *ONE_LAYER, *steps(2, None), "data=mixture", "data.parts={plain: digits, few: digits}"),
        *("data.members.few.test_size=30", "data.eval_batch_size=64", "tokenizer=patch"),
    )
    folder = run(tmp_path, *overrides, base=())
    predictions = read_predictions(folder.path / TEST)
    plain = int((predictions["slice"] == 0).sum())
    assert predictions.meta["slices"] == ["plain", "few"]
    assert predictions["sample"].tolist() == list(range(plain + 30))
    assert predictions["slice"].tolist() == [0] * plain + [1] * 30
    metrics = folder.summary()["metrics"]
    right = predictions["top"][:, 0] == predictions["target"]
    assert metrics["test/accuracy@few"] == pytest.approx(right[plain:].mean(), rel=1e-6)
    assert metrics["test/accuracy"] == pytest.approx(right.mean(), rel=1e-6)


@pytest.mark.full
def test_planted_counts_of_a_resumed_process_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a part that are counted from the first step that a process takes, and not from that of the run."""
    whole = run(tmp_path / "whole", SCHEDULE, base=BASE)
    assert killed_at(5, tmp_path / "killed", *BASE, SCHEDULE) == -signal.SIGKILL
    drawn = MixedOrder._drawn
    monkeypatch.setattr(MixedOrder, "_drawn", lambda self, part, numbers: drawn(self, part, (numbers - 9).clamp_min(0)))
    assert mixed.MixedOrder is MixedOrder
    resumed = run(tmp_path / "killed", SCHEDULE, base=BASE)
    with pytest.raises(AssertionError):
        assert_same_bits(resumed, whole)
