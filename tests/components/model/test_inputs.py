"""What a model is called with: one object, the same for every model."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch
from torch.testing import assert_close

from blockyard.contracts import Batch, Inputs
from tests.components.model.tiny_models import build_tiny
from tests.support.helpers import choices, tiny, token_ids

MODELS = choices("model")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_called_alike(name: str) -> None:
    """A new fact of a batch is one more field of `Inputs`, and changes no signature."""
    model = build_tiny(name)
    assert list(inspect.signature(model.forward).parameters) == ["inputs", "cache", "record"]
    assert list(inspect.signature(model.steps).parameters) == ["inputs", "cache"]
    assert list(inspect.signature(model.kernels).parameters) == ["inputs"]


def test_a_batch_is_what_a_model_reads() -> None:
    """A batch, its inputs alone and a tensor predict the same; what only the objective reads changes nothing."""
    model, ids = tiny(), token_ids(2, 6)
    expected = model(ids)
    assert_close(model(Inputs(ids)), expected, rtol=0, atol=0)
    batch = Batch(ids, torch.zeros(2), weight=torch.tensor(2.0), sample=torch.arange(2))
    assert_close(model(batch), expected, rtol=0, atol=0)
    shorter = Inputs(ids, lengths=torch.tensor([6, 3]))
    assert not torch.equal(model(shorter), expected)


def test_facts_are_what_is_known_and_nothing_of_the_target() -> None:
    batch = Batch(token_ids(1, 3), torch.zeros(1), lengths=torch.tensor([3]))
    assert list(batch.facts()) == ["inputs", "lengths"]
    assert {field.name for field in fields(Batch)} - {field.name for field in fields(Inputs)} == {
        *("target", "weight", "sample", "slice", "number")
    }


@pytest.mark.parametrize("name", [name for name in MODELS if not build_tiny(name).ctx.data.source])
def test_a_source_is_refused_where_no_model_reads_it(name: str) -> None:
    with pytest.raises(ValueError, match="reads no source"):
        build_tiny(name)(Inputs(token_ids(2, 6), source=token_ids(2, 7)))


@pytest.mark.parametrize("name", ["bare", "perceiver"])
def test_a_cache_is_refused_where_a_model_keeps_none(name: str) -> None:
    with pytest.raises(ValueError, match="keeps no cache"):
        build_tiny(name)(token_ids(2, 6), cache=tiny(causal=True).init_cache(2))


@pytest.mark.parametrize("name", MODELS)
def test_lengths_by_position_are_refused(name: str) -> None:
    """The second argument is the cache; a tensor there is a call of the time before `Inputs`."""
    with pytest.raises(TypeError, match="Inputs"):
        build_tiny(name)(token_ids(2, 6), torch.tensor([6, 3]))
