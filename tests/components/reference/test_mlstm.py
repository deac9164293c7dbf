"""mLSTM against its equations in a loop, with and without the stabiliser, and against transformers on equal weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import xLSTMConfig
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from blockyard.model._prefix import Prefix
from blockyard.token_mixer import mlstm
from blockyard.token_mixer.mlstm import MLSTM
from tests.components.properties.checks import packing, relative
from tests.components.reference.inputs import sequence, stirred
from tests.components.reference.recurrent import D, convolved, equation_holds, promises_hold
from tests.support.helpers import context, tiny
from tests.support.tolerances import FLOAT32_STEPS

HEADS = 4
KINDS: list[dict[str, Any]] = [
    {},
    {"gate_cap": 2.0, "input_bias": -1.0, "conv": 3},
    {"num_heads": 2, "key_dim": 5, "value_dim": 3, "input_bias": 4.0},
]


def mixer_of(causal: bool = True, **options: Any) -> MLSTM:
    """A mixer with large weights."""
    return stirred(MLSTM(context(causal=causal), **{"chunk": 4, **options}))


def parts(mixer: MLSTM, x: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys, values (N, H, width) and the arguments of both gates (N, H) of one document x (N, D)."""
    h = (x @ mixer.proj_in.weight.T)[:, : sum(mixer.widths)]
    if mixer.conv is not None:
        h = F.silu(convolved(mixer.conv, h))
    q, k, v = (part.unflatten(-1, (mixer.heads, -1)) for part in h.split(mixer.widths, dim=-1))
    gates = x @ mixer.proj_gates.weight.T + mixer.gate_bias
    if mixer.gate_cap is not None:
        gates = mixer.gate_cap * torch.tanh(gates / mixer.gate_cap)
    return q / q.shape[-1] ** 0.5, k, v, gates[:, : mixer.heads], gates[:, mixer.heads :]


def stabilised(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """The memory of one head over one document, eq. 19 to 27 with the state m of appendix A: (N, V)."""
    c, n, m = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), torch.zeros_like(k[0]), torch.zeros_like(i[0])
    out = []
    for t in range(len(q)):
        log = F.logsigmoid(f[t])
        new = torch.maximum(log + m, i[t])
        decay, gate, m = torch.exp(log + m - new), torch.exp(i[t] - new), new
        c, n = decay * c + gate * torch.outer(k[t], v[t]), decay * n + gate * k[t]
        out.append(c.T @ q[t] / (torch.maximum((n @ q[t]).abs(), torch.exp(-m)) + 1e-6))
    return torch.stack(out)


def plain(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """The same without m, as eq. 19 to 23 have it."""
    c, n, out = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), torch.zeros_like(k[0]), []
    for t in range(len(q)):
        decay, gate = torch.sigmoid(f[t]), torch.exp(i[t])
        c, n = decay * c + gate * torch.outer(k[t], v[t]), decay * n + gate * k[t]
        out.append(c.T @ q[t] / (n @ q[t]).abs().clamp(min=1))
    return torch.stack(out)


def states(mixer: MLSTM, x: Tensor, memory: Any = stabilised) -> Tensor:
    """What is read from the memories of one document x (N, D): (N, H, V)."""
    every = parts(mixer, x)
    return torch.stack([memory(*(part[:, head] for part in every)) for head in range(mixer.heads)], 1)


def by_hand(mixer: MLSTM, x: Tensor, memory: Any = stabilised) -> Tensor:
    """The output for one document x (N, D), in both directions where there are two."""
    y = states(mixer, x, memory)
    if not mixer.causal:
        y = y + states(mixer, x.flip(0), memory).flip(0)
    y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + mixer.eps).sqrt()
    gate = torch.sigmoid((x @ mixer.proj_in.weight.T)[:, sum(mixer.widths) :])
    return (y.flatten(1) * mixer.gain * gate) @ mixer.proj_out.weight.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_equation_written_out(options: dict[str, Any], causal: bool) -> None:
    equation_holds(mixer_of(causal, **options), by_hand)


