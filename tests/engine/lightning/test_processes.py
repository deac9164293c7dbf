"""Several processes: disjoint shards of the same batches, the same loss as one process, one ending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import RunFolder
from blockyard.runs.predictions_file import TEST, read_predictions
from blockyard.runs.resume import reopen
from tests.battery import ranks
from tests.engine.lightning.process_runs import NO_DROPOUT, start, trained
from tests.support import engine_runs
from tests.support.engine_runs import rows, run
from tests.support.fork import forked
from tests.support.tiny import TEXT, TINY, steps


def wait_for_step(outputs: Path, step: int) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        path = next(outputs.glob("*/s0/metrics.csv"), None)
        if path is not None and len(path.read_text().splitlines()) > 1 + step // 4:
            return
        time.sleep(0.05)
    raise AssertionError("the run does not get on")


def trained_in_forks(outputs: Path, kind: str) -> RunFolder:
    """Like `trained`, but the second process is a fork of the first, which saves the imports."""
    base = tuple(override for override in TINY if not override.startswith("trainer="))
    work = ranks.two(outputs, kind, "trainer.accelerator=cpu", "trainer.devices=2", *NO_DROPOUT, base=base)
    assert forked(work) == 0
    return ranks.only_run(outputs)


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("ddp", trained_in_forks),
        pytest.param("ddp", trained, marks=pytest.mark.full),
        pytest.param("fsdp", trained, marks=pytest.mark.full),
    ],
)
def test_two_processes_follow_the_loss_of_one_at_the_same_global_batch(
    tmp_path: Path, kind: str, start: Callable[[Path, str], RunFolder]
) -> None:
    one = run(tmp_path / "one", *NO_DROPOUT)
    two = start(tmp_path / "two", kind)
    assert two.status.state == "done"
    summary = json.loads((two.path / "summary.json").read_text())
    assert summary["processes"] == 2
    assert summary["steps"] == 30
    rows_of_two, rows_of_one = rows(two), rows(one)
    assert len(rows_of_two) == len(rows_of_one)
    for left, right in zip(rows_of_two, rows_of_one, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    # Each test sample is predicted once, by whichever processes.
    predictions, expected = (read_predictions(run_folder.path / TEST) for run_folder in (two, one))
    np.testing.assert_array_equal(predictions["sample"], expected["sample"])
    np.testing.assert_array_equal(predictions["target"], expected["target"])
    np.testing.assert_allclose(predictions["loss"], expected["loss"], rtol=1e-3, atol=1e-4)
    # A run is the same run whatever it is spread over.
    assert two.identity == one.identity


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_with_compiled_blocks_follow_one_without(tmp_path: Path, kind: str) -> None:
    steps = ("trainer.max_steps=4", "trainer.eval_every=2", "trainer.log_every=1")
    one = run(tmp_path / "one", *NO_DROPOUT, *steps)
    two = trained(tmp_path / "two", kind, *steps, "trainer.compile=true")
    assert two.summary()["processes"] == 2
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


TOPICS = (
    *("data=code_topics", "data.context=256", "data.batch_size=16", "tokenizer=byte", "head=mean_pool"),
    *("trainer.max_steps=4", "trainer.eval_every=2", "trainer.log_every=2", "trainer.limit_val=2"),
)


@pytest.mark.full
def test_two_processes_count_slices_and_classes_as_one(tmp_path: Path) -> None:
    one = run(tmp_path / "one", *NO_DROPOUT, *TOPICS)
    two = trained(tmp_path / "two", "ddp", *TOPICS)
    rows_of_two, rows_of_one = rows(two), rows(one)
    assert {"val/accuracy@head", "val/accuracy@body", "val/macro_f1"} <= rows_of_one[-1].keys()
    for left, right in zip(rows_of_two, rows_of_one, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    assert two.summary()["metrics"] == pytest.approx(one.summary()["metrics"], rel=1e-4)
    assert two.summary()["baselines"] == one.summary()["baselines"]


OWN = (
    *("data=dataset", "data.train._target_=tests.support.own_data.Squares", "data.batch_size=16", "allow=[tests]"),
    *("tokenizer=patch", "tokenizer.size=4", "trainer.max_steps=9", "trainer.eval_every=3", "trainer.log_every=3"),
)


@pytest.mark.full
def test_two_processes_follow_one_on_a_dataset_of_the_users(tmp_path: Path) -> None:
    base = tuple(override for override in TINY if not override.startswith("data."))
    one = run(tmp_path / "one", "token_mixer.dropout=0.0", *OWN, base=base)
    two = trained(tmp_path / "two", "ddp", *OWN)
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    predictions, expected = (read_predictions(run_folder.path / TEST) for run_folder in (two, one))
    np.testing.assert_array_equal(predictions["sample"], expected["sample"])
    assert len(set(predictions["sample"].tolist())) == len(predictions["sample"])
    assert two.identity == one.identity


LEVELS = (
    *("data=digits", "data.batch_size=16", "tokenizer=levels", "tokenizer.levels=4", "tokenizer.condition=class"),
    *("model=decoder", "head=token", "objective=next_token"),
    *("trainer.max_steps=4", "trainer.eval_every=2", "trainer.log_every=2"),
)


@pytest.mark.full
def test_two_processes_follow_one_on_image_tokens(tmp_path: Path) -> None:
    one = run(tmp_path / "one", *NO_DROPOUT, *LEVELS)
    two = trained(tmp_path / "two", "ddp", *LEVELS)
    rows_of_two, rows_of_one = rows(two), rows(one)
    assert "val/bits_per_dim" in rows_of_one[-1]
    for left, right in zip(rows_of_two, rows_of_one, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    assert two.summary()["metrics"] == pytest.approx(one.summary()["metrics"], rel=1e-4)


@pytest.mark.full
def test_two_processes_share_the_statistics_of_a_batch_norm(tmp_path: Path) -> None:
    """Of one batch in two halves; without that each half would be normalised by itself."""
    one = run(tmp_path / "one", *NO_DROPOUT, "norm=batch")
    two = trained(tmp_path / "two", "ddp", "norm=batch")
    for left, right in zip(rows(two), rows(one), strict=True):
        losses = {key: value for key, value in right.items() if key.endswith("loss")}
        assert {key: left[key] for key in losses} == pytest.approx(losses, rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("extra", [(), ("model=encoder", "objective=masked_token")], ids=["next", "masked"])
def test_two_processes_follow_one_on_rows_of_different_lengths(tmp_path: Path, extra: tuple[str, ...]) -> None:
    arguments = ("tokenizer=byte", "data.sample=line", "data.batch_size=8", "callbacks=default", "schedule=constant")
    arguments = (*arguments, "position=rope", "trainer.log_every=1", *extra)
    one = engine_runs.text_run(tmp_path / "one", *arguments)
    text = [override for override in TEXT if not override.startswith("trainer=")]
    two = trained(tmp_path / "two", "ddp", *[override for override in text if override not in TINY], *arguments)
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-3)


@pytest.mark.full
def test_sigterm_to_the_main_process_stops_all_after_the_same_step_and_all_go_on(tmp_path: Path) -> None:
    overrides = ("trainer.max_steps=2000", "trainer.max_epochs=null", "trainer.eval_every=1000")
    process = start(tmp_path, "ddp", *overrides)
    wait_for_step(tmp_path, 40)
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 143
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "interrupted"
    stopped = newest_good(run_folder.checkpoints).step
    assert stopped == run_folder.status.step
    process = start(tmp_path, "ddp", *overrides)
    wait_for_step(tmp_path, int(stopped or 0) + 20)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130
    result = newest_good(run_folder.checkpoints).step
    assert result is not None
    assert result > int(stopped or 0)


@pytest.mark.full
def test_sigterm_to_another_process_alone_interrupts_the_run(tmp_path: Path) -> None:
    overrides = ("trainer.max_steps=5000", "trainer.max_epochs=null", "trainer.eval_every=100")
    process = start(tmp_path, "ddp", *overrides)
    wait_for_step(tmp_path, 40)
    os.kill(other_process(process), signal.SIGTERM)
    assert process.wait(600) == 143
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "interrupted"
    assert newest_good(run_folder.checkpoints).step == run_folder.status.step
    assert not (run_folder.path / "summary.json").exists()


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        ("fsdp", "auto", "it was saved with FSDP; resume with trainer.strategy=fsdp"),
        ("auto", "fsdp", "it was saved without FSDP; resume with trainer.strategy=auto, or ddp"),
    ],
)
def test_another_strategy_is_named_before_the_state_of_the_optimizer(
    tmp_path: Path, saved: str, resumed: str, message: str
) -> None:
    one = ("trainer.devices=1", f"trainer.strategy={saved}", "callbacks.checkpoint.every=1", *steps(3, None))
    assert engine_runs.killed_at(2, tmp_path, *one) == -signal.SIGKILL
    path = ranks.only_run(tmp_path).path

    def resume() -> int:
        with reopen(path, [f"trainer.strategy={resumed}"]) as run_folder, pytest.raises(UserError, match=message):
            train(run_folder, resume=True)
        return 0

    assert forked(resume) == 0


@pytest.mark.full
def test_a_sharded_run_goes_on_with_one_process_and_with_two_again(tmp_path: Path) -> None:
    base = tuple(override for override in TINY if not override.startswith("trainer="))
    overrides = ("trainer.accelerator=cpu", "trainer.devices=2", *NO_DROPOUT)
    assert forked(ranks.two(tmp_path / "whole", "fsdp", *overrides, base=base)) == 0
    first = ranks.two(tmp_path / "stopped", "fsdp", *overrides, base=base)

    def stop_first() -> int:
        engine_runs.signal_after(10, signal.SIGTERM)
        return first()

    assert forked(stop_first) == 143
    stopped = ranks.only_run(tmp_path / "stopped")
    assert stopped.status.step == newest_good(stopped.checkpoints).step == 11

    def resume(devices: int, stop_after: int | None) -> Callable[[], int]:
        def work() -> int:
            ranks.fork_ranks()
            if stop_after is not None:
                engine_runs.signal_after(stop_after, signal.SIGTERM)
            with reopen(stopped.path, [f"trainer.devices={devices}"]) as run_folder:
                return train(run_folder, resume=True)

        return work

    assert forked(resume(1, 20)) == 143
    assert newest_good(stopped.checkpoints).step == 21
    assert forked(resume(2, None)) == 0
    rows_stopped, rows_whole = rows(ranks.only_run(tmp_path / "stopped")), rows(ranks.only_run(tmp_path / "whole"))
    assert [row["step"] for row in rows_stopped] == [row["step"] for row in rows_whole]
    for left, right in zip(rows_stopped, rows_whole, strict=True):
        assert left == pytest.approx(right, rel=1e-4)


def other_process(process: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"_cell" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.full
def test_a_process_that_dies_ends_the_run_as_failed(tmp_path: Path) -> None:
    process = start(tmp_path, "ddp", "trainer.max_steps=5000", "trainer.max_epochs=null", "trainer.eval_every=100")
    wait_for_step(tmp_path, 104)
    os.kill(other_process(process), signal.SIGKILL)
    assert process.wait(600) == 1
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "failed"
    assert "process 1 was killed by signal 9" in str(run_folder.status.reason)
    assert newest_good(run_folder.checkpoints).step == 100


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_muon_trains_with_several_processes(tmp_path: Path, kind: str) -> None:
    trained(tmp_path, kind, "optimizer=muon", "trainer.max_steps=8")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_learning_rates_by_name_are_those_of_one_process(tmp_path: Path, kind: str) -> None:
    by_name = ("optimizer.rates={embedder: 5, blocks: 0.5}", "optimizer.decays={head: 0}", "trainer.max_steps=8")
    one, two = run(tmp_path / "one", *NO_DROPOUT, *by_name), trained(tmp_path / "two", kind, *by_name)
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


def torchrun(outputs: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    keys = {override.partition("=")[0] for override in overrides} | {"trainer"}
    defaults = [override for override in (*TINY, *NO_DROPOUT) if override.partition("=")[0] not in keys]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command = [*launch, "blockyard", "train", "trainer=ddp", "trainer.accelerator=cpu", *defaults, f"outputs={outputs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *overrides], env=environment, text=True, capture_output=True, timeout=900, check=False
    )


@pytest.mark.full
def test_torchrun_starts_one_run_and_its_ranks_go_on_together(tmp_path: Path) -> None:
    one = run(tmp_path / "one", *NO_DROPOUT)
    first = torchrun(tmp_path / "two", "callbacks.checkpoint.every=3")
    assert first.returncode == 0, first.stderr
    (run_folder,) = [RunFolder.open(path) for path in (tmp_path / "two").glob("*/s0")]
    assert run_folder.status.state == "done"
    for left, right in zip(rows(run_folder), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    again = torchrun(tmp_path / "two", "callbacks.checkpoint.every=3")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("is already done") == 2
    assert not list(run_folder.path.glob("error*"))

    # As if it had been killed after its 24th step: every rank must take up the same checkpoint.
    run_folder = RunFolder.open(run_folder.path)
    (run_folder.checkpoints / "previous.ckpt").replace(run_folder.checkpoints / "last.ckpt")
    stood = newest_good(run_folder.checkpoints).step
    with run_folder.lock():
        run_folder.set_status("interrupted", "for this test", step=stood)
    before = rows(run_folder)
    resumed = torchrun(tmp_path / "two", "callbacks.checkpoint.every=3", f"resume={run_folder.path}", "debug=none")
    assert resumed.returncode == 0, resumed.stderr
    assert stood == 27
    assert rows(RunFolder.open(run_folder.path)) == [pytest.approx(row, rel=1e-6) for row in before]
    # Eight evaluations would be those of a run from the start.
    assert f"interrupted at step {stood}" in resumed.stderr
