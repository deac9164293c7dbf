"""Every experiment and every choice of a family on a real GPU; skipped where there is none.

Losses and gradients are those of a CPU in float32; a training step in bf16 is finite; runs train, and so
do compiled ones.
`test_fake_cuda.py` finds a tensor on the wrong device without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.choices import catalog
from blockyard.contracts import auxiliary_loss
from tests.config import products
from tests.config.cover import legal_cover
from tests.config.product_batches import rows_of
from tests.support.experiment_data import own_data
from tests.support.learners import learner_and_batch
from tests.support.tiny import ONE_BATCH, steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """torch compiles a function for so many cases in a process, and a run is a process of its own."""
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _float32_convolutions() -> Iterator[None]:
    """Convolutions of float32 in float32, as on a CPU; products are by default."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def gap(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The norm of a difference relative to the norm of what is expected, over all tensors."""
    pairs = list(zip(actual, expected, strict=True))
    difference = sum(float((a.cpu().double() - b.double()).square().sum()) for a, b in pairs)
    return (difference / max(sum(float(b.double().square().sum()) for _, b in pairs), 1e-24)) ** 0.5


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """The gradients of all parameters, zeros where one has none."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("name", list(catalog.choices("experiment")))
def test_an_experiment_has_the_loss_and_gradients_of_a_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    learner, batch = learner_and_batch([f"experiment={name}", "logger=none", *own_data(name, tmp_path / "own")])
    on_gpu = deepcopy(learner).to(DEVICE).eval()
    expected = learner.eval().training_step(batch, 0)
    moved = batch.map(lambda tensor: tensor.to(DEVICE))
    loss = on_gpu.training_step(moved, 0)
    torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert gap(gradients(on_gpu, loss), gradients(learner, expected)) < 1e-3
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        half = on_gpu.training_step(moved, 0)
    assert gap([half.detach()], [expected.detach()]) < 0.05
    assert sum(float(each.abs().sum()) for each in gradients(on_gpu, half)) > 0


@pytest.mark.parametrize("name", list(catalog.choices("experiment")))
def test_an_experiment_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    overrides = [*own_data(name, tmp_path / "own"), *steps(3, 3), *ONE_BATCH, "logger=none", "trainer.compile=false"]
    assert main(["train", f"experiment={name}", "trainer.accelerator=gpu", *overrides]) == 0
    assert _summary(tmp_path)["device"] == torch.cuda.get_device_name()


@pytest.mark.parametrize("name", ["gpt_code_small", "vit_digits", "tones_ctc", "translate_dates", "mixer_digits"])
def test_compiled_blocks_train(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"experiment={name}", "trainer=gpu", *steps(3, 3), *ONE_BATCH, "logger=none"]) == 0
    assert _summary(tmp_path)["steps"] == 3


def test_compiled_blocks_with_a_bias_take_other_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lengths = ["data.context=256", "trainer.extrapolate=[2]"]
    overrides = ["experiment=gpt_code_small", "position=alibi", "trainer=gpu", "trainer.attention=flex", *lengths]
    assert main(["train", *overrides, *steps(3, 3), *ONE_BATCH, "logger=none"]) == 0
    metrics = _summary(tmp_path)["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["test/loss@2x"] > 0


def _summary(folder: Path) -> dict[str, object]:
    (path,) = folder.glob("outputs/*/s0/summary.json")
    summary: dict[str, object] = json.loads(path.read_text())
    return summary


@pytest.mark.parametrize("shard", range(4))
def test_every_choice_has_the_loss_and_gradients_of_a_cpu(shard: int) -> None:
    wrong = {}
    for row in legal_cover(1)[shard::4]:
        plan = Components(products.config(row).config)
        batch = plan.objective.ready(rows_of(row, plan))
        model = plan.model(0).eval()
        on_gpu = deepcopy(model).to(DEVICE)
        moved = batch.map(lambda tensor: tensor.to(DEVICE))
        results = []
        for module, inputs in ((on_gpu, moved), (model, batch)):
            loss = plan.objective.loss(module(inputs), inputs.target)
            auxiliary = auxiliary_loss(module.modules())
            results.append((loss.detach(), gradients(module, loss if auxiliary is None else loss + auxiliary)))
        (loss, actual), (expected_loss, expected) = results
        errors = gap([loss], [expected_loss]), gap(actual, expected)
        if not (errors[0] < 1e-4 and errors[1] < 1e-2):
            wrong[tuple(row.items())] = errors
    assert wrong == {}
