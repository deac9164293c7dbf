"""The engine's parts: micro-batches, precision, compilation, clipping, cost, progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.config import build
from blockyard.contracts import Batch, Inputs, Objective
from blockyard.engine import setup_model
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.progress import Progress
from blockyard.engine.module import Learner, LearnerSettings
from blockyard.engine.trainer import TrainerPlan
from blockyard.ops import flops
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import config, folder, rows, run, state, text_run
from tests.support.every import every

STILL = ("token_mixer.dropout=0.0", "data.shift=0", "trainer.max_steps=12")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> build.Components:
    return build.Components(config(tmp_path_factory.mktemp("plan"), *STILL)[0])


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("still"), *STILL)


LINES = ("tokenizer=byte", "position=rope", "data.batch_size=8", "callbacks=default", "schedule=constant")


@pytest.mark.full
@pytest.mark.parametrize("rows_of", ["data.sample=line", "data.packed=true"])
def test_accumulated_pieces_of_rows_of_different_lengths_make_the_update_too(tmp_path: Path, rows_of: str) -> None:
    overrides = (*LINES, "trainer.log_every=1", rows_of)
    whole = rows(text_run(tmp_path / "whole", *overrides))
    accumulated = rows(text_run(tmp_path / "pieces", *overrides, "trainer.accumulate=4"))
    assert len(whole) == len(accumulated) >= 5
    for left, right in zip(accumulated, whole, strict=True):
        assert left == pytest.approx(right, rel=1e-3)


@pytest.mark.full
def test_pieces_without_weights_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every piece's mean counts alike, however little it asks for."""
    whole = rows(text_run(tmp_path / "whole", *LINES, "data.sample=line", "trainer.log_every=1"))
    monkeypatch.setattr(Objective, "count", lambda self, batch: len(batch))
    accumulated = rows(
        text_run(tmp_path / "pieces", *LINES, "data.sample=line", "trainer.log_every=1", "trainer.accumulate=4")
    )
    with pytest.raises(AssertionError):
        assert accumulated[0] == pytest.approx(whole[0], rel=1e-3)


@pytest.mark.parametrize("weight", [torch.tensor(0.0), None])
def test_a_batch_or_a_piece_that_asks_for_nothing_counts_for_nothing(
    plan: build.Components, weight: torch.Tensor | None
) -> None:
    from blockyard.objective.next_token import NextToken

    class Scores(torch.nn.Embedding):
        def forward(self, inputs: Inputs) -> torch.Tensor:
            assert inputs.lengths is not None
            assert inputs.lengths.tolist() == [1]
            return super().forward(inputs.inputs)

    model = Scores(5, 5)
    learner = Learner(model, NextToken(), plan.optimizer, plan.schedule, LearnerSettings(total=1))
    batch = Batch(torch.ones(1, 4, dtype=torch.int64), lengths=torch.tensor([1]), weight=weight)
    loss = learner.training_step(learner.objective.prepare(batch), 0)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0))
    torch.testing.assert_close(model.weight.grad, torch.zeros(5, 5))


def test_accumulated_pieces_make_the_update_of_the_whole_batch(tmp_path: Path, still: RunFolder) -> None:
    accumulated = run(tmp_path, *STILL, "trainer.accumulate=4")
    weights, expected = state(accumulated), state(still)
    for key in weights:
        torch.testing.assert_close(weights[key], expected[key], rtol=1e-3, atol=1e-5, msg=key)
    for left, right in zip(rows(accumulated), rows(still), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


@pytest.mark.full
def test_compiled_blocks_learn_the_same_under_the_same_names(tmp_path: Path, still: RunFolder) -> None:
    compiled = run(tmp_path, *STILL, "trainer.compile=true", "trainer.max_steps=4", "schedule=constant")
    plain = run(tmp_path / "plain", *STILL, "trainer.max_steps=4", "schedule=constant")
    weights, expected = state(compiled), state(plain)
    assert weights.keys() == expected.keys() == state(still).keys()
    assert not any("_orig_mod" in name for name in weights)
    for key in weights:
        torch.testing.assert_close(weights[key], expected[key], rtol=1e-2, atol=1e-4, msg=key)


@pytest.mark.parametrize("largest", [0.01, None])
def test_gradients_are_clipped_to_the_norm_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: float | None
) -> None:
    seen: list[tuple[float, float]] = []
    original = Learner.configure_gradient_clipping

    def watched(self: Learner, optimizer: Any, *arguments: Any, **settings: Any) -> None:
        original(self, optimizer, *arguments, **settings)
        after = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters()])
        assert self.step.norm is not None
        seen.append((float(self.step.norm), float(after)))

    monkeypatch.setattr(Learner, "configure_gradient_clipping", watched)
    clip = "null" if largest is None else str(largest)
    run_folder = run(
        tmp_path, *STILL, f"trainer.gradient_clip={clip}", "callbacks=default", "callbacks.progress.bar=false"
    )
    assert len(seen) == 12
    for before, after in seen:
        assert before > 0.05
        assert after == pytest.approx(before if largest is None else largest, rel=1e-3)
    assert [row["train/grad_norm"] for row in rows(run_folder)] == pytest.approx([seen[n - 1][0] for n in (4, 8, 12)])
    assert every(row["lr"] > 0 for row in rows(run_folder))


