"""The chunked cross entropy: the plain one of all logits, in value and in every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch
from blockyard.objective import _cross_entropy
from blockyard.objective._cross_entropy import chunked_cross_entropy, cross_entropy
from blockyard.objective.next_token import NextToken
from blockyard.ops import projection
from blockyard.ops.projection import Projection, deferred
from tests.support.helpers import tiny, token_ids
from tests.support.tolerances import FLOAT64

N, D, V = 23, 6, 11


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Projection, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for size in ((1, N, D), (V, D), (V,))
    )
    target = torch.randint(V, (1, N), generator=generator)
    target[0, ::5] = Batch.ignore
    return Projection(x, weight, bias), target


def value_and_gradients(loss: Tensor, of: Projection) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss * 1.7, [each for each in of[:3] if each is not None])]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2}, {"z_loss": 0.3}, {"label_smoothing": 0.1, "z_loss": 0.01}]
)
@pytest.mark.parametrize("count", [1, 7, 100])
def test_it_equals_the_loss_of_all_logits(count: int, options: dict[str, float], biased: bool) -> None:
    inputs, target = tensors()
    inputs = inputs if biased else inputs._replace(bias=None)
    plain = value_and_gradients(cross_entropy(inputs.logits(), target, **options), inputs)
    chunked = value_and_gradients(chunked_cross_entropy(inputs, target, chunk=count, **options), inputs)
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "z_loss": 0.01}])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_it_equals_the_loss_of_scaled_and_capped_logits(softcap: float | None, options: dict[str, float]) -> None:
    """Logits of a size of about 3, so that the cap bends most of them."""
    inputs, target = tensors()
    inputs = inputs._replace(scale=0.7, softcap=softcap)
    own = value_and_gradients(chunked_cross_entropy(inputs, target, chunk=7, **options), inputs)
    logits = 0.7 * (inputs.x @ inputs.weight.T + inputs.bias)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    torch.testing.assert_close(own, value_and_gradients(cross_entropy(logits, target, **options), inputs), **FLOAT64)


@pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="needs torch.nn.functional.linear_cross_entropy (torch >= 2.14)"
)
def test_it_equals_that_of_torch() -> None:
    inputs, target = tensors()
    loss = F.linear_cross_entropy(inputs.x[0], inputs.weight, target[0], label_smoothing=0.1)
    inputs = inputs._replace(bias=None)
    own = value_and_gradients(chunked_cross_entropy(inputs, target, label_smoothing=0.1, chunk=4), inputs)
    torch.testing.assert_close(own, value_and_gradients(loss, inputs), rtol=1e-12, atol=1e-14)


def test_a_sign_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = _cross_entropy._loss_and_slope

    def planted(logits: Tensor, target: Tensor, smoothing: float, z_loss: float) -> tuple[Tensor, Tensor]:
        return correct(logits, target, smoothing, 0.0)[0], correct(logits, target, smoothing, -z_loss)[1]

    monkeypatch.setattr(_cross_entropy, "_loss_and_slope", planted)
    with pytest.raises(AssertionError):
        test_it_equals_the_loss_of_all_logits(7, {"z_loss": 0.3}, True)


def test_no_target_is_nan_with_gradients_of_zero() -> None:
    inputs, target = tensors()
    target.fill_(Batch.ignore)
    loss = chunked_cross_entropy(inputs, target)
    assert loss.isnan()
    for gradient in torch.autograd.grad(torch.where(torch.tensor(False), loss, 0.0), inputs[:3]):
        assert not gradient.any()


def test_under_autocast_it_is_as_exact_as_the_plain_loss() -> None:
    inputs, target = tensors(torch.float32)
    exact = value_and_gradients(cross_entropy(inputs.logits(), target), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        plain = value_and_gradients(cross_entropy(inputs.logits(), target), inputs)
        chunked = value_and_gradients(chunked_cross_entropy(inputs, target, chunk=7), inputs)
    for reference, one, other in zip(exact, plain, chunked, strict=True):
        assert other.dtype == reference.dtype
        assert (other - reference).norm() <= 1.5 * (one - reference).norm() + 1e-3 * reference.norm()


def test_gradients_are_used_once() -> None:
    inputs, target = tensors()
    loss = chunked_cross_entropy(inputs, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="were used"):
        loss.backward()


@pytest.mark.parametrize("options", [{}, {"scale": 0.5, "softcap": 2.0}])
def test_the_head_leaves_many_logits_to_the_loss_only_where_it_may(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tied table gets one gradient of both uses."""
    model, objective = tiny(causal=True, head="token", options={"head": {"tied": True, **options}}), NextToken()
    batch = objective.prepare(Batch(token_ids(2, 7)))
    plain = objective.loss(model(batch), batch.target)
    plain.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    with deferred():
        assert isinstance(model(batch), Tensor)
        monkeypatch.setattr(projection, "LOGITS", 1)
        prediction = model(batch)
    assert isinstance(prediction, Projection)
    assert isinstance(model(batch), Tensor)
    chunked = objective.loss(prediction, batch.target)
    chunked.backward()
    torch.testing.assert_close(chunked, plain)
    for name, each in model.named_parameters():
        torch.testing.assert_close(each.grad, gradients[name])
