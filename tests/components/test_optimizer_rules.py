"""Optimizers of our own against their papers' algorithms, written as loops in float64; kinds of weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from blockyard.contracts import OptimizerBuilder
from blockyard.optimizer.adamw import AdamW
from blockyard.optimizer.muon import Muon
from blockyard.optimizer.normuon import NorMuon, RowNormalised
from blockyard.optimizer.schedule_free import AveragedAdam, ScheduleFree
from blockyard.optimizer.soap import SOAP, EigenbasisAdam
from tests.support.helpers import tiny, token_ids
from tests.support.tolerances import FLOAT64

STEPS = 7
Array = np.ndarray
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's polynomial


def gradients(shape: tuple[int, ...]) -> list[Array]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).numpy() for _ in range(STEPS)]


def start(shape: tuple[int, ...]) -> Array:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).numpy()


def stepped(make: Callable[[list[nn.Parameter]], Any], shape: tuple[int, ...], rates: list[float]) -> Iterator[Array]:
    """The weights after each step, with a learning rate for each."""
    weight = nn.Parameter(torch.from_numpy(start(shape)).clone())
    optimizer = make([{"params": [weight], "weight_decay": 0.1}])
    for gradient, rate in zip(gradients(shape), rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        yield weight.detach().numpy().copy()


RATES = [0.02, 0.04, 0.04, 0.04, 0.03, 0.02, 0.01]


def normuon(shape: tuple[int, ...]) -> Iterator[Array]:
    """Algorithm 1; the polynomial acts on the singular values."""
    w, m, v = start(shape), np.zeros(shape), np.zeros((shape[0], 1))
    for g, rate in zip(gradients(shape), RATES, strict=True):
        m = 0.9 * m + 0.1 * g
        u, s, vt = np.linalg.svd(m / (np.linalg.norm(m) + 1e-7), full_matrices=False)
        for _ in range(5):
            s = COEFFICIENTS[0] * s + COEFFICIENTS[1] * s**3 + COEFFICIENTS[2] * s**5
        o = u @ np.diag(s) @ vt
        v = 0.8 * v + 0.2 * (o**2).mean(1, keepdims=True)
        o = o / (np.sqrt(v) + 1e-8)
        size = 0.2 * rate * np.sqrt(o.size) / np.linalg.norm(o)
        w = w - rate * 0.1 * w - size * o
        yield w


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_normuon_is_its_algorithm(shape: tuple[int, ...]) -> None:
    def make(groups: Any) -> RowNormalised:
        return RowNormalised(groups, lr=1.0, momentum=0.9, second=0.8, steps=5, eps=1e-8)

    for ours, reference in zip(stepped(make, shape, RATES), normuon(shape), strict=True):
        np.testing.assert_allclose(ours, reference, **FLOAT64)
    # Planted: rows have no memory.
    other = stepped(
        lambda groups: RowNormalised(groups, lr=1.0, momentum=0.9, second=0.0, steps=5, eps=1e-8), shape, RATES
    )
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(list(other), list(normuon(shape)), **FLOAT64)


def soap(shape: tuple[int, ...], frequency: int, largest: int = 100) -> Iterator[Array]:
    """Algorithms 3 and 4, with eigenvectors in the order of their values; a long side has the identity."""
    w, m, v = start(shape), np.zeros(shape), np.zeros(shape)
    sides: dict[int, Array] = {}
    bases = {axis: np.eye(size) for axis, size in enumerate(shape)}
    for t, (g, rate) in enumerate(zip(gradients(shape), RATES, strict=True)):
        products = {0: g @ g.T, 1: g.T @ g}
        if t == 0:
            for axis, size in enumerate(shape):
                if size <= largest:
                    sides[axis] = 0.2 * products[axis]
                    bases[axis] = np.linalg.eigh(sides[axis])[1][:, ::-1]
            yield w
            continue
        m = 0.9 * m + 0.1 * g
        v = 0.8 * v + 0.2 * (bases[0].T @ g @ bases[1]) ** 2
        inside = bases[0].T @ m @ bases[1] / (1 - 0.9**t)
        update = bases[0] @ (inside / (np.sqrt(v / (1 - 0.8**t)) + 1e-8)) @ bases[1].T
        w = w - rate * 0.1 * w - rate * update
        for axis, matrix in sides.items():
            sides[axis] = 0.8 * matrix + 0.2 * products[axis]
        if t % frequency == 0:
            for axis, matrix in sides.items():
                order = np.argsort(-np.diag(bases[axis].T @ matrix @ bases[axis]))
                v = np.take(v, order, axis)
                bases[axis] = np.linalg.qr(matrix @ bases[axis][:, order])[0]
        yield w


@pytest.mark.parametrize("frequency", [1, 2, 100])
@pytest.mark.parametrize(("shape", "largest"), [((5, 5), 100), ((3, 8), 5), ((8, 3), 5)])
def test_soap_is_its_algorithm(shape: tuple[int, ...], largest: int, frequency: int) -> None:
    """An eigenvector, or a column of a QR decomposition, may have either sign, which the update does not see.

    The products of the first gradient have full rank here; otherwise some of their eigenvectors could be any.
    """
    options = {"lr": 1.0, "betas": (0.9, 0.8), "shampoo": 0.8, "frequency": frequency, "largest": largest, "eps": 1e-8}
    pairs = zip(
        stepped(lambda groups: EigenbasisAdam(groups, **options), shape, RATES),
        soap(shape, frequency, largest),
        strict=True,
    )
    for ours, reference in pairs:
        np.testing.assert_allclose(ours, reference, rtol=1e-7, atol=1e-7)
    # Planted: moments of another decay.
    options["betas"] = (0.9, 0.7)
    other = stepped(lambda groups: EigenbasisAdam(groups, **options), shape, RATES)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(list(other), list(soap(shape, frequency, largest)), rtol=1e-7, atol=1e-7)


def schedule_free(shape: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Algorithm 1 with its two sequences alone: y follows from them. Yields y and x."""
    z, x, v, total = start(shape), start(shape), np.zeros(shape), 0.0
    for t, (g, rate) in enumerate(zip(gradients(shape), RATES, strict=True), start=1):
        y = (1 - 0.9) * z + 0.9 * x
        v = 0.95 * v + 0.05 * g**2
        z = z - rate * (g / (np.sqrt(v / (1 - 0.95**t)) + 1e-8) + 0.1 * y)
        total += rate**2
        x = x + rate**2 / total * (z - x)
        yield (1 - 0.9) * z + 0.9 * x, x


