"""Optimizers of our own against their papers' algorithms, written as loops in float64; kinds of weight decay."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.commands._model_card import print_card
from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.contracts import OptimizerBuilder
from blockyard.optimizer import _newton_schulz
from blockyard.optimizer._matrices import Arithmetic
from blockyard.optimizer._newton_schulz import orthogonal
from blockyard.optimizer.adamw import AdamW
from blockyard.optimizer.dion import Dion, LowRankSteps, first_columns
from blockyard.optimizer.hyperball import AdamSphereSteps, Hyperball, SphereSteps
from blockyard.optimizer.muon import Muon, OrthogonalSteps
from blockyard.optimizer.normuon import NorMuon, RowNormalised
from blockyard.optimizer.schedule_free import AveragedAdam, ScheduleFree
from blockyard.optimizer.soap import SOAP, EigenbasisAdam
from blockyard.runs.identity import identity
from tests.support.helpers import tiny, token_ids
from tests.support.tiny import ONE_LAYER
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
        u, s, vt = np.linalg.svd(m / np.linalg.norm(m), full_matrices=False)
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
        return RowNormalised(groups, lr=1.0, momentum=0.9, second=0.8, steps=5, arithmetic="float32", eps=1e-8)

    for ours, reference in zip(stepped(make, shape, RATES), normuon(shape), strict=True):
        np.testing.assert_allclose(ours, reference, **FLOAT64)
    # Planted: rows have no memory.
    options: dict[str, Any] = {"momentum": 0.9, "second": 0.0, "steps": 5, "arithmetic": "float32", "eps": 1e-8}
    other = stepped(lambda groups: RowNormalised(groups, lr=1.0, **options), shape, RATES)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(list(other), list(normuon(shape)), **FLOAT64)


def polynomial(matrix: Array) -> Array:
    """Five steps of Jordan's iteration; the polynomial acts on the singular values."""
    u, s, vt = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
    for _ in range(5):
        s = COEFFICIENTS[0] * s + COEFFICIENTS[1] * s**3 + COEFFICIENTS[2] * s**5
    return u @ np.diag(s) @ vt


def hyperball(shape: tuple[int, ...], direction: str) -> Iterator[Array]:
    """A step of length lr R along the update, and back to the sphere; weight decay is in no place of it."""
    w, m, v = start(shape), np.zeros(shape), np.zeros(shape)
    radius = np.linalg.norm(w)
    for t, (g, rate) in enumerate(zip(gradients(shape), RATES, strict=True), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.8 * v + 0.2 * g**2
        if direction == "muon":
            update = polynomial(0.9 * m + 0.1 * g)
        else:
            update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.8**t)) + 1e-8)
        moved = w - rate * radius * update / np.linalg.norm(update)
        w = moved * radius / np.linalg.norm(moved)
        yield w


@pytest.mark.parametrize("direction", ["muon", "adam"])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_hyperball_is_its_equations(shape: tuple[int, ...], direction: Any) -> None:
    kind: Any = SphereSteps
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "steps": 5, "arithmetic": "float32"}
    forgetful: dict[str, Any] = {"momentum": 0.8}
    if direction == "adam":
        kind = AdamSphereSteps
        options = {"betas": (0.9, 0.8), "eps": 1e-8}
        forgetful = {"betas": (0.8, 0.8)}

    def make(groups: Any) -> Any:
        return kind(groups, lr=1.0, **options)

    reference = list(hyperball(shape, direction))
    ours = list(stepped(make, shape, RATES))
    np.testing.assert_allclose(ours, reference, **FLOAT64)
    norms = [np.linalg.norm(w) for w in ours]
    np.testing.assert_allclose(norms, np.linalg.norm(start(shape)), **FLOAT64)
    # Planted: moments that forget sooner.
    options |= forgetful
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(list(stepped(make, shape, RATES)), reference, **FLOAT64)


@pytest.mark.parametrize("size", [16, 64, 512])
def test_a_gradient_of_zero_changes_nothing(size: int) -> None:
    """The learning rate was divided by the norm of the update first, which gave inf * 0 = NaN."""
    start = torch.randn(size, size)
    rules: list[tuple[Any, dict[str, Any]]] = [(AdamSphereSteps, {"betas": (0.9, 0.9), "eps": 1e-8})]
    for arithmetic in get_args(Arithmetic):
        common = {"momentum": 0.9, "steps": 2, "arithmetic": arithmetic}
        rules.append((RowNormalised, {**common, "second": 0.9, "eps": 1e-8}))
        rules.append((SphereSteps, {**common, "nesterov": True}))
    for kind, options in rules:
        weight = torch.nn.Parameter(start.clone())
        weight.grad = torch.zeros_like(weight)
        kind([{"params": [weight]}], lr=0.9, **options).step()
        assert_close(weight, start, rtol=1e-5, atol=0)


