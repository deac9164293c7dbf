"""The delta rule against the layers of transformers on equal weights, and against its equation written as a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import KimiLinearConfig, OlmoHybridConfig, Qwen3NextConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from blockyard.ops import fast_weights
from blockyard.token_mixer.delta_rule import DeltaRule
from tests.components.properties.checks import packing
from tests.components.reference.inputs import sequence, stirred
from tests.components.reference.recurrent import (
    D,
    convolved,
    equation_holds,
    promises_hold,
    sizes_of_a_continued_cache,
    stirred_layer,
)
from tests.support.helpers import context, tiny
from tests.support.tolerances import FLOAT32_STEPS

HEADS, K = 4, 4
KINDS: list[dict[str, Any]] = [
    {"gate": "none", "output_gate": "none", "conv": 0},
    {"gate": "none", "negative": True},
    {"gate": "head", "num_heads": 6, "num_key_heads": 2, "key_dim": 3, "value_dim": 5},
    {"gate": "channel", "num_key_heads": 2},
    {"gate": "channel", "output_gate": "sigmoid", "gate_rank": 3, "negative": True, "conv": 2},
]


def mixer_of(causal: bool, **options: Any) -> DeltaRule:
    """A mixer with large weights."""
    return stirred(DeltaRule(context(causal=causal), **options))


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum() + 1e-6).sqrt()


def states(mixer: DeltaRule, x: Tensor) -> Tensor:
    """What is read from the states of one document x (N, D), by the equation: (N, H, V)."""
    heads, groups = mixer.heads, mixer.heads // mixer.key_heads
    keys, _, values = mixer.widths
    width = values // heads
    h = (x @ mixer.proj_in.weight.T)[:, : 2 * keys + values]
    q, k, v = F.silu(convolved(mixer.conv, h)).split([keys, keys, values], dim=-1)
    rates = x @ mixer.proj_rates.weight.T
    out = torch.zeros(len(x), heads, width, dtype=x.dtype)
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        shared = head // groups
        read = slice(shared * mixer.key_dim, (shared + 1) * mixer.key_dim)
        state = torch.zeros(mixer.key_dim, width, dtype=x.dtype)
        for t in range(len(x)):
            query, key = unit(q[t, read]), unit(k[t, read])
            beta = torch.sigmoid(rates[t, head]) * (2 if mixer.negative else 1)
            decay = torch.ones(mixer.key_dim, dtype=x.dtype)
            if mixer.gate == "head":
                step = F.softplus(rates[t, heads + head] + mixer.decay.step[head])
                decay = torch.exp(-mixer.decay.rate[head].exp() * step) * decay
            if mixer.gate == "channel":
                logits = mixer.proj_decay(x[t]) + mixer.decay.step
                step = F.softplus(logits[head * mixer.key_dim : (head + 1) * mixer.key_dim])
                decay = torch.exp(-mixer.decay.rate[head].exp() * step)
            state = decay[:, None] * state
            state = state + beta * torch.outer(key, v[t, own] - state.T @ key)
            out[t, head] = state.T @ query / mixer.key_dim**0.5
    return out


def by_hand(mixer: DeltaRule, x: Tensor) -> Tensor:
    """The output for one document x (N, D), in both directions where there are two."""
    y = states(mixer, x) if mixer.causal else states(mixer, x) + states(mixer, x.flip(0)).flip(0)
    y = y / (y.square().mean(-1, keepdim=True) + mixer.norm.eps).sqrt() * mixer.norm.weight
    if mixer.norm.gate != "none":
        z = mixer.proj_gate(x) if mixer.proj_gate is not None else (x @ mixer.proj_in.weight.T)[:, sum(mixer.widths) :]
        y = y * (F.silu if mixer.norm.gate == "silu" else torch.sigmoid)(z.unflatten(-1, (mixer.heads, -1)))
    return y.flatten(1) @ mixer.proj_out.weight.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_equation_written_out(options: dict[str, Any], causal: bool) -> None:
    equation_holds(mixer_of(causal, chunk=4, **options), by_hand)


def copied(mixer: DeltaRule, weights: dict[str, Tensor]) -> DeltaRule:
    """The mixer with these weights, in float64."""
    mixer.load_state_dict({name: value.detach() for name, value in weights.items()})
    return mixer.double()


@torch.no_grad()
def same(mixer: DeltaRule, layer: nn.Module) -> None:
    """Equal outputs. The library casts states to float32."""
    x = torch.randn(2, 70, D, dtype=torch.float64)
    theirs = layer(x)
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    assert_close(mixer(x, sequence(70)), theirs, **FLOAT32_STEPS)


@pytest.mark.parametrize(("key_heads", "value_heads"), [(4, 4), (2, 6)])
def test_gated_delta_net_of_qwen3_next(key_heads: int, value_heads: int) -> None:
    k_dim, v_dim, groups = 4, 6, value_heads // key_heads
    config = Qwen3NextConfig(
        hidden_size=D,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=k_dim,
        linear_value_head_dim=v_dim,
    )
    layer = stirred_layer(Qwen3NextGatedDeltaNet(config, 0))
    # It keeps what belongs to a head of keys together; here queries come first, then keys, values, gates.
    widths = [k_dim, k_dim, groups * v_dim, groups * v_dim]
    fused = layer.in_proj_qkvz.weight.unflatten(0, (key_heads, -1)).split(widths, dim=1)
    rates = layer.in_proj_ba.weight.unflatten(0, (key_heads, -1)).split([groups, groups], dim=1)
    mixer = DeltaRule(
        context(causal=True), num_heads=value_heads, num_key_heads=key_heads, key_dim=k_dim, value_dim=v_dim
    )
    weights = {
        "proj_in.weight": torch.cat([part.flatten(0, 1) for part in fused]),
        "proj_rates.weight": torch.cat([part.flatten(0, 1) for part in rates]),
        "decay.rate": layer.A_log,
        "decay.step": layer.dt_bias,
        "conv.weight": layer.conv1d.weight[:, 0],
        "norm.weight": layer.norm.weight,
        "proj_out.weight": layer.out_proj.weight,
    }
    same(copied(mixer, weights), layer)
    mixer.negative = True  # planted: beta between 0 and 2
    with pytest.raises(AssertionError):
        same(mixer, layer)


@pytest.mark.parametrize("negative", [False, True])
def test_gated_delta_net_of_olmo_hybrid(negative: bool) -> None:
    config = OlmoHybridConfig(
        hidden_size=D,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=K,
        linear_value_head_dim=2 * K,
        linear_allow_neg_eigval=negative,
    )
    layer = stirred_layer(OlmoHybridGatedDeltaNet(config, 0))
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.g_proj)
    weights = {
        "proj_in.weight": torch.cat([part.weight for part in maps]),
        "proj_rates.weight": torch.cat([layer.b_proj.weight, layer.a_proj.weight]),
        "decay.rate": layer.A_log,
        "decay.step": layer.dt_bias,
        "conv.weight": layer.conv1d.weight[:, 0],
        "norm.weight": layer.o_norm.weight,
        "proj_out.weight": layer.o_proj.weight,
    }
    mixer = DeltaRule(context(causal=True), value_dim=2 * K, negative=negative, eps=1e-5)
    same(copied(mixer, weights), layer)


def test_kimi_delta_attention() -> None:
    config = KimiLinearConfig(
        hidden_size=D, num_hidden_layers=1, layer_types=["linear_attention"], linear_num_heads=HEADS, linear_head_dim=K
    )
    layer = stirred_layer(KimiLinearDeltaAttention(config, 0))
    gate = layer.forget_gate
    weights = {
        "proj_in.weight": torch.cat([part.weight for part in (layer.q_proj, layer.k_proj, layer.v_proj)]),
        "proj_rates.weight": layer.b_proj.weight,
        "proj_decay.0.weight": gate.f_a_proj.weight,
        "proj_decay.1.weight": gate.f_b_proj.weight,
        "proj_gate.0.weight": layer.g_a_proj.weight,
        "proj_gate.1.weight": layer.g_b_proj.weight,
        "decay.rate": gate.A_log.flatten(),
        "decay.step": gate.dt_bias,
        "conv.weight": layer.conv1d.weight[:, 0],
        "norm.weight": layer.o_norm.weight,
        "proj_out.weight": layer.o_proj.weight,
    }
    options = {"gate": "channel", "output_gate": "sigmoid", "gate_rank": K, "eps": config.rms_norm_eps}
    same(copied(DeltaRule(context(causal=True), **options), weights), layer)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.sampled(2)
def test_every_kind_has_the_declared_properties(options: dict[str, Any]) -> None:
    promises_hold("delta_rule", {"chunk": 2, **options})


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_state_does_not_grow_and_continues(options: dict[str, Any]) -> None:
    """One token after the other, several at a time, and all of them give the same."""
    mixer = mixer_of(True, **options)
    sizes = sizes_of_a_continued_cache(mixer)
    inputs = (mixer.conv.kernel - 1) * sum(mixer.widths) if mixer.conv is not None else 0
    assert sizes == {2 * 8 * (mixer.key_dim * mixer.widths[2] + inputs)}


def test_the_state_can_be_reordered_and_continued_twice() -> None:
    mixer, x = mixer_of(True), torch.randn(2, 6, D, dtype=torch.float64)
    cache, order = mixer.init_cache(2), torch.tensor([1, 1])
    mixer(x[:, :5], sequence(5), cache)
    kept = cache.snapshot()
    cache.reorder(order)
    expected = mixer(torch.cat([x[order, :5], x[:, 5:]], 1), sequence(6))[:, 5:]
    assert_close(mixer(x[:, 5:], sequence(1, start=5), cache), expected)
    assert_close(mixer(x[:, 5:], sequence(1, start=5), kept), mixer(x, sequence(6))[:, 5:])


def test_half_precision_keeps_states_exact() -> None:
    """Under autocast only maps are in bfloat16, so outputs do not depend on the size of chunks."""
    outs = []
    for chunk in (1, 32, 512):
        mixer = mixer_of(True, chunk=chunk).float()
        x = torch.randn(1, 512, D, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16):
            outs.append(mixer(x, sequence(512)))
    for out in outs[1:]:
        assert (out != outs[0]).float().mean() < 0.01  # a number may lie where rounding turns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_key_heads": 3}, "num_key_heads=3 does not divide the 4 heads; use one of 1, 2, 4"),
        ({"gate_rank": 4, "output_gate": "none"}, "gate_rank=4 is of the maps of gate=channel and of the output gate"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeltaRule(context(causal=True), **options)


def test_decoding_documents_and_decoding_backwards_are_refused() -> None:
    mixer, x = mixer_of(True), torch.randn(1, 2, D, dtype=torch.float64)
    with pytest.raises(ValueError, match="one document at a time"):
        mixer(x, sequence(2, segment=torch.zeros(1, 2, dtype=torch.int64)), mixer.init_cache(1))
    with pytest.raises(ValueError, match="bidirectional model cannot decode"):
        mixer_of(False).init_cache(1)


def test_planted_state_of_another_document_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: documents are not told apart in the state."""
    model = tiny(causal=True, token_mixer="delta_rule", options={"token_mixer": {"chunk": 2}})
    packing(model, 6)
    plain = fast_weights._documents
    monkeypatch.setattr(fast_weights, "_documents", lambda segment, *rest: plain(torch.zeros_like(segment), *rest))
    with pytest.raises(AssertionError):
        packing(model, 6)


def test_planted_convolution_over_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the short convolution reads the document before."""
    model = tiny(causal=True, token_mixer="delta_rule")
    packing(model, 6)
    for module in model.modules():
        if isinstance(module, DeltaRule):
            plain = module.conv.forward
            monkeypatch.setattr(
                module.conv, "forward", lambda x, seq, past, plain=plain: plain(x, replace(seq, segment=None), past)
            )
    with pytest.raises(AssertionError):
        packing(model, 6)
