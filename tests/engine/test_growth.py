"""Batches and texts that are small in the first steps: the sizes, what is trained on, and that a killed run goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.engine.growth import Growth, Ramp
from blockyard.engine.loader import BatchDataset, Layout
from blockyard.engine.plain_trainer import unserved
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run
from tests.support.tiny import TEXT, configured

STEPS = 8
BASE = (
    *(*TEXT, "tokenizer=byte", "data.batch_size=8", f"trainer.max_steps={STEPS}", "trainer.eval_every=4"),
    *("trainer.log_every=1", "callbacks.checkpoint.every=3"),
)
BATCH = ("trainer.first_batch=2", "trainer.batch_warmup=0.5")
CONTEXT = ("trainer.first_context=4", "trainer.context_warmup=6")


@pytest.mark.parametrize(("start", "end", "steps"), [(2, 8, 4), (1, 5, 20), (4, 16, 6), (8, 8, 3), (3, 9, 0)])
def test_sizes(start: int, end: int, steps: int) -> None:
    """Of the equation: never below the first, at the full size from step `steps` on, in multiples of the first."""
    sizes = [Ramp(start, end, steps).at(step) for step in range(steps + 3)]
    expected = [int((start + (end - start) * step / steps) / start + 1e-9) * start for step in range(steps)]
    assert sizes == expected + [end] * 3


@pytest.mark.parametrize("ramps", [((2, 8, 4), (4, 16, 6)), ((2, 8, 5), (16, 16, 0)), ((8, 8, 0), (4, 16, 3))])
def test_what_was_seen(ramps: tuple[tuple[int, int, int], tuple[int, int, int]]) -> None:
    batch, context = (Ramp(*each) for each in ramps)
    samples = tokens = 0
    for step in range(12):
        assert Growth(batch, context).seen(step) == (samples, tokens)
        samples += batch.at(step)
        tokens += batch.at(step) * context.at(step)


def batches(growth: Growth | None, **sizes: int) -> list[list[Batch]]:
    """The micro-batches of each of the first steps over all processes, in two epochs."""
    components = Components(configured(*BASE)[0])
    split = components.load().train
    layout = {"seed": 1, "samples": 40, "batch_size": 8, "micro_batches": 1, "world": 1, **sizes}
    datasets = [
        BatchDataset(split, Layout(**layout, rank=rank, growth=growth), components.objective)
        for rank in range(layout["world"])
    ]
    parts = range(layout["micro_batches"])
    return [[each[step * len(parts) + part] for part in parts for each in datasets] for step in range(STEPS)]


@pytest.mark.parametrize("sizes", [{}, {"micro_batches": 2}, {"world": 2}])
def test_a_step_takes_the_first_of_its_batch(sizes: dict[str, int]) -> None:
    """The first samples, and the first tokens of each with the targets that follow them, however they are cut."""
    growth = Growth(Ramp(2, 8, 4), Ramp(4, 16, 6))
    for step, (whole, parts) in enumerate(zip(batches(None), batches(growth, **sizes), strict=True)):
        samples, tokens = growth.samples(step), growth.context.at(step)
        expected = whole[0]
        for number, part in enumerate(parts):
            chosen = torch.arange(number, samples, len(parts))
            assert part.sample is not None
            assert expected.sample is not None
            assert torch.equal(part.sample, expected.sample[chosen])
            assert torch.equal(part.inputs, expected.inputs[chosen, :tokens])
            assert torch.equal(part.target, expected.target[chosen, :tokens])


def test_rows_count_what_was_trained_on(tmp_path: Path) -> None:
    logged = [row for row in rows(run(tmp_path, *BATCH, *CONTEXT, base=BASE)) if "samples" in row]
    growth = Growth(Ramp(2, 8, 4), Ramp(4, 16, 6))
    assert [(row["samples"], row["tokens"]) for row in logged] == [growth.seen(step + 1) for step in range(STEPS)]


@pytest.mark.full
@pytest.mark.parametrize("options", [BATCH, (*CONTEXT, "trainer.num_workers=1")], ids=["batch", "context"])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Killed while sizes grow, one step behind a checkpoint and before the next one."""
    whole = run(tmp_path / "whole", *options, base=BASE)
    plain = run(tmp_path / "plain", base=BASE)
    assert whole.identity != plain.identity
    assert killed_at(5, tmp_path / "killed", *BASE, *options) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *options, base=BASE), whole)


@pytest.mark.full
def test_micro_batches_train_the_same(tmp_path: Path) -> None:
    one = run(tmp_path / "one", *BATCH, *CONTEXT, base=BASE)
    two = run(tmp_path / "two", *BATCH, *CONTEXT, "trainer.accumulate=2", base=BASE)
    for left, right in zip(rows(one), rows(two), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.first_batch=2"], "first_batch=2 says nothing alone; set trainer.batch_warmup=0.2 too"),
        (["trainer.context_warmup=3"], "context_warmup=3 says nothing alone; set trainer.first_context too"),
        (["trainer.first_batch=2", "trainer.batch_warmup=3.0"], "is ambiguous"),
        (["trainer.first_batch=3", "trainer.batch_warmup=3"], "a divisor of data.batch_size=8"),
        ([*BATCH, "trainer.accumulate=4"], "that is a multiple of 4"),
        ([*BATCH, "trainer.group=2", "data.sample=line"], "would take the shortest samples"),
        (["trainer.first_context=5", "trainer.context_warmup=3"], "use a divisor of 16"),
        ([*CONTEXT, "data.sample=line"], "data.sample=window"),
        ([*CONTEXT, "token_mixer=fully_connected", "position=none"], "takes texts of one length"),
        ([*CONTEXT, "trainer=context", "trainer.accelerator=cpu"], "use one of both"),
    ],
)
def test_refusals(overrides: list[str], message: str) -> None:
    base = [each for each in BASE if each != "trainer=cpu" or "trainer=context" not in overrides]
    issues = [str(each) for each in check(compose([*base, *overrides]))]
    assert len(issues) == 1, issues
    assert message in issues[0]


def test_a_trainer_of_ones_own_is_told() -> None:
    sentences = list(unserved(Components(configured(*BASE, *BATCH)[0])))
    assert any("trainer.first_batch" in each for each in sentences)


@pytest.mark.full
def test_planted_sizes_of_a_resumed_process_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that grow from the first step that a process takes, and not from that of the run."""
    whole = run(tmp_path / "whole", *BATCH, base=BASE)
    assert killed_at(5, tmp_path / "killed", *BASE, *BATCH) == -signal.SIGKILL
    at = Ramp.at
    monkeypatch.setattr(Ramp, "at", lambda self, step: at(self, max(step - 3, 0)))
    resumed = run(tmp_path / "killed", *BATCH, base=BASE)
    with pytest.raises(AssertionError):
        assert_same_bits(resumed, whole)