def test_the_stabiliser_cancels_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs and gradients of the equations without it."""
    monkeypatch.setattr(mlstm, "EPSILON", 0.0)
    mixer, x = mixer_of(input_bias=1.0), torch.randn(9, D, dtype=torch.float64)
    weights = torch.randn(9, D, dtype=torch.float64)
    gradients = []
    for y in (mixer(x[None], sequence(9))[0], by_hand(mixer, x, plain)):
        mixer.zero_grad()
        (y * weights).sum().backward()
        gradients.append([y.detach(), *(parameter.grad.clone() for parameter in mixer.parameters())])
    assert len(gradients[0]) == 1 + len(list(mixer.parameters()))
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs)
        assert ours.abs().max() > 1e-6


def test_gates_beyond_the_range_of_float32() -> None:
    """exp(200) has none; the outputs are those of float64, where it has."""
    mixer, x = mixer_of(chunk=8), torch.randn(2, 40, D, dtype=torch.float64)
    with torch.no_grad():
        mixer.proj_gates.weight.mul_(20)
        mixer.gate_bias[:HEADS] = 100.0
    assert mixer.proj_gates(x)[..., :HEADS].amax() + 100 > 150
    exact = mixer(x, sequence(40))
    assert_close(exact[0], by_hand(mixer, x[0]))
    y = mixer.float()(x.float(), sequence(40))
    assert_close(y, exact.float(), rtol=1e-2, atol=1e-3)
    y.square().sum().backward()
    for parameter in mixer.parameters():
        assert torch.isfinite(parameter.grad).all()


@torch.no_grad()
def test_the_layer_of_transformers() -> None:
    """In chunks, and token by token from its own state and from our cache. It keeps states in float32."""
    config = xLSTMConfig(
        hidden_size=D,
        num_heads=HEADS,
        num_hidden_layers=1,
        qk_dim_factor=0.5,
        v_dim_factor=1.0,
        gate_soft_cap=3.0,
        chunk_size=8,
        mode="inference",
        return_last_states=True,
    )
    layer, generator = xLSTMLayer(config), torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    mixer = MLSTM(context(causal=True), gate_cap=3.0, key_dim=D // 2 // HEADS, eps=config.norm_eps, chunk=8)
    joined = [layer.q.weight, layer.k.weight, layer.v.weight, layer.ogate_preact.weight]
    mixer.load_state_dict(
        {
            "proj_in.weight": torch.cat(joined),
            "proj_gates.weight": torch.cat([layer.igate_preact.weight, layer.fgate_preact.weight]),
            "gate_bias": torch.cat([layer.igate_preact.bias, layer.fgate_preact.bias]),
            "gain": layer.multihead_norm.weight,
            "proj_out.weight": layer.out_proj.weight,
        }
    )
    x = torch.randn(2, 24, D)
    theirs, _ = layer(x)
    assert_close(mixer(x, sequence(24)), theirs, **FLOAT32_STEPS)
    cache, state, steps = mixer.init_cache(2), None, []
    for t in range(24):
        one, state = layer(x[:, t : t + 1], state)
        steps.append(mixer(x[:, t : t + 1], sequence(1, start=t), cache))
        assert_close(steps[-1], one, **FLOAT32_STEPS)
    assert_close(torch.cat(steps, 1), theirs, **FLOAT32_STEPS)
    memory, normaliser = cache.parts[0].split([D // HEADS, 1], dim=-1)
    for part, other in zip((memory, normaliser[..., 0], cache.parts[2][..., 0]), state, strict=True):
        assert_close(part, other, **FLOAT32_STEPS)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("position", ["none", "rope"])
@pytest.mark.sampled(2)
def test_declared_properties(position: str, options: dict[str, Any]) -> None:
    options = {**options, "chunk": 2, **({"key_dim": 6} if "key_dim" in options else {})}  # rotations take pairs
    promises_hold("mlstm", options, position=position)
    if position == "rope":
        picks = {"token_mixer": "mlstm", "position": position, "options": {"token_mixer": options}}
        relative(tiny(causal=True, **picks), 6)


def test_the_cache_does_not_grow() -> None:
    mixer, x = mixer_of(conv=3), torch.randn(2, 9, D, dtype=torch.float64)
    cache, sizes = mixer.init_cache(2), set()
    for t in range(9):
        mixer(x[:, t : t + 1], sequence(1, start=t), cache)
        sizes.add(cache.bytes)
    per_head = (D // HEADS) * (D // HEADS + 1) + 1  # memory, normaliser and m
    assert sizes == {8 * 2 * (HEADS * per_head + 2 * 3 * D)}


@pytest.mark.parametrize("bug", ["input gate", "normaliser"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(-w x) in place of exp(w x); a memory without its normaliser."""
    enter = MLSTM.enter
    if bug == "input gate":
        monkeypatch.setattr(MLSTM, "enter", lambda self, v, log, rate, *rest: enter(self, v, log, -rate, *rest))
    else:
        monkeypatch.setattr(MLSTM, "leave", lambda self, y, level: y[..., :-1])
    with pytest.raises(AssertionError):
        test_the_equation_written_out({}, True)


def test_planted_levels_that_run_on_into_the_next_document_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = mlstm._levels
    monkeypatch.setattr(mlstm, "_levels", lambda log, gate, before, _: levels(log, gate, before, None))
    model = tiny(causal=True, prefix=Prefix(registers=2), token_mixer="mlstm")
    with pytest.raises(AssertionError):
        packing(model, 6)
