"""Decayed linear attention and Mamba-2 against transformers on equal weights, and against their equations in a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Mamba2Config, MiniMaxConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from blockyard.contracts import TokenMixer
from blockyard.ops.fast_weights import chunked
from blockyard.token_mixer.decayed_attention import DecayedAttention
from blockyard.token_mixer.mamba2 import Mamba2
from tests.components.properties.checks import relative
from tests.components.reference.inputs import sequence, stirred
from tests.components.reference.recurrent import (
    D,
    convolved,
    equation_holds,
    promises_hold,
    sizes_of_a_continued_cache,
    stirred_layer,
)
from tests.support.helpers import context, factory, tiny
from tests.support.tolerances import FLOAT32_STEPS

HEADS, K = 4, 4
KINDS: list[dict[str, Any]] = [
    {"decay": "fixed", "value_dim": 6},
    {"decay": "head", "temperature": 2.0, "conv": 3},
    {"decay": "channel", "decay_rank": 3, "output_gate": "sigmoid"},
    {"decay": "channel", "tied_keys": True, "temperature": 1.0, "output_gate": "none", "num_heads": 2, "key_dim": 5},
]
MAMBAS: list[dict[str, Any]] = [
    {"state": 5},
    {"state": 3, "groups": 2, "norm": "before_gate", "value_dim": 3, "bias": True},
    {"state": 4, "groups": 4, "norm": "none", "conv": 0, "num_heads": 8},
]


def normalised(y: Tensor, eps: float) -> Tensor:
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt()


def summed(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    """The state of one head over one document: q, k, decay (N, K), v (N, V) -> (N, V)."""
    state, out = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), []
    for t in range(len(q)):
        state = decay[t][:, None] * state + torch.outer(k[t], v[t])
        out.append(state.T @ q[t])
    return torch.stack(out)


def decayed(mixer: DecayedAttention, x: Tensor) -> Tensor:
    """What is read from the states of one document x (N, D): (N, H, V)."""
    h = convolved(mixer.conv, (x @ mixer.proj_in.weight.T)[:, : sum(mixer.widths)])
    h = h if mixer.conv is None else F.silu(h)
    q, k, v = (part.unflatten(-1, (mixer.heads, -1)) for part in h.split(mixer.widths, dim=-1))
    out = []
    for head in range(mixer.heads):
        if mixer.decay == "fixed":
            decay = torch.full_like(q[:, head], 1 - 2.0 ** (-5 - head))
        else:
            logits = mixer.proj_decay(x).unflatten(-1, (mixer.heads, -1))[:, head]
            decay = (torch.sigmoid(logits) ** (1 / mixer.temperature)).expand_as(q[:, head])
        key, query = (1 - decay, F.silu(q[:, head])) if mixer.tied_keys else (k[:, head], q[:, head])
        out.append(summed(query / q.shape[-1] ** 0.5, key, v[:, head], decay))
    return torch.stack(out, 1)


def state_space(mixer: Mamba2, x: Tensor) -> Tensor:
    """What is read from the states of one document x (N, D), with what passes them by: (N, H, V)."""
    h = F.linear(x, mixer.proj_in.weight, mixer.proj_in.bias)[:, mixer.widths[0] :]
    inputs, b, c = F.silu(convolved(mixer.conv, h)).split(mixer.widths, dim=-1)
    inputs, b, c = (
        inputs.unflatten(-1, (mixer.heads, -1)),
        b.unflatten(-1, (mixer.groups, -1)),
        c.unflatten(-1, (mixer.groups, -1)),
    )
    step = F.softplus(x @ mixer.proj_steps.weight.T + mixer.decay.step)
    out = []
    for head in range(mixer.heads):
        group = head * mixer.groups // mixer.heads
        decay = torch.exp(-mixer.decay.rate[head].exp() * step[:, head])[:, None].expand_as(b[:, group])
        values = inputs[:, head]
        out.append(summed(c[:, group], step[:, head, None] * b[:, group], values, decay) + mixer.through[head] * values)
    return torch.stack(out, 1)


def by_hand(mixer: TokenMixer, x: Tensor) -> Tensor:
    """The output for one document x (N, D), in both directions where there are two."""
    states = state_space if isinstance(mixer, Mamba2) else decayed
    y = states(mixer, x) if mixer.causal else states(mixer, x) + states(mixer, x.flip(0)).flip(0)
    if isinstance(mixer, DecayedAttention):
        y = normalised(y, mixer.norm.eps) * mixer.norm.weight
        z = (x @ mixer.proj_in.weight.T)[:, sum(mixer.widths) :].unflatten(-1, (mixer.heads, -1))
        gates = {"none": lambda _: 1.0, "silu": F.silu, "sigmoid": torch.sigmoid}
        return (y * gates[mixer.norm.gate](z)).flatten(1) @ mixer.proj_out.weight.T
    y, gate = y.flatten(1), F.silu(F.linear(x, mixer.proj_in.weight, mixer.proj_in.bias)[:, : mixer.widths[0]])
    y = y if mixer.norm == "before_gate" else y * gate
    if mixer.norm != "none":
        y = normalised(y.unflatten(-1, (mixer.groups, -1)), mixer.eps).flatten(-2) * mixer.gain
    y = y * gate if mixer.norm == "before_gate" else y
    return F.linear(y, mixer.proj_out.weight, mixer.proj_out.bias)


EVERY = [*((DecayedAttention, options) for options in KINDS), *((Mamba2, options) for options in MAMBAS)]


def mixer_of(kind: type, causal: bool, **options: Any) -> Any:
    """A mixer with large weights."""
    return stirred(kind(context(causal=causal), **options))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
def test_the_equation_written_out(kind: type, options: dict[str, Any], causal: bool) -> None:
    equation_holds(mixer_of(kind, causal, chunk=4, **options), by_hand)


@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_mamba2_of_transformers(groups: int) -> None:
    """It casts states to float32."""
    config = Mamba2Config(
        hidden_size=D,
        num_hidden_layers=1,
        num_heads=HEADS,
        head_dim=2 * D // HEADS,
        state_size=5,
        n_groups=groups,
        chunk_size=8,
        use_bias=True,
    )
    layer = stirred_layer(Mamba2Mixer(config, 0))
    mixer = Mamba2(context(causal=True), state=5, groups=groups, bias=True, eps=config.layer_norm_epsilon)
    maps = {
        name: parameter.split([len(parameter) - HEADS, HEADS]) for name, parameter in layer.in_proj.named_parameters()
    }
    weights = {
        "proj_in.weight": maps["weight"][0],
        "proj_in.bias": maps["bias"][0],
        "proj_steps.weight": maps["weight"][1],
        # It has two biases of the steps, which add up.
        "decay.step": layer.dt_bias + maps["bias"][1],
        "decay.rate": layer.A_log,
        "through": layer.D,
        "conv.weight": layer.conv1d.weight[:, 0],
        "conv.bias": layer.conv1d.bias,
        "gain": layer.norm.weight,
        "proj_out.weight": layer.out_proj.weight,
        "proj_out.bias": layer.out_proj.bias,
    }
    mixer.load_state_dict(weights)
    mixer, x = mixer.double(), torch.randn(2, 21, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(21)), layer(x), **FLOAT32_STEPS)
    mixer.norm = "before_gate"  # planted
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(21)), layer(x), **FLOAT32_STEPS)


@torch.no_grad()
def test_fixed_decays_of_lightning_attention() -> None:
    """The state alone: its decays, norm and gate are its own, and are taken out."""
    config = MiniMaxConfig(
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        head_dim=K,
        block_size=8,
        layer_types=["linear_attention", "full_attention"],
    )
    layer = MiniMaxLightningAttention(config, 0).double()
    layer.norm, layer.out_proj = nn.Identity(), nn.Identity()
    layer.output_gate.weight.zero_()  # a gate of one half
    x = torch.randn(2, 21, D, dtype=torch.float64)
    theirs, state = layer(x, None, None)
    q, k, v = F.silu(layer.qkv_proj(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, dim=-1)
    log = -layer.slope_rate.double().expand(2, -1, 21, 1)
    ours, last = chunked(q, k, v, log, chunk=4)
    assert_close(ours.transpose(1, 2).flatten(2), 2 * theirs, **FLOAT32_STEPS)
    assert_close(last, state, **FLOAT32_STEPS)


@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
@pytest.mark.sampled(2)
def test_every_kind_has_the_declared_properties(kind: type, options: dict[str, Any]) -> None:
    name = "mamba2" if kind is Mamba2 else "decayed_attention"
    rotates = options.get("decay") in ("fixed", "head")
    for position in ("none", "rope") if rotates else ("none",):
        promises_hold(name, {"chunk": 2, **options}, position=position)
        if position == "rope":
            picks = {"token_mixer": name, "position": position, "options": {"token_mixer": {"chunk": 2, **options}}}
            relative(tiny(causal=True, **picks), 6)


@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
def test_the_state_does_not_grow_and_continues(kind: type, options: dict[str, Any]) -> None:
    """One token after the other, several at a time, and all of them give the same."""
    mixer = mixer_of(kind, True, **options)
    sizes = sizes_of_a_continued_cache(mixer)
    inputs = (mixer.conv.kernel - 1) * sum(mixer.widths) if mixer.conv is not None else 0
    keys = options["state"] if kind is Mamba2 else mixer.widths[0] // mixer.heads
    values = mixer.widths[0 if kind is Mamba2 else 2]
    assert sizes == {2 * 8 * (keys * values + inputs)}


def test_channels_that_decay_alone_take_no_rotation() -> None:
    assert DecayedAttention.traits_for({"decay": "head"}).ports == {"queries_and_keys"}
    assert not DecayedAttention.traits_for({"decay": "channel"}).ports
    scheme = factory("position", "rope")(context(causal=True))
    mixer, x = mixer_of(DecayedAttention, True, decay="fixed"), torch.randn(1, 5, D, dtype=torch.float64)
    assert not torch.allclose(mixer(x, sequence(5, position=scheme)), mixer(x, sequence(5)))


def test_decays_start_with_the_memory_of_their_papers() -> None:
    fixed = mixer_of(DecayedAttention, True, decay="fixed")
    expected = [[31 / 32], [63 / 64], [127 / 128], [255 / 256]]
    decays = fixed._logarithms(torch.zeros(1, 1, D, dtype=torch.float64)).exp()[0, 0]
    assert_close(decays, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (DecayedAttention, {"tied_keys": True}, "tied_keys=true is of decays of channels"),
        (DecayedAttention, {"decay": "fixed", "decay_rank": 4}, "decay_rank=4 is of decays of channels"),
        (DecayedAttention, {"decay": "fixed", "temperature": 2.0}, "temperature=2.0 is of computed decays"),
        (Mamba2, {"groups": 3}, "groups=3 does not divide the 4 heads; use one of 1, 2, 4"),
    ],
)
def test_options_without_a_meaning_are_refused(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(context(causal=True), **options)