def test_hyperball_leaves_matrices_that_start_at_zero_to_adamw() -> None:
    composed = compose([*ONE_LAYER, "model.zero_branches=true"])
    assert not composed.issues
    model = Components(composed.config).model(0)
    optimizer = Hyperball(lr=0.02, weight_decay=0.3).build(model)
    sphere, adam = optimizer.parts
    assert isinstance(sphere, SphereSteps)
    assert isinstance(adam, torch.optim.AdamW)
    names = {id(p): name for name, p in model.named_parameters()}
    held = {names[id(p)] for group in sphere.param_groups for p in group["params"]}
    rest = {names[id(p)] for group in adam.param_groups for p in group["params"]}
    zero = {name for name, p in model.named_parameters() if p.ndim == 2 and not p.any()}
    assert held
    assert zero
    assert zero <= rest
    assert not held & rest
    assert {group["weight_decay"] for group in sphere.param_groups} == {0.0}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    after = dict(model.named_parameters())
    for name in held:
        torch.testing.assert_close(after[name].norm(), before[name].norm())
        turned = 1 - torch.cosine_similarity(after[name].flatten(), before[name].flatten(), dim=0)
        assert 0 < turned <= (3 * 0.02) ** 2 / 2 * 1.01
    assert sum(bool(after[name].any()) for name in zero) > 0


def test_hyperball_refuses_a_matrix_without_a_norm() -> None:
    weight = nn.Parameter(torch.zeros(3, 4))
    weight.grad = torch.ones(3, 4)
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "steps": 5, "arithmetic": "float32"}
    optimizer = SphereSteps([{"params": [weight]}], lr=0.1, **options)
    with pytest.raises(ValueError, match=r"\(3, 4\) is zero at the first step"):
        optimizer.step()


MATRIX_RULES: list[Any] = [
    pytest.param(OrthogonalSteps, {"ns_steps": 5, "nesterov": True, "adjust_lr_fn": "original"}, id="muon"),
    pytest.param(RowNormalised, {"steps": 5, "second": 0.8, "eps": 1e-8}, id="normuon"),
    pytest.param(SphereSteps, {"steps": 5, "nesterov": True}, id="hyperball"),
]


@pytest.mark.parametrize(("kind", "options"), MATRIX_RULES)
def test_matrices_of_one_shape_in_a_batch_move_as_alone(
    monkeypatch: pytest.MonkeyPatch, kind: Any, options: dict[str, Any]
) -> None:
    """Six matrices of two shapes in two groups of other rates, one of them without a gradient."""

    def weights_after(batched: bool) -> list[Tensor]:
        sizes: list[int] = []
        orthogonal_alone = orthogonal

        def counted(matrix: Tensor, *arguments: Any) -> Tensor:
            sizes.append(len(matrix) if matrix.dim() == 3 else 1)
            return orthogonal_alone(matrix, *arguments)

        monkeypatch.setattr(_newton_schulz, "batches_products", lambda _p: batched)
        monkeypatch.setattr(_newton_schulz, "orthogonal", counted)
        generator = torch.Generator().manual_seed(1)
        shapes = [(4, 6), (9, 3), (4, 6), (4, 6), (9, 3), (4, 6)]
        weights = [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
        groups = [{"params": weights[:3], "lr": 0.1}, {"params": weights[3:], "lr": 0.02, "weight_decay": 0.3}]
        optimizer = kind(groups, lr=0.1, momentum=0.9, arithmetic="float32", **options)
        for _ in range(3):
            for weight in weights[1:]:
                weight.grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        assert sizes == ([2, 3] * 3 if batched else [1] * 15)
        return [weight.detach() for weight in weights]

    assert_close(weights_after(batched=True), weights_after(batched=False), **FLOAT64)


def muon_of_torch(groups: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(groups, lr=1.0, momentum=0.9, ns_steps=5, **options)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (48, 16)])
def test_muon_is_torchs_muon_to_the_bit_and_loads_its_checkpoints(shape: tuple[int, ...]) -> None:
    scales: list[Any] = ["match_rms_adamw", "original"]
    for nesterov, scale in itertools.product([True, False], scales):
        options = {"nesterov": nesterov, "adjust_lr_fn": scale}
        weights = [nn.Parameter(torch.from_numpy(start(shape)).float()) for _ in range(2)]
        groups = [[{"params": [weight], "weight_decay": 0.1}] for weight in weights]
        reference = muon_of_torch(groups[0], **options)
        step = OrthogonalSteps(groups[1], lr=1.0, momentum=0.9, ns_steps=5, arithmetic="bfloat16", **options)
        for number, gradient in enumerate(gradients(shape)):
            for weight, optimizer in zip(weights, (reference, step), strict=True):
                optimizer.param_groups[0]["lr"] = RATES[number]
                weight.grad = torch.from_numpy(gradient).float()
                optimizer.step()
            assert torch.equal(*weights)
            if number == 3:  # a checkpoint of torch's
                step.load_state_dict(copy.deepcopy(reference.state_dict()))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (48, 16)])
