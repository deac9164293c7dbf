"""The engine's parts: numbered batches, precision, compilation, clipping, cost, progress."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from blockyard.config import build
from blockyard.contracts import Batch, Objective
from blockyard.engine import cost_card, setup_model, threads
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.progress import Progress
from blockyard.engine.layout import Layout
from blockyard.engine.learner_settings import Settings
from blockyard.engine.loader import BatchDataset, training_loader
from blockyard.engine.module import Learner
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.ops import flops
from blockyard.runs.folder import RunFolder
from tests.engine_runs import config, folder, rows, run, state, text_run

STILL = ("token_mixer.dropout=0.0", "data.shift=0", "trainer.max_steps=12")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> build.Components:
    return build.Components(config(tmp_path_factory.mktemp("plan"), *STILL)[0])


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("still"), *STILL)


class Numbers:
    """A split whose sample number n is the image n."""

    def __len__(self) -> int:
        return 100

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(order[:, None].clone(), order % 10)


class Unprepared:
    """An objective that takes batches as they are."""

    mixes = False

    def ready(self, batch: Batch, key: int | None = None) -> Batch:
        return batch


def numbers(layout: Layout, start: int, stop: int, workers: int = 0) -> list[list[int]]:
    dataset = BatchDataset(Numbers(), layout, Unprepared())
    batches = training_loader(dataset, start=start, stop=stop, workers=workers, pin=False, timeout=60)
    return [batch.inputs[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_by_number_start_anywhere(workers: int) -> None:
    layout = Layout(seed=0, samples=100, batch_size=16)
    assert layout.steps_per_epoch == 6
    whole = numbers(layout, 0, 15)
    assert numbers(layout, 7, 15, workers) == whole[7:]
    epochs = [sorted(chain(*whole[at : at + 6])) for at in (0, 6)]
    assert all(len(set(epoch)) == 96 for epoch in epochs)
    assert whole[:6] != whole[6:12]


def test_processes_and_pieces_together_see_the_batch_of_one() -> None:
    whole = numbers(Layout(seed=3, samples=100, batch_size=16), 0, 9)
    shares: dict[int, list[int]] = {update: [] for update in range(9)}
    for rank in (0, 1):
        layout = Layout(seed=3, samples=100, batch_size=16, micro_batches=2, rank=rank, world=2)
        for number, share in enumerate(numbers(layout, 0, 18)):
            assert len(share) == 4
            shares[number // 2] += share
    assert [sorted(share) for share in shares.values()] == [sorted(batch) for batch in whole]


def test_groups_are_the_same_in_several_processes_and_from_any_batch_on() -> None:
    grouped = partial(Layout, seed=3, samples=100, batch_size=16, group=2, lengths=torch.arange(100) * 7 % 31)
    whole = numbers(grouped(), 0, 15)
    assert whole != numbers(Layout(seed=3, samples=100, batch_size=16), 0, 15)
    assert numbers(grouped(), 7, 15) == whole[7:]
    shares = [numbers(grouped(rank=rank, world=2), 0, 15) for rank in (0, 1)]
    assert [sorted(left + right) for left, right in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.batch_size=63 does not divide into 2 processes .* multiple of 4"):
        Layout(seed=0, samples=100, batch_size=63, micro_batches=2, world=2)


def test_overfit_and_limit_shorten_the_epoch() -> None:
    once = numbers(Layout(seed=0, samples=100, batch_size=16, overfit=2), 0, 6)
    assert once[:2] == once[2:4] == once[4:]
    assert Layout(seed=0, samples=100, batch_size=16, limit=4).steps_per_epoch == 4


LINES = ("tokenizer=byte", "position=rope", "data.batch_size=8", "callbacks=default", "schedule=constant")


@pytest.mark.parametrize("rows_of", ["data.sample=line", "data.packed=true"])
def test_accumulated_pieces_of_rows_of_different_lengths_make_the_update_too(tmp_path: Path, rows_of: str) -> None:
    words = (*LINES, "trainer.log_every=1", rows_of)
    whole = rows(text_run(tmp_path / "whole", *words))
    pieces = rows(text_run(tmp_path / "pieces", *words, "trainer.accumulate=4"))
    assert len(whole) == len(pieces) >= 5
    for left, right in zip(pieces, whole, strict=True):
        assert left == pytest.approx(right, rel=1e-3)


def test_pieces_without_weights_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every piece's mean counts alike, however little it asks for."""
    whole = rows(text_run(tmp_path / "whole", *LINES, "data.sample=line", "trainer.log_every=1"))
    monkeypatch.setattr(Objective, "count", lambda self, batch: len(batch))
    pieces = rows(
        text_run(tmp_path / "pieces", *LINES, "data.sample=line", "trainer.log_every=1", "trainer.accumulate=4")
    )
    with pytest.raises(AssertionError):
        assert pieces[0] == pytest.approx(whole[0], rel=1e-3)


