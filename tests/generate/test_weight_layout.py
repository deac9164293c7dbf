"""Weights are stored column by column for decoding, without a change of values; layers share the facts of the past."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from blockyard.generate.stepper import FEW, order_for_decoding
from tests.generate.decoding import greedy
from tests.support.every import every
from tests.support.helpers import tiny, token_ids


def decoder(**options: object) -> nn.Module:
    return tiny(causal=True, token_mixer="attention", **options).float().eval()


def orders(model: nn.Module) -> set[bool]:
    """Whether the weights of linear layers are stored row by row."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return {layer.weight.is_contiguous() for layer in layers if min(layer.weight.shape) > 1}


def test_values_stay_and_columns_become_contiguous() -> None:
    model, inputs = decoder(), token_ids(2, 8)
    before, state = model(inputs), {name: value.clone() for name, value in model.state_dict().items()}
    assert orders(model) == {True}
    order_for_decoding(model, 1)
    assert orders(model) == {False}
    assert every(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(model(inputs), before)


def test_many_sequences_and_shared_weights_keep_their_order() -> None:
    model = decoder()
    order_for_decoding(model, FEW + 1)
    assert orders(model) == {True}
    table = nn.Embedding(5, 4)
    layer = nn.Linear(4, 5, bias=False)
    layer.weight = table.weight
    order_for_decoding(nn.ModuleList([table, layer]), 1)
    assert layer.weight is table.weight
    assert layer.weight.is_contiguous()


def test_decoding_stores_the_weights_in_this_order() -> None:
    model = decoder()
    without, _ = greedy(model, [[1, 2, 3]], cache=False)
    assert orders(model) == {True}
    cached, _ = greedy(model, [[1, 2, 3]], cache=True)
    assert orders(model) == {False}
    assert cached == without


@torch.no_grad()
def test_layers_share_the_facts_of_the_past() -> None:
    model, inputs = decoder(), token_ids(1, 6)
    cache = model.init_cache(1)
    for start, end in ((0, 4), (4, 5), (5, 6)):
        model(inputs[:, start:end], cache=cache)
        first, *others = (layer.seq for layer in cache.layers)
        assert others
        assert every(seq is first for seq in others)
        assert first.index.tolist() == list(range(end))


def test_a_model_that_decoded_can_be_trained() -> None:
    """Decoding orders the weights inside `inference_mode`, whose tensors cannot be saved for a gradient."""
    layer = nn.Linear(3, 5)
    with torch.inference_mode():
        order_for_decoding(layer, 1)
    assert not layer.weight.is_contiguous()
    layer(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert_close(layer.weight.grad, torch.full((5, 3), 2.0))