def test_newton_schulz_in_float32_is_the_polynomial_of_the_singular_values(shape: tuple[int, ...]) -> None:
    matrix = start(shape)
    exact = orthogonal(torch.from_numpy(matrix), 5, "float32").numpy()
    np.testing.assert_allclose(exact, polynomial(matrix), **FLOAT64)
    rounded = orthogonal(torch.from_numpy(matrix), 5, "bfloat16").numpy()
    assert 1e-3 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 0.04


def test_optimizers_with_newton_schulz_compute_it_in_one_arithmetic() -> None:
    """A comparison of two of them has no second difference."""
    for name, kind in (("muon", OrthogonalSteps), ("normuon", RowNormalised), ("hyperball", SphereSteps)):
        for overrides, expected in (((), "bfloat16"), (("optimizer.arithmetic=float32",), "float32")):
            composed = compose([*ONE_LAYER, f"optimizer={name}", *overrides])
            assert not composed.issues
            assert composed.config["optimizer"]["arithmetic"] == expected
            components = Components(composed.config)
            matrices = components.optimizer.build(components.model(0)).parts[0]
            assert isinstance(matrices, kind)
            assert matrices.arithmetic == expected


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("optimizer=muon",), "optimizer   Newton-Schulz in bfloat16"),
        (("optimizer=hyperball", "optimizer.arithmetic=float32"), "optimizer   Newton-Schulz in float32"),
        (("optimizer=hyperball", "optimizer.direction=adam"), None),
    ],
)
def test_check_states_the_arithmetic(
    overrides: tuple[str, ...], line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    composed = compose([*ONE_LAYER, *overrides])
    print_card(composed.config, composed.choices)
    lines = capsys.readouterr().out.splitlines()
    assert [text.strip() for text in lines if "Newton-Schulz" in text] == ([] if line is None else [line])


@pytest.mark.parametrize("name", ["normuon", "hyperball"])
def test_a_config_from_before_the_arithmetic_is_float32_and_another_run(name: str) -> None:
    """Runs of that time computed in float32; Muon has always computed in bfloat16."""
    config = compose([*ONE_LAYER, f"optimizer={name}"]).config
    old = copy.deepcopy(config)
    del old["optimizer"]["arithmetic"]
    assert Components(old).optimizer.arithmetic == "float32"
    assert identity(old) != identity(config)
    muon = compose([*ONE_LAYER, "optimizer=muon"]).config
    old = copy.deepcopy(muon)
    del old["optimizer"]["arithmetic"]
    assert identity(old) == identity(muon)


def dion(shape: tuple[int, ...], rank: int, scale: float) -> Iterator[Array]:
    """Algorithm 1. A column of a QR decomposition may have either sign, which does not show in the product."""
    w, m = start(shape), np.zeros(shape)
    columns = first_columns(torch.empty(shape, dtype=torch.float64), rank / min(shape)).numpy()
    for g, rate in zip(gradients(shape), RATES, strict=True):
        b = m + g
        left = np.linalg.qr(b @ columns)[0]
        right = b.T @ left
        m = b - (1 - 0.9) * left @ right.T
        columns = right / (np.linalg.norm(right, axis=0) + 1e-8)
        w = w - rate * 0.1 * w - rate * scale * left @ columns.T
        yield w


@pytest.mark.parametrize("rank", [1, 3, 4])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_dion_is_its_algorithm(shape: tuple[int, ...], rank: int) -> None:
    scales: dict[Any, float] = {"original": (shape[0] / shape[1]) ** 0.5, "match_rms_adamw": 0.2 * 6**0.5}
    for scale, size in scales.items():
        options = {"momentum": 0.9, "rank": rank / 4, "scale": scale, "eps": 1e-8}

        def make(groups: Any, options: dict[str, Any] = options) -> LowRankSteps:
            return LowRankSteps(groups, lr=1.0, **options)

        reference = list(dion(shape, rank, size))
        np.testing.assert_allclose(list(stepped(make, shape, RATES)), reference, rtol=1e-8, atol=1e-8)
        # Planted: all of the momentum fades, used or not.
        options["momentum"] = 0.5
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(list(stepped(make, shape, RATES)), reference, rtol=1e-8, atol=1e-8)


def test_dion_of_full_rank_is_orthogonal_and_keeps_what_it_does_not_use() -> None:
    """With one gradient again and again the power iteration finds its singular vectors, as Muon's update has them."""
    gradient = torch.from_numpy(start((4, 6)))
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimizer = LowRankSteps([{"params": [weight]}], lr=1.0, momentum=0.9, rank=1.0, scale="original", eps=1e-12)
    for _ in range(300):
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
    u, _, vt = torch.linalg.svd(gradient, full_matrices=False)
    torch.testing.assert_close(before - weight.detach(), (4 / 6) ** 0.5 * u @ vt, rtol=1e-5, atol=1e-5)
    # One column of four: what is orthogonal to it grows by the whole gradient at each step.
    optimizer = LowRankSteps([{"params": [weight]}], lr=1.0, momentum=0.0, rank=0.25, scale="original", eps=1e-12)
    weight.grad = gradient.clone()
    optimizer.step()
    kept = optimizer.state[weight]["momentum_buffer"]
    assert torch.linalg.matrix_rank(kept) == 3


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


@pytest.mark.parametrize("builder", [AdamW, Muon, NorMuon, SOAP, Dion])
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


@pytest.mark.parametrize("builder", [AdamW, Muon, NorMuon, SOAP, Dion])
def test_cautious_decay_takes_part_of_the_weights(builder: Any) -> None:
    """Of every optimizer: where it decays it is the plain step, elsewhere the step without decay."""

    def second(cautious: bool, decays: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights before and after the second step; the first has no decay, so that it is the same of all."""
        model = tiny(causal=True, token_mixer="attention")
        optimizer = builder(lr=0.01, weight_decay=0.3, cautious=cautious).build(model)
        kept = [group["weight_decay"] for group in optimizer.param_groups]
        for factor in (0.0, float(decays)):
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            for group, own in zip(optimizer.param_groups, kept, strict=True):
                group["weight_decay"] = own * factor
            optimizer.zero_grad()
            model(token_ids(2, 6)).square().mean().backward()
            optimizer.step()
        return before, {name: p.detach() for name, p in model.named_parameters()}

    (before, free), (_, full), (_, some) = second(False, False), second(False, True), second(True, True)
    mixed = 0
    for name, old in before.items():
        wanted = torch.where((old - free[name]) * old >= 0, full[name], free[name])
        assert_close(some[name], wanted, rtol=1e-9, atol=1e-9)
        mixed += not torch.equal(some[name], full[name]) and not torch.equal(some[name], free[name])
    assert mixed > 3


OPTIONS_OF_BOTH: list[tuple[Any, dict[str, Any]]] = [
    (NorMuon, {"momentum": 0.8, "second": 0.7, "ns_steps": 3, "eps": 1e-6, "betas": (0.6, 0.5)}),
    (SOAP, {"betas": (0.8, 0.7), "shampoo": 0.6, "frequency": 3, "largest": 20, "eps": 1e-6}),
    (Dion, {"momentum": 0.8, "rank": 0.5, "scale": "original", "eps": 1e-6, "betas": (0.6, 0.5)}),
    (Hyperball, {"momentum": 0.8, "nesterov": False, "ns_steps": 3, "betas": (0.8, 0.7)}),
    (Hyperball, {"direction": "adam", "betas": (0.8, 0.7), "eps": 1e-6}),
    (Muon, {"momentum": 0.8, "nesterov": False, "ns_steps": 3, "scale": "original", "betas": (0.6, 0.5)}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS_OF_BOTH)
def test_options_reach_the_steps_of_matrices_and_of_the_rest(kind: Any, options: dict[str, Any]) -> None:
    matrices, adam = kind(**options).build(tiny(causal=True)).parts
    torchs = {"ns_steps": "ns_steps", "scale": "adjust_lr_fn"}  # names of torch.optim.Muon
    names = torchs if kind is Muon else {"ns_steps": "steps"}
    own = dict(options)
    by_adam = own.pop("direction", "muon") == "adam"
    assert isinstance(matrices, AdamSphereSteps) == by_adam
    if kind is not SOAP and not by_adam:
        own.pop("betas")
    for name, value in own.items():
        assert {group[names.get(name, name)] for group in matrices.param_groups} == {value}, name
    assert {group["betas"] for group in adam.param_groups} == {options["betas"]}
    assert {group["eps"] for group in adam.param_groups} == {options.get("eps", 1e-8)}


def test_schedule_free_refuses_statistics_over_tokens() -> None:
    assert "statistics norm=batch keeps" in " ".join(ScheduleFree().model_problems(tiny(norm="batch")))
    assert not ScheduleFree().model_problems(tiny(norm="layer"))