def test_schedule_free_is_its_algorithm_and_exchanges_exactly() -> None:
    weight = nn.Parameter(torch.from_numpy(start((3, 5))).clone())
    optimizer = AveragedAdam([{"params": [weight], "weight_decay": 0.1}], lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for gradient, rate, (y, x) in zip(gradients((3, 5)), RATES, schedule_free((3, 5)), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        np.testing.assert_allclose(weight.detach().numpy(), y, **FLOAT64)
        before = weight.detach().clone()
        optimizer.exchange()
        np.testing.assert_allclose(weight.detach().numpy(), x, **FLOAT64)
        with pytest.raises(RuntimeError, match="exchange the weights back"):
            optimizer.step()
        optimizer.exchange()
        assert torch.equal(weight, before)


def adamw(shape: tuple[int, ...], cautious: bool) -> Iterator[Array]:
    w, m, v = start(shape), np.zeros(shape), np.zeros(shape)
    for t, (g, rate) in enumerate(zip(gradients(shape), RATES, strict=True), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        decays = (u * w >= 0) if cautious else np.ones(shape)
        w = w - rate * u - rate * 0.1 * decays * w
        yield w


class OneMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(5, 3, bias=False).double()


@pytest.mark.parametrize("cautious", [False, True])
def test_cautious_decay_is_its_algorithm(cautious: bool) -> None:
    model = OneMatrix()
    weight = model.weight.weight
    with torch.no_grad():
        weight.copy_(torch.from_numpy(start((3, 5))))
    optimizer = AdamW(weight_decay=0.1, cautious=cautious).build(model)
    for gradient, rate, reference in zip(gradients((3, 5)), RATES, adamw((3, 5), cautious), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        np.testing.assert_allclose(weight.detach().numpy(), reference, **FLOAT64)
    plain = list(adamw((3, 5), not cautious))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(weight.detach().numpy(), plain[-1], **FLOAT64)


def decays_of(builder: OptimizerBuilder, factors: tuple[float, ...]) -> list[float]:
    """What a weight of 1 loses to decay in each step, without a gradient to speak of."""
    model = tiny(causal=True)
    optimizer = builder.build(model)
    taken = []
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    for factor in factors:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        builder.start_step(optimizer, factor)
        taken.append(max(group["lr"] * group["weight_decay"] for group in optimizer.param_groups))
    return taken


@pytest.mark.parametrize("builder", [AdamW, Muon, NorMuon, SOAP])
def test_decay_follows_what_it_says(builder: Any) -> None:
    factors = (0.5, 1.0, 0.25)
    assert decays_of(builder(lr=0.02, weight_decay=0.1), factors) == pytest.approx([0.001, 0.002, 0.0005])
    free = decays_of(builder(lr=0.02, weight_decay=0.1, decay_by="independent"), factors)
    assert free == pytest.approx([0.05, 0.1, 0.025])
    assert free == pytest.approx(decays_of(builder(lr=0.5, weight_decay=0.1, decay_by="independent"), factors))
    fading = decays_of(builder(lr=0.02, weight_decay=0.1, decay_by="fading"), factors)
    assert fading == pytest.approx([0.0005, 0.002, 0.000125])
    for options in ({"decay_by": "fading"}, {"decay_by": "independent"}, {"cautious": True}):
        with pytest.raises(ValueError, match=r"is about optimizer\.weight_decay, which is 0"):
            builder(weight_decay=0.0, **options)


@pytest.mark.parametrize("builder", [AdamW, Muon, NorMuon, SOAP])
def test_cautious_decay_takes_part_of_the_weights(builder: Any) -> None:
    """Of every optimizer: where it decays it is the plain step, elsewhere the step without decay."""

    def after(**options: Any) -> dict[str, Tensor]:
        model = tiny(causal=True, token_mixer="attention")
        optimizer = builder(lr=0.01, **options).build(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(token_ids(2, 6)).square().mean().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
        return {name: p.detach() - before[name] for name, p in model.named_parameters()}

    # The first step is the same of all, so that only the second one differs; without decay in the first.
    cautious = after(weight_decay=0.3, cautious=True)
    assert cautious.keys() == after(weight_decay=0.3).keys()
    changed = sum(not torch.equal(cautious[name], other) for name, other in after(weight_decay=0.3).items())
    assert changed > 3


def test_schedule_free_refuses_statistics_over_tokens() -> None:
    assert "statistics norm=batch keeps" in " ".join(ScheduleFree().model_problems(tiny(norm="batch")))
    assert not ScheduleFree().model_problems(tiny(norm="layer"))
