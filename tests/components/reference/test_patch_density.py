"""Mixtures of densities over patches against torch.distributions, their integrals, and what is drawn from them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor
from torch import distributions as dist
from torch.testing import assert_close

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec, Seq
from blockyard.head.mixture import Mixture
from blockyard.objective import patch_density
from blockyard.objective.patch_density import OPEN, PatchDensity, draw, log_density, log_mass, mixture_of
from blockyard.tokenizer.patch_values import PatchValues
from tests.support.helpers import context
from tests.support.tolerances import FLOAT32_STEPS

KINDS = ("normal", "logistic")
SPEC = DataSpec("image", (1, 4, 6), target="class", classes=7, levels=5)


def reference(prediction: Tensor, values: int, kind: str) -> dist.MixtureSameFamily:
    """The mixture by the library, from the layout that the head declares."""
    parts = prediction.unflatten(-1, (-1, 1 + 2 * values))
    mean, scale = parts[..., 1 : 1 + values], parts[..., 1 + values :].exp()
    if kind == "normal":
        component: dist.Distribution = dist.Normal(mean, scale)
    else:
        to_logistic = [dist.SigmoidTransform().inv, dist.AffineTransform(mean, scale)]
        component = dist.TransformedDistribution(dist.Uniform(torch.zeros_like(mean), 1.0), to_logistic)
    return dist.MixtureSameFamily(dist.Categorical(logits=parts[..., 0]), dist.Independent(component, 1))


def objective(kind: str = "logistic", dequantise: str = "uniform") -> tuple[PatchDensity, PatchValues, int]:
    """An objective that knows patches of 2 x 2 pixels of 5 levels, their tokenizer, and V."""
    task, tokenizer = PatchDensity(density=kind, dequantise=dequantise), PatchValues(size=2)  # type: ignore[arg-type]
    return task, tokenizer, task.outputs(SPEC, task.tokens(tokenizer.spec(SPEC)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_density_is_the_librarys(kind: str) -> None:
    prediction, x = torch.randn(3, 6, 5 * 9).double(), torch.randn(3, 6, 4).double()
    ours = log_density(mixture_of(prediction, 4), x, kind)  # type: ignore[arg-type]
    assert_close(ours, reference(prediction, 4, kind).log_prob(x), **FLOAT32_STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_density_of_one_value_integrates_to_one_and_levels_sum_to_one(kind: str) -> None:
    mixture = mixture_of(torch.randn(1, 4 * 3).double(), 1)

    def density(x: float) -> float:
        return math.exp(float(log_density(mixture, torch.tensor([[x]]).double(), kind)))  # type: ignore[arg-type]

    assert abs(quad(density, -60, 60, points=[-3, 0, 3], limit=400)[0] - 1) < 1e-4
    edges = torch.linspace(-1, 1, 18).double()
    edges[0], edges[-1] = -OPEN, OPEN
    mass = log_mass(mixture, edges[:-1, None], edges[1:, None], kind).exp()  # type: ignore[arg-type]
    assert_close(mass.sum(), torch.ones(()).double(), **FLOAT32_STEPS)
    inside = [quad(density, float(a), float(b))[0] for a, b in itertools.pairwise(edges[1:-1])]
    assert_close(mass[1:-1], torch.tensor(inside).double(), **FLOAT32_STEPS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log_scale", [-7.0, 0.0, 5.0])
def test_masses_far_from_every_mean_are_finite_and_have_gradients(kind: str, log_scale: float) -> None:
    prediction = torch.tensor([[0.0, -0.9, log_scale]], requires_grad=True)
    for low, high in ((-OPEN, -0.99), (0.9, 0.91), (0.99, OPEN)):
        edges = torch.tensor([[low]]), torch.tensor([[high]])
        log = log_mass(mixture_of(prediction, 1), *edges, kind)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(log.sum(), prediction)
        assert log.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dequantise", ["uniform", "none"])
def test_the_loss_is_the_mean_over_the_values_that_count(dequantise: str) -> None:
    task, tokenizer, values = objective(dequantise=dequantise)
    images = torch.randint(5, (3, 1, 4, 6), dtype=torch.uint8)
    start = tokenizer.start(torch.zeros(3, dtype=torch.int64))[:, None]
    sequence = torch.cat([start, tokenizer.encode(images)], 1)
    batch = task.ready(Batch(sequence, sample=torch.tensor([4, 9, -1])), key=3)
    assert isinstance(batch.target, Tensor)
    assert_close(batch.target[:2].floor().long(), sequence[:2, 1:])
    assert batch.target[2].isnan().all()
    prediction = torch.randn(3, 6, 2 * (1 + 2 * values)).double()
    mixture = reference(prediction[:2], values, "logistic")
    if dequantise == "uniform":
        nats = -(mixture.log_prob(batch.target[:2] * 0.4 - 1) + values * math.log(0.4))
        assert len(batch.target[:2].frac().unique()) > 40
    else:
        edges = torch.tensor([-OPEN, -0.6, -0.2, 0.2, 0.6, OPEN])
        level = sequence[:2, 1:]
        cdf = [mixture.component_distribution.base_dist.cdf(edges[level + k][..., None, :]) for k in (0, 1)]
        each = (cdf[1] - cdf[0]).prod(-1)  # (B, N, K)
        nats = -(mixture.mixture_distribution.probs * each).sum(-1).log()
    assert_close(task.loss(prediction, batch.target).double(), nats.mean() / values, **FLOAT32_STEPS)
    metrics = task.metrics()
    for metric in metrics.values():
        metric.update(prediction, batch.target)
    assert_close(metrics["bits_per_dim"].compute().double(), nats.mean() / values / math.log(2), **FLOAT32_STEPS)
    assert task.count(batch) == 2 * 6 * values


def test_a_level_without_its_size_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_density, "log_density", lambda mixture, x, kind: log_density(mixture, x + 0.1, kind))
    with pytest.raises(AssertionError):
        test_the_loss_is_the_mean_over_the_values_that_count("uniform")


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_the_mixture(kind: str) -> None:
    prediction, generator = torch.tensor([0.3, -0.5, -2.0, 1.0, 0.5, -1.5]), torch.Generator().manual_seed(0)
    mixture = mixture_of(prediction, 1)
    draws = torch.cat([draw(mixture, kind, 1.0, generator) for _ in range(6000)])  # type: ignore[arg-type]
    weight, mean, scale = mixture.log_weight.exp(), mixture.mean[:, 0], mixture.log_scale[:, 0].exp()
    variance = scale.square() * (1 if kind == "normal" else math.pi**2 / 3)
    expected = (weight * mean).sum()
    assert_close(draws.mean(), expected, atol=0.03, rtol=0)
    assert_close(draws.var(), (weight * (variance + mean.square())).sum() - expected.square(), atol=0.03, rtol=0.05)
    assert_close(draw(mixture, kind, 0.0, generator), torch.tensor([0.5]))  # type: ignore[arg-type]


def test_the_head_starts_with_components_apart_and_limits_their_scales() -> None:
    head = Mixture(context(outputs=3), components=4)
    torch.nn.init.zeros_(head.proj.weight)
    torch.nn.init.constant_(head.proj.bias, -50.0)
    index = torch.arange(2)
    out = head(torch.randn(2, 2, 16), Seq(index, index[None, :, None].float())).unflatten(-1, (4, 7))
    assert_close(out[0, 0, :, 1], torch.tensor([-0.75, -0.25, 0.25, 0.75]) - 50)
    assert_close(out[..., 4:], torch.full_like(out[..., 4:], -7.0))


@pytest.mark.parametrize("order", ["row", "column", "snake", "random"])
def test_patches_follow_their_order_and_give_the_image_back(order: str) -> None:
    tokenizer = PatchValues(size=2, order=order, condition="class")  # type: ignore[arg-type]
    tokenizer.spec(SPEC)
    images = torch.randint(5, (2, 1, 4, 6), dtype=torch.uint8)
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, 6, 4)
    assert torch.equal(tokenizer.decode(tokens), images)
    first = {"row": 1, "column": 3}.get(order)  # the second patch of the order, counted row by row
    if first is not None:
        row, column = divmod(first, 3)
        corner = images[:, 0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.equal(tokens[:, 1], corner.flatten(1).long())
    assert tokenizer.start(torch.tensor([3, 0])).tolist() == [[8] * 4, [5] * 4]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ("tokenizer=patch", "predicts what follows a start token; tokenizer=patch makes none"),
        ("tokenizer=levels", "predicts the values of patches; the tokens of tokenizer=levels share theirs"),
        ("head=token", "needs a mixture of densities per token; head=token gives one prediction per token"),
        ("objective=next_token", "predicts token ids; tokenizer=patch_values gives none"),
        ("objective=next_patch head=token", "objective=next_patch does not"),
        ("model=encoder", "needs a causal model"),
        ("tokenizer.size=3", "does not divide the image"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(overrides: str, problem: str) -> None:
    base = "data=digits tokenizer=patch_values model=decoder head=mixture objective=patch_density"
    changed = [override.split("=")[0] for override in overrides.split()]
    kept = [override for override in base.split() if override.split("=")[0] not in changed]
    issues = check(compose([*kept, "logger=none", *overrides.split()]))
    assert any(problem in str(issue) for issue in issues), [str(issue) for issue in issues]


def test_a_level_that_is_drawn_is_the_one_around_the_value() -> None:
    task = PatchDensity()
    task._levels, task._values = 4, 1
    for level in range(4):
        for share in (0.1, 0.9):
            prediction = torch.tensor([0.0, 2 * (level + share) / 4 - 1, -9.0])
            assert task.draw(prediction, 0.0, torch.Generator()).tolist() == [level]
