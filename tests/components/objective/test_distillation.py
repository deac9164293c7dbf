"""The divergence from a teacher: its formula, its gradients, and what of an objective it leaves as it is."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Batch, NonNegative
from blockyard.objective._distillation import DistilledObjective, divergence
from blockyard.objective.classify import Classify, MixedClasses
from blockyard.objective.masked_token import MaskedToken
from blockyard.objective.next_token import NextToken
from blockyard.ops.projection import Projection
from tests.support.tolerances import FLOAT64

SHAPES = {"classes": (7, 5), "tokens": (3, 4, 5)}


def logits(*shape: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_divergence_is_hintons_in_terms_of_torch(shape: tuple[int, ...], temperature: float) -> None:
    student, teacher = logits(*shape, seed=0), logits(*shape, seed=1)
    counted = torch.ones(shape[:-1], dtype=torch.bool)
    pair = [(each / temperature).log_softmax(-1).flatten(0, -2) for each in (student, teacher)]
    expected = temperature**2 * F.kl_div(*pair, reduction="batchmean", log_target=True)
    assert_close(divergence(student, teacher, counted, temperature), expected, **FLOAT64)
    p, q = ((each / temperature).exp() / (each / temperature).exp().sum(-1, True) for each in (teacher, student))
    assert_close(expected, temperature**2 * (p * (p / q).log()).sum(-1).mean(), **FLOAT64)


def test_targets_that_do_not_count_are_left_out_and_nothing_is_zero() -> None:
    student, teacher = logits(2, 3, 5, seed=0).requires_grad_(), logits(2, 3, 5, seed=1)
    counted = torch.tensor([[True, False, True], [False, False, True]])
    apart = divergence(student[counted], teacher[counted], torch.ones(3, dtype=torch.bool), 2.0)
    whole = divergence(student, teacher, counted, 2.0)
    assert_close(whole, apart, **FLOAT64)
    (gradient,) = torch.autograd.grad(whole, student)
    assert (gradient[~counted] == 0).all()
    assert (gradient[counted] != 0).all()
    none = divergence(student, teacher, torch.zeros_like(counted), 2.0)
    assert none.item() == 0.0
    assert (torch.autograd.grad(none, student)[0] == 0).all()


def test_the_gradient_keeps_its_size_as_the_temperature_grows() -> None:
    """At high temperatures it is that of half the squared distance of centred logits (section 2.1 of the paper)."""
    student, teacher = logits(4, 5, seed=0).requires_grad_(), logits(4, 5, seed=1)
    (gradient,) = torch.autograd.grad(divergence(student, teacher, torch.ones(4, dtype=torch.bool), 1e4), student)
    centred = [each - each.mean(-1, keepdim=True) for each in (student, teacher)]
    assert_close(gradient, (centred[0] - centred[1]).detach() / 5 / 4, rtol=1e-2, atol=1e-4)


def test_the_difference_of_half_precision_is_taken_in_float32() -> None:
    student, teacher = logits(4, 5, seed=0).bfloat16(), logits(4, 5, seed=1).bfloat16()
    counted = torch.ones(4, dtype=torch.bool)
    single = divergence(student, teacher, counted, 2.0)
    assert single.dtype == torch.float32
    assert_close(single.double(), divergence(student.double(), teacher.double(), counted, 2.0), rtol=1e-5, atol=1e-6)


OBJECTIVES: dict[str, tuple[type[DistilledObjective], tuple[int, ...]]] = {
    "classify": (Classify, (6, 5)),
    "next_token": (NextToken, (3, 4, 5)),
    "masked_token": (MaskedToken, (3, 4, 5)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_objective_adds_its_own_loss_and_the_divergence(name: str, share: float) -> None:
    kind, shape = OBJECTIVES[name]
    own: dict[str, NonNegative] = {"label_smoothing": 0.1, "z_loss": 0.01}
    objective = kind(teacher="run", temperature=3.0, teacher_weight=share, **own)
    student, teacher = logits(*shape, seed=0), logits(*shape, seed=1)
    target = torch.randint(5, shape[:-1], generator=torch.Generator().manual_seed(2))
    target.view(-1)[1] = Batch.ignore
    loss = objective.loss(student, target)
    assert_close(loss, kind(**own).loss(student, target), rtol=0, atol=0)  # what `loss` is does not depend on a teacher
    counted = target != Batch.ignore
    pair = [(each / 3).log_softmax(-1)[counted] for each in (student, teacher)]
    expected = (1 - share) * loss + share * 9 * F.kl_div(*pair, reduction="batchmean", log_target=True)
    assert_close(objective.distilled(loss, student, teacher, target), expected, **FLOAT64)


def test_mixed_samples_are_compared_with_the_teachers_view_of_the_mixture() -> None:
    objective = Classify(teacher="run", mixup=0.2, teacher_weight=0.5)
    student, teacher = logits(6, 5, seed=0), logits(6, 5, seed=1)
    target = MixedClasses(torch.arange(6) % 5, (torch.arange(6) + 2) % 5, torch.full((6,), 0.3))
    loss = objective.loss(student, target)
    expected = 0.5 * loss + 0.5 * divergence(student, teacher, torch.ones(6, dtype=torch.bool), 2.0)
    assert_close(objective.distilled(loss, student, teacher, target), expected, **FLOAT64)


def test_logits_that_a_head_leaves_to_the_loss_are_computed() -> None:
    objective = NextToken(teacher="run")
    x, weight = logits(2, 3, 4, seed=0), logits(5, 4, seed=1)
    teacher, target = logits(2, 3, 5, seed=2), torch.arange(6).reshape(2, 3) % 5
    loss = objective.loss(x @ weight.T, target)
    deferred = objective.distilled(loss, Projection(x, weight), teacher, target)
    assert_close(deferred, objective.distilled(loss, x @ weight.T, teacher, target), **FLOAT64)


@pytest.mark.parametrize("options", [{"temperature": 3.0}, {"teacher_weight": 0.9}, {"teacher_sha256": "ab"}], ids=list)
def test_options_of_a_teacher_without_one_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"objective.{next(iter(options))}: nothing is compared without"):
        Classify(**options)  # type: ignore[arg-type]
    assert Classify().distillation is None
