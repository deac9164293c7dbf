"""The loss of all logits as one compiled function: the values and gradients of the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.engine.module import Learner
from blockyard.objective import _cross_entropy
from blockyard.objective._cross_entropy import cross_entropy
from blockyard.ops import projection
from blockyard.ops.projection import Projection, RawLogits, compiled_loss
from tests.support.engine_runs import rows, text_run
from tests.support.tolerances import float32

N, D, V = 23, 6, 75  # V is no multiple of 64
BACKENDS = [
    pytest.param("aot_eager", id="traced"),
    pytest.param("inductor", id="compiled", marks=pytest.mark.full),  # some seconds for each case
]


@pytest.fixture(params=BACKENDS)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RawLogits]]:
    """The loss of few logits is compiled too. Yields the predictions that reach the compiled function."""
    function = torch.compile(_cross_entropy._mean_loss, backend=request.param)
    calls: list[RawLogits] = []

    def recorded(prediction: RawLogits, *arguments: Any) -> Tensor:
        calls.append(prediction)
        return function(prediction, *arguments)

    monkeypatch.setattr(projection, "FEWEST_COMPILED", 1)
    monkeypatch.setattr(_cross_entropy, "_compiled", lambda: recorded)
    yield calls
    torch.compiler.reset()


def inputs(*, biased: bool = True) -> tuple[Projection, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, N, D, generator=generator).requires_grad_()
    weight = torch.randn(V, D, generator=generator).requires_grad_()
    bias = torch.randn(V, generator=generator).requires_grad_() if biased else None
    target = torch.randint(V, (1, N), generator=generator)
    target[0, ::5] = Batch.ignore
    return Projection(x, weight, bias), target


def gradients(loss: Tensor, of: Projection) -> list[Tensor]:
    leaves = [leaf for leaf in (of.x, of.weight, of.bias) if leaf is not None]
    return list(torch.autograd.grad(loss * 1.7, leaves))


OPTIONS: list[dict[str, float]] = [{}, {"label_smoothing": 0.2}, {"z_loss": 0.3}]


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("options", OPTIONS)
def test_it_equals_the_plain_loss(compiled: list[RawLogits], options: dict[str, float], softcap: float | None) -> None:
    given, target = inputs()
    given = given._replace(scale=0.7, softcap=softcap)
    plain = cross_entropy(given.logits(), target, **options)
    with compiled_loss():
        loss = cross_entropy(given.raw_logits(), target, **options)
    assert compiled[0].raw.shape == (N, 128)
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients(loss, given), gradients(plain, given), **float32(terms=V))


def test_gradients_are_those_of_the_plain_loss_to_the_bit(compiled: list[RawLogits]) -> None:
    """Without padding, which changes the order of the sums in the products."""
    given, target = inputs(biased=False)
    plain = cross_entropy(given.logits(), target)
    with compiled_loss():
        loss = cross_entropy(given.logits(), target)
    assert len(compiled) == 1
    assert abs(loss.item() - plain.item()) <= 1e-7 * abs(plain.item())
    for left, right in zip(gradients(loss, given), gradients(plain, given), strict=True):
        assert torch.equal(left, right)


def test_weights_of_classes_are_compiled_too(compiled: list[RawLogits]) -> None:
    given, target = inputs()
    weights = torch.linspace(0.1, 2, V)
    plain = cross_entropy(given.logits(), target, weights=weights)
    with compiled_loss():
        loss = cross_entropy(given.logits(), target, weights=weights)
    assert len(compiled) == 1
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0)


def test_a_loss_of_few_logits_is_not_compiled(compiled: list[RawLogits], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "FEWEST_COMPILED", N * V + 1)
    given, target = inputs()
    with compiled_loss():
        cross_entropy(given.logits(), target)
    assert compiled == []


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("head.softcap=5.0", "objective.z_loss=1e-3"), id="softcap"),
        pytest.param(("objective.ahead=2",), id="targets-ahead"),
        pytest.param(("head=multi_token",), id="multi-token"),
    ],
)
def test_a_run_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[RawLogits], overrides: tuple[str, ...]
) -> None:
    common = ("tokenizer=byte", "trainer.log_every=1", *overrides)
    plain = text_run(tmp_path / "plain", *common)
    assert compiled == []
    monkeypatch.setattr(Learner, "compiles_loss", True)
    other = text_run(tmp_path / "compiled", *common)
    assert compiled
    assert {call.raw.shape[-1] % projection.ALIGNED for call in compiled} == {0}
    for left, right in zip(rows(other), rows(plain), strict=True):
        assert left == pytest.approx(right, rel=float32(terms=256, layers=4)["rtol"])
