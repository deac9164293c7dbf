"""The selective state space and the gated short convolution against transformers and against their equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Lfm2Config, MambaConfig
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba.modeling_mamba import MambaMixer

from blockyard.contracts import Seq, TokenMixer
from blockyard.token_mixer import selective_ssm
from blockyard.token_mixer._recurrent import blocked_scan, causal_states, scan
from blockyard.token_mixer.gated_conv import GatedConv
from blockyard.token_mixer.selective_ssm import SelectiveSSM
from tests.components.properties.checks import packing
from tests.components.reference.inputs import sequence, stirred
from tests.components.reference.recurrent import (
    PREFIXES,
    D,
    convolved,
    equation_holds,
    promises_hold,
    sizes_of_a_continued_cache,
    stirred_layer,
)
from tests.support.helpers import context, tiny
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64

KINDS: list[tuple[type, dict[str, Any]]] = [
    (SelectiveSSM, {}),
    (SelectiveSSM, {"expansion": 1.5, "state": 3, "rank": 2, "conv": 0, "bias": True}),
    (GatedConv, {}),
    (GatedConv, {"kernel": 5, "bias": True}),
]


def state_space(mixer: SelectiveSSM, h: Tensor) -> Tensor:
    """What the states give for one document of inner channels h (N, E), a loop over tokens and channels."""
    x = F.silu(convolved(mixer.conv, h))
    step, b, c = (x @ mixer.proj_state.weight.T).split([mixer.rank, mixer.state, mixer.state], dim=-1)
    step = F.softplus(step @ mixer.proj_step.weight.T + mixer.step)
    rates, out = mixer.rate.exp(), torch.zeros_like(x)
    for channel in range(mixer.inner):
        state = torch.zeros(mixer.state, dtype=x.dtype)
        for t in range(len(x)):
            state = torch.exp(-rates[channel] * step[t, channel]) * state + step[t, channel] * b[t] * x[t, channel]
            out[t, channel] = c[t] @ state + mixer.through[channel] * x[t, channel]
    return out


def by_hand(mixer: TokenMixer, x: Tensor) -> Tensor:
    """The output for one document x (N, D), in both directions where there are two."""
    h = F.linear(x, mixer.proj_in.weight, mixer.proj_in.bias)
    if isinstance(mixer, GatedConv):
        before, after, inner = h.chunk(3, dim=-1)
        h, read, gate = before * inner, lambda part: convolved(mixer.conv, part), after
    else:
        h, z = h.chunk(2, dim=-1)
        read, gate = lambda part: state_space(mixer, part), F.silu(z)
    y = read(h) if mixer.causal else read(h) + read(h.flip(0)).flip(0)
    return F.linear(gate * y, mixer.proj_out.weight, mixer.proj_out.bias)


def mixer_of(kind: type, causal: bool, **options: Any) -> Any:
    """A mixer with large weights."""
    return stirred(kind(context(causal=causal), **options))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_the_equation_written_out(kind: type, options: dict[str, Any], causal: bool) -> None:
    equation_holds(mixer_of(kind, causal, **options), by_hand)


@torch.no_grad()
def test_mamba_of_transformers() -> None:
    """It casts states to float32."""
    config = MambaConfig(hidden_size=D, num_hidden_layers=1, state_size=5, use_bias=True)
    layer = stirred_layer(MambaMixer(config, 0))
    mixer = SelectiveSSM(context(causal=True), state=5, bias=True)
    weights = {
        "proj_in.weight": layer.in_proj.weight,
        "proj_in.bias": layer.in_proj.bias,
        "proj_state.weight": layer.x_proj.weight,
        "proj_step.weight": layer.dt_proj.weight,
        "step": layer.dt_proj.bias,
        "rate": layer.A_log,
        "through": layer.D,
        "conv.weight": layer.conv1d.weight[:, 0],
        "conv.bias": layer.conv1d.bias,
        "proj_out.weight": layer.out_proj.weight,
        "proj_out.bias": layer.out_proj.bias,
    }
    mixer.load_state_dict(weights)
    mixer, x = mixer.double(), torch.randn(2, 40, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(40)), layer(x), **FLOAT32_STEPS)
    mixer.through.zero_()  # planted
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(40)), layer(x), **FLOAT32_STEPS)


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_short_convolution_of_lfm2(bias: bool) -> None:
    config = Lfm2Config(hidden_size=D, num_hidden_layers=1, conv_L_cache=3, conv_bias=bias, layer_types=["conv"])
    layer = stirred_layer(Lfm2ShortConv(config, 0))
    mixer = GatedConv(context(causal=True), bias=bias).double()
    parts = {"proj_in": layer.in_proj, "conv": layer.conv, "proj_out": layer.out_proj}
    weights = {f"{name}.{kind}": value for name, part in parts.items() for kind, value in part.named_parameters()}
    mixer.load_state_dict(weights | {"conv.weight": layer.conv.weight[:, 0]})
    x = torch.randn(2, 9, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(9)), layer(x), **FLOAT64)
    mixer.conv.weight.copy_(mixer.conv.weight.flip(1))  # planted: the first weight is of the token itself
    with pytest.raises(AssertionError):
        assert_close(mixer(x, sequence(9)), layer(x), **FLOAT64)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 50])
def test_blocks_give_what_the_scan_gives(size: int) -> None:
    a, b = torch.rand(2, size, 3, dtype=torch.float64), torch.randn(2, size, 3, dtype=torch.float64)
    a[0, size // 2] = 0.0  # where a document starts
    a, b = a.requires_grad_(), b.requires_grad_()
    outs = [blocked_scan(a, b), blocked_scan(a, b, 4), scan(a, b)]
    grads = [torch.autograd.grad(out.square().sum(), (a, b), materialize_grads=True) for out in outs]
    for out, grad in zip(outs[:2], grads[:2], strict=True):
        assert_close(out, outs[2], **FLOAT64)
        assert_close(grad, grads[2], **FLOAT64)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_every_kind_has_the_declared_properties(kind: type, options: dict[str, Any]) -> None:
    name = "gated_conv" if kind is GatedConv else "selective_ssm"
    promises_hold(name, options, PREFIXES[:1] if kind is GatedConv else PREFIXES)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_the_cache_does_not_grow(kind: type, options: dict[str, Any]) -> None:
    """One token after the other, several at a time, and all of them give the same."""
    mixer = mixer_of(kind, True, **options)
    sizes = sizes_of_a_continued_cache(mixer)
    channels, past = (D, 0) if kind is GatedConv else (mixer.inner, mixer.state)
    inputs = mixer.conv.kernel - 1 if mixer.conv is not None else 0
    assert sizes == {2 * 8 * channels * (past + inputs)}


def test_planted_leak_between_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: states pass from one document to the next."""
    model = tiny(causal=True, token_mixer="selective_ssm")
    packing(model, 6)

    def unaware(a: Tensor, b: Tensor, seq: Seq, *rest: Any, **named: Any) -> Tensor:
        return causal_states(a, b, sequence(len(seq)), *rest, **named)

    monkeypatch.setattr(selective_ssm, "causal_states", unaware)
    with pytest.raises(AssertionError):
        packing(model, 6)


def test_decoding_documents_is_refused() -> None:
    for kind in (SelectiveSSM, GatedConv):
        mixer, x = mixer_of(kind, True), torch.randn(1, 2, D, dtype=torch.float64)
        cache = mixer.init_cache(1)
        mixer(x, sequence(2), cache)
        with pytest.raises(ValueError, match="one document at a time"):
            mixer(x, sequence(2, segment=torch.zeros(1, 2, dtype=torch.int64)), cache)
