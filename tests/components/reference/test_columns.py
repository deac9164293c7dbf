"""The tokens of columns of numbers, against their equation, one column after another."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from blockyard.contracts import Context, DataSpec
from blockyard.tokenizer.columns import Columns
from blockyard.weight_init import initialise


def test_a_token_is_a_number_times_the_vector_of_its_column_plus_another() -> None:
    data = DataSpec("vector", (3,))
    tokens = Columns().spec(data)
    ctx = Context(dim=4, depth=1, heads=1, causal=False, tokens=tokens, data=data, outputs=2, init_std=0.5)
    embedder = initialise(Columns().embedder(ctx), 0)
    values = torch.tensor([[1.0, -2.0, 0.5], [0.0, float("nan"), 3.0]])
    x, seq = embedder(values)
    weight, bias = embedder.weight.detach(), embedder.bias.detach()
    assert not torch.equal(weight, bias)
    for row in range(2):
        for column in range(3):
            value = values[row, column].nan_to_num()  # a missing one is the mean, zero
            assert_close(x[row, column].detach(), value * weight[column] + bias[column])
    assert seq.coords.shape == (1, 3, 0)
    assert seq.grid is None