def test_auto_precision_is_fp32_on_a_cpu_and_recorded(tmp_path: Path) -> None:
    run_folder = run(tmp_path, *STILL, "trainer.precision=auto", "trainer.max_steps=2")
    recorded = json.loads((run_folder.path / "summary.json").read_text())["precision"]
    assert recorded == run_folder.facts()["precision"]
    assert recorded["precision"] == "32"
    assert recorded["why"] == "auto is 32 on a CPU"


def test_a_gpu_takes_bf16(still: RunFolder, tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.precision=auto") as fresh:
        assert setup_model._precision(fresh, TrainerPlan(), torch.device("cuda"))["precision"] == "bf16-mixed"


def test_a_run_keeps_the_precision_it_began_with(tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.precision=auto") as run_folder:
        earlier = {"asked": "auto", "precision": "bf16-mixed", "why": "timed on this CPU"}
        run_folder.add_facts({"precision": earlier})
        assert setup_model._precision(run_folder, TrainerPlan(), torch.device("cpu")) == earlier


def test_torchs_own_counter_leaves_the_cpus_flash_kernel_out(plan: build.Components) -> None:
    """The planted bug: what the count would be without our entry in the table."""
    batch = plan.data.load(plan.tokenizer).train.batch(torch.arange(2), None)
    model = plan.model(0)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as bare:
        model(batch.inputs)
    with flops.counter() as step:
        model(batch.inputs)
    assert step.get_total_flops() > bare.get_total_flops()


def test_the_summary_tells_quality_and_cost(still: RunFolder) -> None:
    summary = json.loads((still.path / "summary.json").read_text())
    assert set(summary["metrics"]) == {"val/loss", "val/accuracy", "test/loss", "test/accuracy"}
    assert summary["parameters"]["total"] == sum(v.numel() for k, v in state(still).items() if k.startswith("model."))
    assert summary["steps"] == 12
    assert summary["samples"] == 12 * 64
    for key in ("step_seconds", "samples_per_second", "tokens_per_second", "seconds_to_first_step"):
        assert summary[key] > 0
    assert summary["peak_memory"]["bytes"] > 50e6
    assert [entry["kernel"] for entry in summary["kernels"]] == ["flash"]
    assert summary["data"]["fingerprint"]


def test_lightning_leaves_nothing_of_its_own_behind(still: RunFolder) -> None:
    left = {path.name for path in still.path.iterdir()}
    assert left <= {"config.yaml", "run.json", "status.json", "metrics.csv", "summary.json", "checkpoints", ".lock"} | {
        "predictions-test.npz"
    }
    assert {path.name for path in still.checkpoints.iterdir()} <= {"last.ckpt", "previous.ckpt", "best.ckpt"}


def test_eval_gives_the_figures_of_the_run(still: RunFolder) -> None:
    from blockyard.evaluate.api import evaluate

    summary = json.loads((still.path / "summary.json").read_text())
    result = evaluate(still.path, split="test") | evaluate(still.path, split="validation")
    assert result == summary["metrics"]


@pytest.mark.parametrize("bar", [True, False])
def test_progress_shows_loss_speed_and_time_left(capsys: pytest.CaptureFixture[str], bar: bool) -> None:
    live = RunState(
        learner=None,  # type: ignore[arg-type]
        name="a run",
        checkpoints=Path(),
        total=100,
        steps_per_epoch=10,
        batch_size=8,
        tokens=16,
        modality="text",
        monitor=("loss", "min"),
    )
    progress = Progress(bar=bar, seconds=0.0)
    progress.on_run_start(live)
    live.step, live.seconds = 50, 10.0
    progress.on_log(live, {"train/loss": 1.25})
    progress.on_evaluate(live, {"val/loss": 1.5})
    progress.on_run_end(live)
    shown = capsys.readouterr().err
    assert "a run" in shown
    assert "50/100" in shown
    assert "val/loss 1.5" in shown
    if not bar:
        assert "loss 1.2500 640 tokens/s 0:10 left" in shown


def test_what_cannot_be_shared_is_known_before_a_run(plan: build.Components) -> None:
    from blockyard.engine.callbacks.early_stopping import EarlyStopping

    components = (plan.data, plan.objective, plan.node("model"))  # batches of 64
    assert TrainerPlan(accumulate=4, devices=2).problems(*components) == []
    (of_one_length,) = TrainerPlan(group=4).problems(*components)
    assert "trainer.group=4 sorts samples by length, and all samples of this data are of one length" in of_one_length
    (message,) = TrainerPlan(accumulate=3).problems(*components)
    assert "data.batch_size=64" in message
    assert "a multiple of 3" in message
    assert any("eval_batch_size" in line for line in TrainerPlan(devices=3).problems(*components))
    assert EarlyStopping().problems(*components) == []
    assert EarlyStopping(monitor="val/loss", mode="min").problems(*components) == []
    (message,) = EarlyStopping(monitor="perplexity", mode="min").problems(*components)
    assert "unknown metric; the objective has accuracy, loss" in message
