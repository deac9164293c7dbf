"""The selective state space and the gated short convolution against transformers and against their equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Lfm2Config, MambaConfig
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba.modeling_mamba import MambaMixer

from blockyard.contracts import Seq, TokenMixer
from blockyard.model._prefix import Prefix
from blockyard.token_mixer import selective_ssm
from blockyard.token_mixer._recurrent import blocked_scan, causal_states, scan
from blockyard.token_mixer.gated_conv import GatedConv
from blockyard.token_mixer.selective_ssm import SelectiveSSM
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, tiny
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64

D = 16
KINDS: list[tuple[type, dict[str, Any]]] = [
    (SelectiveSSM, {}),
    (SelectiveSSM, {"expansion": 1.5, "state": 3, "rank": 2, "conv": 0, "bias": True}),
    (GatedConv, {}),
    (GatedConv, {"kernel": 5, "bias": True}),
]


def convolved(conv: nn.Module | None, h: Tensor) -> Tensor:
    """The short convolution of one document h (N, C), written out."""
    if conv is None:
        return h
    line = F.pad(h, (0, 0, conv.kernel - 1, 0))
    out = torch.stack([(line[t : t + conv.kernel] * conv.weight.T).sum(0) for t in range(len(h))])
    return out if conv.bias is None else out + conv.bias


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
    """Plain, padded and packed sequences."""
    mixer, x = mixer_of(kind, causal, **options), torch.randn(2, 7, D, dtype=torch.float64)
    assert_close(mixer(x, sequence(7)), torch.stack([by_hand(mixer, row) for row in x]))
    lengths = (7, 3)
    valid = torch.arange(7) < torch.tensor(lengths)[:, None]
    out = mixer(x, sequence(7, valid))
    for row, length in enumerate(lengths):
        assert_close(out[row, :length], by_hand(mixer, x[row, :length]))
    cuts = [[4, 3], [1, 1, 5]]
    segment = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in cuts])
    expected = [torch.cat([by_hand(mixer, part) for part in x[row].split(cuts[row])]) for row in range(2)]
    assert_close(mixer(x, sequence(7, segment=segment)), torch.stack(expected))


def stirred_layer(layer: nn.Module) -> nn.Module:
    """A layer of transformers in float64 with random weights."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return layer.double().eval()


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
    picks = {"token_mixer": name, "options": {"token_mixer": options}}
    for prefix in (Prefix(),) if kind is GatedConv else (Prefix(), Prefix(registers=2)):
        model = tiny(causal=True, prefix=prefix, **picks)
        for promise in (causality, padding, packing, cached_decoding):
            promise(model, 6)
        padding(tiny(prefix=prefix, **picks), 6)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_the_cache_does_not_grow(kind: type, options: dict[str, Any]) -> None:
    """One token after the other, several at a time, and all of them give the same."""
    mixer, x = mixer_of(kind, True, **options), torch.randn(2, 13, D, dtype=torch.float64)
    cache, parts, sizes = mixer.init_cache(2), [], set()
    for start, size in ((0, 1), (1, 4), (5, 1), (6, 1), (7, 6)):
        parts.append(mixer(x[:, start : start + size], sequence(size, start=start), cache))
        sizes.add(cache.bytes)
    assert_close(torch.cat(parts, 1), mixer(x, sequence(13)), rtol=1e-9, atol=1e-9)
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
