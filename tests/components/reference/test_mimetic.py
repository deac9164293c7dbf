"""Mimetic initial weights against the products that they are defined by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.token_mixer.attention import Attention
from blockyard.weight_init import Init, initialise
from tests.support.helpers import context
from tests.support.tiny import ONE_LAYER

SHARES = (0.7, 0.4)


def mixer(**options: Any) -> Attention:
    """With D = 16 and 4 heads, drawn from seed 0."""
    attention = Attention(context(), mimetic=SHARES, **options)
    initialise(attention, 0)
    return attention


def noise(ours: Attention, name: str) -> torch.Tensor:
    generator = Init(ours, "", 0, set(), 1.0).generator(name)
    return torch.randn(16, 16, generator=generator, dtype=torch.float64) / math.sqrt(16)


def test_products_are_those_of_the_source() -> None:
    ours = mixer()
    queries, keys, values = ours.proj_in.weight.detach().double().split(16)  # (16, 16) each, as x W^T
    one = torch.eye(16, dtype=torch.float64)
    product = values.T @ ours.proj_out.weight.detach().double().T
    assert_close(product, SHARES[1] * (noise(ours, "values") - one), rtol=1e-5, atol=1e-6)
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        ideal = SHARES[0] * (noise(ours, f"head{head}") + one)
        u, s, vt = torch.linalg.svd(ideal)
        nearest = u[:, :4] * s[:4] @ vt[:4]  # of rank 4: Eckart and Young
        assert_close(queries[part].T @ keys[part], nearest, rtol=1e-5, atol=1e-6)
    # The identity is in the products of all heads together, and not in those of weights that are drawn alone.
    plain = Attention(context())
    initialise(plain, 0)
    traces = []
    for each in (ours, plain):
        q, k, v = each.proj_in.weight.detach().split(16)
        out = each.proj_out.weight.detach()
        traces.append([float((q.T @ k).trace()), float((v.T @ out.T).trace())])
    assert traces[0][0] > 10
    assert traces[0][1] < -4
    assert max(map(abs, traces[1])) < 4


def test_they_depend_on_the_seed_and_leave_other_weights_alone() -> None:
    first, second = mixer(bias=True), mixer(bias=True)
    assert torch.equal(first.proj_in.weight, second.proj_in.weight)
    assert not first.proj_in.bias.any()
    initialise(second, 1)
    assert not torch.equal(first.proj_in.weight, second.proj_in.weight)
    models = []
    for overrides in ([], ["token_mixer.mimetic=[0.7,0.4]"]):
        composed = compose([*ONE_LAYER, *overrides])
        assert not composed.issues
        models.append(dict(Components(composed.config).model(0).named_parameters()))
    changed = {name for name, p in models[0].items() if not torch.equal(p, models[1][name])}
    assert changed == {"blocks.0.token_mixer.proj_in.weight", "blocks.0.token_mixer.proj_out.weight"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_kv_heads": 1}, "num_kv_heads"),
        ({"key_dim": 8}, "key_dim"),
        ({"output_dim": 8}, "output_dim"),
        ({"fused": False}, "fused=false"),
        ({"tied_kv": True}, "tied_kv=true"),
        ({"gate": "head"}, "gate or value_residual"),
    ],
)
def test_what_leaves_no_square_products_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"mimetic .* does not go with token_mixer.{says}"):
        mixer(**options)


@pytest.mark.parametrize("overrides", [["parametrization=mup"], ["model.zero_branches=true"], ["block=deepnorm"]])
def test_other_rules_of_initial_weights_are_refused(overrides: list[str]) -> None:
    composed = compose([*ONE_LAYER, "token_mixer.mimetic=[0.7,0.4]", *overrides])
    assert not composed.issues
    with pytest.raises(ValueError, match="does not go with"):
        Components(composed.config).model(0)