def test_a_piece_that_asks_for_nothing_counts_for_nothing(plan: build.Components) -> None:
    from blockyard.objective.next_token import NextToken

    class Scores(torch.nn.Embedding):
        def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            assert lengths.tolist() == [1]
            return super().forward(inputs)

    model = Scores(5, 5)
    learner = Learner(model, NextToken(), plan.optimizer, plan.schedule, Settings(total=1))
    batch = Batch(torch.ones(1, 4, dtype=torch.int64), lengths=torch.tensor([1]), weight=torch.tensor(0.0))
    loss = learner.training_step(learner.objective.prepare(batch), 0)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0))
    torch.testing.assert_close(model.weight.grad, torch.zeros(5, 5))


def test_accumulated_pieces_make_the_update_of_the_whole_batch(tmp_path: Path, still: RunFolder) -> None:
    pieces = run(tmp_path, *STILL, "trainer.accumulate=4")
    ours, theirs = state(pieces), state(still)
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-5, msg=key)
    for left, right in zip(rows(pieces), rows(still), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


@pytest.mark.full
def test_compiled_blocks_learn_the_same_under_the_same_names(tmp_path: Path, still: RunFolder) -> None:
    compiled = run(tmp_path, *STILL, "trainer.compile=true", "trainer.max_steps=4", "schedule=constant")
    plain = run(tmp_path / "plain", *STILL, "trainer.max_steps=4", "schedule=constant")
    ours, theirs = state(compiled), state(plain)
    assert ours.keys() == theirs.keys() == state(still).keys()
    assert not any("_orig_mod" in name for name in ours)
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-2, atol=1e-4, msg=key)


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
    word = "null" if largest is None else str(largest)
    made = run(tmp_path, *STILL, f"trainer.gradient_clip={word}", "callbacks=default", "callbacks.progress.bar=false")
    assert len(seen) == 12
    for before, after in seen:
        assert before > 0.05
        assert after == pytest.approx(before if largest is None else largest, rel=1e-3)
    assert [row["train/grad_norm"] for row in rows(made)] == pytest.approx([seen[n - 1][0] for n in (4, 8, 12)])
    assert all(row["lr"] > 0 for row in rows(made))


def test_auto_precision_is_fp32_on_a_cpu_and_recorded(tmp_path: Path) -> None:
    made = run(tmp_path, *STILL, "trainer.precision=auto", "trainer.max_steps=2")
    recorded = json.loads((made.path / "summary.json").read_text())["precision"]
    assert recorded == made.facts()["precision"]
    assert recorded["precision"] == "32"
    assert recorded["why"] == "auto is 32 on a CPU"


