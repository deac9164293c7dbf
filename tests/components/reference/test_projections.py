"""Queries, keys and values by maps of their own, or by none: against the fused product, formulas and torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.channel_mixer.experts import Experts
from blockyard.channel_mixer.mlp import MLP
from blockyard.channel_mixer.none import NoChannels
from blockyard.contracts import Memory
from blockyard.token_mixer._projections import INPUTS
from blockyard.token_mixer.attention import Attention
from tests.components.reference.attention_inputs import CAUSAL, D, N, tokens
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context

ALL = ("queries", "keys", "values", "output")


def apart(fused: Attention, **options: Any) -> Attention:
    """The same attention with three maps, from the weights of the fused one."""
    mixer = Attention(context(causal=fused.causal), fused=False, **options).double()
    weights = {}
    for name, value in fused.state_dict().items():
        if name in ("proj_in.weight", "proj_in.bias"):
            for part, weight in zip(mixer.projections.names, value.split(fused.parts), strict=True):
                if len(weight):
                    weights[f"projections.linear.{part}.{name.removeprefix('proj_in.')}"] = weight
        else:
            weights[name] = value
    mixer.load_state_dict(weights)
    return mixer


@CAUSAL
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True, "num_kv_heads": 2, "gate": "head"},
        {"gate": "channel", "key_dim": 3, "value_dim": 5, "qk_norm": "full"},
        {"conv": 3, "gate": "head"},
        {"tied_kv": True, "bias": True},
    ],
    ids=str,
)
def test_three_maps_are_the_fused_one(options: dict[str, Any], causal: bool) -> None:
    fused = stirred(Attention(context(causal=causal), **options))
    assert_close(apart(fused, **options)(tokens(), sequence(N)), fused(tokens(), sequence(N)))


@pytest.mark.parametrize("gate", ["none", "head"])
def test_three_maps_read_a_memory(gate: str) -> None:
    fused = stirred(Attention(context(), num_kv_heads=2, gate=gate))
    memory = Memory(tokens()[:, :4] + 1, sequence(4))
    mixer = apart(fused, num_kv_heads=2, gate=gate)
    assert_close(mixer(tokens(), sequence(N), memory=memory), fused(tokens(), sequence(N), memory=memory))


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """One head, query by query: (B, N, C)."""
    outputs = []
    for i in range(N):
        seen = slice(0, i + 1 if causal else N)
        scores = scale * torch.einsum("bc,bmc->bm", q[:, i], k[:, seen])
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        outputs.append(torch.einsum("bm,bmc->bc", weights, v[:, seen]))
    return torch.stack(outputs, 1)


@CAUSAL
def test_attention_without_parameters(causal: bool) -> None:
    """y_i = sum_j softmax(x_i . x_j) x_j: one head, no projection, and scores that are not scaled."""
    mixer = Attention(context(heads=1, causal=causal), project=(), score_scale=1.0).double()
    assert not list(mixer.parameters())
    x = tokens()
    assert_close(mixer(x, sequence(N)), softmax_attention(x, x, x, 1.0, causal))


@CAUSAL
@pytest.mark.parametrize("missing", ALL)
def test_without_one_projection(missing: str, causal: bool) -> None:
    """It is the attention whose projection is the identity."""
    project = tuple(part for part in ALL if part != missing)
    mixer = stirred(Attention(context(causal=causal), project=project))
    full = stirred(Attention(context(causal=causal)))
    inner = {**dict(zip(INPUTS, mixer.matrices(), strict=True))}
    with torch.no_grad():
        if mixer.projections is None:
            full.load_state_dict({**mixer.state_dict(), "proj_out.weight": torch.eye(D)})
        else:
            assert_close(inner[missing], torch.eye(D))
            full.proj_in.weight.copy_(torch.cat([inner[part].double() for part in INPUTS]))
            full.proj_out.load_state_dict(mixer.proj_out.state_dict())
    assert_close(mixer(tokens(), sequence(N)), full(tokens(), sequence(N)))


@CAUSAL
@pytest.mark.parametrize("project", [("output",), ALL])
def test_maps_that_are_mlps(project: tuple[Any, ...], causal: bool) -> None:
    """W f(x) for queries, keys and values, f an MLP of each alone; without W it is the MLP itself."""
    mixer = stirred(Attention(context(heads=1, causal=causal), project=project, map=partial(MLP, expansion=2.0)))
    x, parts = tokens(), []
    for name in mixer.projections.names:
        mlp = mixer.projections.maps[name]
        part = F.gelu(x @ mlp.proj_in.weight.T) @ mlp.proj_out.weight.T
        parts.append(part @ mixer.projections.linear[name].weight.T if project == ALL else part)
    expected = softmax_attention(*parts, D**-0.5, causal) @ mixer.proj_out.weight.T
    assert_close(mixer(x, sequence(N)), expected)


def test_without_projections_it_is_torchs_function() -> None:
    mixer = Attention(context(), project=()).double()
    q = tokens().unflatten(-1, (4, -1)).transpose(1, 2)
    expected = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
    assert_close(mixer(tokens(), sequence(N)), expected)


def test_maps_start_as_large_as_in_a_fused_product() -> None:
    """Of one size at the start: three matrices of the same standard deviation, and maps without a small output."""
    wide = context(dim=256)
    fused, three = stirred(Attention(wide)), stirred(Attention(wide, fused=False))
    assert isinstance(three.proj_out, nn.Linear)
    for part, rows in zip(three.projections.names, fused.proj_in.weight.split(fused.parts), strict=True):
        assert_close(three.projections.linear[part].weight.std(), rows.std(), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"project": ("keys", "queries")},
            r"project=\[keys,queries\]: list each of queries, keys, values, output at most",
        ),
        ({"project": ("keys", "keys")}, "at most once, in this order"),
        ({"project": ("output",), "fused": False}, r"fused=false: with token_mixer.project=\[output\] they are apart"),
        ({"map": partial(MLP), "fused": False}, "fused=false: with map they are apart already"),
        ({"project": ("queries", "keys", "output"), "tied_kv": True}, "with tied_kv=true values are the keys"),
        ({"project": ("queries", "output"), "num_kv_heads": 2}, "keys without a projection have the 16 channels"),
        ({"project": ("keys", "values", "output"), "key_dim": 8}, "queries without .* the heads need 32; list queries"),
        ({"project": ("queries", "keys", "values"), "value_dim": 8}, "output without .* the heads need 32"),
        ({"project": (), "bias": True}, "no projection is left that could have a bias; use bias=false"),
        ({"map": partial(NoChannels)}, "map: NoChannels maps nothing; use null"),
        ({"map": partial(Experts, route="expert")}, "map: Experts with these options mixes tokens"),
    ],
    ids=str,
)
def test_what_has_no_effect_or_no_width_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(context(), **options)
