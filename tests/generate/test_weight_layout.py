"""Weights are stored column by column for decoding, without a change of values; layers share the facts of the past."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from blockyard.generate.decode import decode_batch
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import FEW, ordered_for_decoding
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
    with ordered_for_decoding(model, 1, cache=True):
        assert orders(model) == {False}
        assert every(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert_close(model(inputs), before)
    assert orders(model) == {True}
    assert_close(model(inputs), before, rtol=0, atol=0)


def test_many_sequences_and_shared_weights_keep_their_order() -> None:
    model = decoder()
    for sequences, cache in ((FEW + 1, True), (1, False)):
        with ordered_for_decoding(model, sequences, cache=cache):
            assert orders(model) == {True}
    table = nn.Embedding(5, 4)
    layer = nn.Linear(4, 5, bias=False)
    layer.weight = table.weight
    with ordered_for_decoding(nn.ModuleList([table, layer]), 1, cache=True):
        assert layer.weight is table.weight
        assert layer.weight.is_contiguous()


def test_decoding_stores_the_weights_in_this_order_until_it_ends() -> None:
    model = decoder()
    for cache in (True, False):
        steps = decode_batch(model, [[1, 2]], [Sampler(0, None, 0)], max_tokens=4, cache=cache, stats=Stats())
        next(steps)
        assert orders(model) == {not cache}
        steps.close()  # as where nobody reads on
        assert orders(model) == {True}
    cached, without = (greedy(model, [[1, 2, 3]], cache=cache)[0] for cache in (True, False))
    assert cached == without
    assert orders(model) == {True}


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
    with torch.inference_mode(), ordered_for_decoding(layer, 1, cache=True):
        assert not layer.weight.is_contiguous()
    layer(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert_close(layer.weight.grad, torch.full((5, 3), 2.0))


def trained(decodes: bool) -> list[torch.Tensor]:
    """The weights after six steps of a fused optimizer, whose kernel reads memory in order; some decode after three."""
    model = decoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for step in range(6):
        optimizer.zero_grad()
        model(token_ids(4, 6, seed=step)).logsumexp(-1).square().mean().backward()
        optimizer.step()
        if decodes and step == 2:
            greedy(model, [[1, 2]], cache=True)
    return [parameter.detach() for parameter in model.parameters()]


def test_decoding_between_steps_of_training_changes_no_weight() -> None:
    for plain, between in zip(trained(decodes=False), trained(decodes=True), strict=True):
        assert_close(between, plain, rtol=0, atol=0)