def test_a_gpu_takes_bf16(still: RunFolder, tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.precision=auto") as fresh:
        assert setup_model._precision(fresh, TrainerPlan(), torch.device("cuda"))["precision"] == "bf16-mixed"


def test_a_run_keeps_the_precision_it_began_with(tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.precision=auto") as made:
        earlier = {"asked": "auto", "precision": "bf16-mixed", "why": "timed on this CPU"}
        made.add_facts({"precision": earlier})
        assert setup_model._precision(made, TrainerPlan(), torch.device("cpu")) == earlier


@pytest.mark.parametrize(
    ("flops", "available", "processes", "expected"),
    [
        (0, 8, 1, 1),
        (0.29e9, 8, 1, 1),
        (0.31e9, 8, 1, 2),
        (1e9, 8, 1, 4),
        (1e12, 8, 1, 8),
        (1e12, 8, 2, 4),
        (1e12, 1, 2, 1),
    ],
)
def test_threads_follow_from_the_flops_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, flops: float, available: int, processes: int, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: available)
    assert threads.thread_count(int(flops), processes=processes)["threads"] == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert threads.thread_count(int(flops))["threads"] == available


def test_threads_are_recorded_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made = run(tmp_path, *STILL, "trainer.max_steps=2")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    recorded = made.facts()["threads"]
    assert recorded["threads"] == 1
    assert "GFLOPs a batch" in recorded["why"]
    assert json.loads((made.path / "summary.json").read_text())["threads"] == 1


@pytest.mark.parametrize("kv", [4, 1])
def test_flops_are_those_of_the_formula(kv: int, tmp_path: Path) -> None:
    dim, depth, heads, side, classes, expansion = 64, 3, 4, 4, 10, 4
    words = (f"model.dim={dim}", f"model.depth={depth}", f"model.heads={heads}", f"token_mixer.num_kv_heads={kv}")
    more = (f"tokenizer.size={8 // side}", "channel_mixer=mlp", f"channel_mixer.expansion={expansion}")
    made = build.Components(config(tmp_path, *STILL, *words, *more)[0])
    batch = made.data.load(made.tokenizer).train.batch(torch.arange(2), None)
    found = cost_card.flops_per_sample(made.model(0), made.objective, batch)
    tokens, patch = side * side, (8 // side) ** 2
    projections = dim * (dim + 2 * dim * kv // heads) + dim * dim + 2 * expansion * dim * dim
    attention = 2 * tokens * tokens * dim
    forward = 2 * (tokens * patch * dim + depth * (tokens * projections + attention) + dim * classes)
    assert found["forward"] == forward
    # Backward is twice each matmul, but nothing flows into the image; attention takes 5 matmuls to 2.
    backward = 2 * forward - 2 * tokens * patch * dim + depth * attention
    assert found["training"] == forward + backward


def test_torchs_own_counter_leaves_the_cpus_flash_kernel_out(plan: build.Components) -> None:
    """The planted bug: what the count would be without our entry in the table."""
    batch = plan.data.load(plan.tokenizer).train.batch(torch.arange(2), None)
    model = plan.model(0)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as bare:
        model(batch.inputs)
    with flops.counter() as ours:
        model(batch.inputs)
    assert ours.get_total_flops() > bare.get_total_flops()


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
    found = evaluate(still.path, split="test") | evaluate(still.path, split="validation")
    assert found == summary["metrics"]


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


def test_a_trainer_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainer.max_steps and trainer.max_epochs are both null"):
        TrainerPlan(max_epochs=None)


def test_more_gpus_than_there_are_is_for_the_user() -> None:
    with pytest.raises(UserError, match=r"trainer.accelerator=gpu: this machine has \d+ GPUs"):
        TrainerPlan(accelerator="gpu", devices=999).device_type()


def test_the_shorter_of_steps_and_epochs_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert TrainerPlan(max_steps=30, max_epochs=2).total_steps(20) == 30
    assert TrainerPlan(max_steps=50, max_epochs=2).total_steps(20) == 40
    assert TrainerPlan(max_steps=50, max_epochs=None).total_steps(20) == 50
    assert TrainerPlan(max_epochs=2).total_steps(20) == 40
    assert run(tmp_path, *STILL, "trainer.limit_train=5", "trainer.max_epochs=1").status.step == 5
    assert "trainer.max_epochs=1 ends this run after 5 steps" in caplog.text


@pytest.mark.parametrize("choice", ["fast", "overfit", "profiler"])
def test_a_debug_setting_makes_all_its_steps(tmp_path: Path, choice: str) -> None:
    trainer = config(tmp_path, f"debug={choice}", "trainer.max_steps=null", "trainer.max_epochs=1")[0]["trainer"]
    assert trainer["max_epochs"] == 1
    from blockyard.config.compose import compose

    assert compose([f"debug={choice}"]).config["trainer"]["max_epochs"] is None


def test_what_cannot_be_shared_is_known_before_a_run(plan: build.Components) -> None:
    from blockyard.engine.callbacks.early_stopping import EarlyStopping

    asked = (plan.data, plan.objective, plan.node("model"))  # batches of 64
    assert TrainerPlan(accumulate=4, devices=2).problems(*asked) == []
    (of_one_length,) = TrainerPlan(group=4).problems(*asked)
    assert "trainer.group=4 sorts samples by length, and all samples of this data are of one length" in of_one_length
    (said,) = TrainerPlan(accumulate=3).problems(*asked)
    assert "data.batch_size=64" in said
    assert "a multiple of 3" in said
    assert any("eval_batch_size" in line for line in TrainerPlan(devices=3).problems(*asked))
    assert EarlyStopping().problems(*asked) == []
    assert EarlyStopping(monitor="val/loss", mode="min").problems(*asked) == []
    (said,) = EarlyStopping(monitor="perplexity", mode="min").problems(*asked)
    assert "unknown metric; the objective has accuracy, loss" in said


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_fused_cells_are_counted_like_their_steps(cell: type[nn.RNNBase]) -> None:
    """torch's own counter knows the steps that the meta device takes, and leaves out what CPU and cuDNN fuse."""
    gates = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}[cell]
    wanted = 2 * 2 * 5 * gates * 16 * (12 + 16)  # of 2 rows of 5 tokens
    for device in ("meta", "cpu"):
        layer, x = cell(12, 16, batch_first=True).to(device), torch.zeros(2, 5, 12, device=device)
        with flops.counter() as forward:
            states = layer(x)[0]
        with flops.counter() as backward:
            states.sum().backward()
        assert forward.get_total_flops() == wanted
        assert wanted < backward.get_total_flops() <= 2 * wanted
    sizes = [torch.Size(size) for size in ((gates * 16, 12), (gates * 16, 16), (gates * 16,), (gates * 16,))]
    assert flops._recurrent(torch.Size((5, 2, 12)), sizes, 4) == wanted  # as cuDNN is called
