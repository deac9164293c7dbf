"""What a model may know of a hidden patch: nothing but where it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Batch, Inputs
from blockyard.model._embedding import MaskToken
from blockyard.objective._patches import cut, join
from blockyard.objective.restore import Restore
from tests.components.objective.restoring import CO2, DIGITS, TINY, components, stirred

BARE = (
    *("data=digits", "tokenizer=patch", "position=learned", "head=token", "objective=restore", "model=bare"),
    *("block=none", "token_mixer=none", "channel_mixer=none", "norm=none", *TINY[3:]),
)


ARCHITECTURES = (
    DIGITS,
    (*DIGITS, "position.combine=concat", "position=sinusoidal"),
    (*DIGITS, "tokenizer=conv_patch", "tokenizer.size=2"),
    (*DIGITS, "token_mixer=fixed_features"),
    (*DIGITS, "model.prefix.registers=2"),
    BARE,
    (*DIGITS, "model=perceiver", "position=learned"),
    CO2,
    (*CO2, "tokenizer.normalise=instance"),
    (*CO2, "tokenizer.normalise=last", "tokenizer.missing=flag"),
)


@torch.no_grad()
def knows_hidden_values(*overrides: str) -> bool:
    """Whether a prediction changes with the values of hidden patches; asserts that it does with visible ones."""
    parts = components(*overrides)
    model, task = stirred(parts), parts.objective
    assert isinstance(task, Restore)
    task.tokens(parts.tokenizer.spec(parts.data.spec))
    shape = parts.data.spec.shape
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = task.prepare(Batch(x)).hidden
    assert hidden is not None

    def moved(where: Tensor) -> Tensor:
        return join(torch.where(where[..., None], cut(other, task.layout), cut(x, task.layout)), x, task.layout)

    def predicted(images: Tensor) -> Tensor:
        return model(task.prepare(Batch(images)))

    before = predicted(x)
    assert not torch.allclose(predicted(moved(~hidden)), before)
    return not torch.equal(predicted(moved(hidden)), before)


@pytest.mark.parametrize("overrides", ARCHITECTURES, ids=lambda each: " ".join(each[-2:]))
def test_nothing_of_a_hidden_patch_reaches_a_prediction(overrides: tuple[str, ...]) -> None:
    assert not knows_hidden_values(*overrides)


def test_hidden_values_that_are_not_erased_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: with the values in place, the mask token alone hides them from plain patches only."""
    monkeypatch.setattr("blockyard.objective.restore.erase", lambda x, hidden, tokens: x)
    assert not knows_hidden_values(*DIGITS)
    assert not knows_hidden_values(*DIGITS, "token_mixer=fixed_features")
    assert knows_hidden_values(*DIGITS, "tokenizer=conv_patch", "tokenizer.size=2")
    assert knows_hidden_values(*CO2, "tokenizer.normalise=instance")


def test_a_mask_token_that_is_added_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the learned vector is added to hidden tokens instead of replacing them."""
    monkeypatch.setattr("blockyard.objective.restore.erase", lambda x, hidden, tokens: x)

    def add(self: MaskToken, x: Tensor, seq: object, hidden: Tensor) -> Tensor:
        return x + hidden[..., None] * self.vector

    monkeypatch.setattr(MaskToken, "forward", add)
    assert knows_hidden_values(*DIGITS)


def test_the_mask_token_is_learned_and_stands_before_positions() -> None:
    parts = components(*DIGITS)
    model = stirred(parts)
    batch = parts.objective.prepare(Batch(torch.randn(2, 1, 8, 8, dtype=torch.float64)))
    steps = model.steps(batch)
    assert_close(steps["embedded"][batch.hidden], model.mask_token.vector.expand(int(batch.hidden.sum()), -1))
    assert len(steps["placed"][0][batch.hidden[0]].unique(dim=0)) == int(batch.hidden[0].sum())
    parts.objective.loss(model(batch), batch.target).backward()
    assert model.mask_token.vector.grad.abs().sum() > 0


def test_models_without_a_mask_token_hide_nothing() -> None:
    model = components("experiment=vit_digits", *TINY).model(0)
    assert model.mask_token is None
    with pytest.raises(ValueError, match="this model has no mask token"):
        model(Inputs(torch.zeros(1, 1, 8, 8), hidden=torch.zeros(1, 16, dtype=torch.bool)))
    hides = components(*DIGITS).model(0)
    with pytest.raises(ValueError, match=r"hidden of shape \(1, 3\): the model has tokens \(1, 16\)"):
        hides(Inputs(torch.zeros(1, 1, 8, 8), hidden=torch.zeros(1, 3, dtype=torch.bool)))
    assert components(*DIGITS, "objective.rate=0", "objective.noise=0.3").model(0).mask_token is None
