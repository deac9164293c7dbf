"""The gated long convolution, Hyena of order 2, against its equation in a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.token_mixer.long_conv import Gates, LongConv
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.components.reference.inputs import sequence, stirred
from tests.components.reference.recurrent import D, convolved, equation_holds
from tests.support.helpers import context, tiny

N = 7
KINDS: list[dict[str, Any]] = [{}, {"conv": 3}, {"conv": 2, "cutoff": 3}, {"conv": 3, "mixing": "full"}]


def mixer_of(causal: bool, **options: Any) -> LongConv:
    """A mixer with large weights."""
    return stirred(LongConv(context(causal=causal, grid=(N,)), gated=True, **options))


def by_hand(mixer: LongConv, x: Tensor) -> Tensor:
    """The output for one document x (N, D), token by token; the weights of distances are the mixer's own."""
    gates = mixer.gates
    c, b, v = convolved(gates.conv, x @ gates.proj_in.weight.T).chunk(3, dim=-1)
    out = []
    for i in range(len(x)):
        y = gates.through * b[i] * v[i]
        for j in range(len(x)):
            weight = mixer.kernel(torch.tensor([float(i - j)], dtype=x.dtype))
            y = y + (weight @ (b[j] * v[j]) if mixer.full else weight * b[j] * v[j])
        out.append(gates.proj_out.weight @ (c[i] * y))
    return torch.stack(out)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", KINDS, ids=str)
@torch.no_grad()
def test_the_equation_written_out(options: dict[str, Any], causal: bool) -> None:
    equation_holds(mixer_of(causal, **options), by_hand)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_declared_properties(options: dict[str, Any]) -> None:
    options = {"token_mixer": {"gated": True, **options}}
    for axes in (1, 2):
        model = tiny(causal=True, axes=axes, token_mixer="long_conv", options=options)
        for promise in (causality, padding, cached_decoding):
            promise(model, 6)
        padding(tiny(axes=axes, token_mixer="long_conv", options=options), 6)
    for causal in (False, True):
        packing(tiny(causal=causal, token_mixer="long_conv", options=options), 6)


@pytest.mark.parametrize(("options", "kept"), [({"cutoff": 3, "conv": 3}, 4), ({"cutoff": 3}, 2), ({"conv": 3}, N)])
@torch.no_grad()
def test_the_cache_reaches_as_far_as_both_convolutions(options: dict[str, Any], kept: int) -> None:
    mixer, x, parts = mixer_of(True, **options), torch.randn(1, N, D, dtype=torch.float64), []
    cache = mixer.init_cache(1)
    for t in range(N):
        parts.append(mixer(x[:, t : t + 1], sequence(1, start=t), cache))
    assert_close(torch.cat(parts, 1), mixer(x, sequence(N)))
    assert cache.parts[0].shape == (1, kept, 3 * D)


def test_half_precision() -> None:
    """The sums and what passes them by are in float32, and the output has the dtype of the token."""
    mixer, x = mixer_of(True, conv=3).float(), torch.randn(2, N, D)
    with torch.autocast("cpu", torch.bfloat16):
        assert mixer(x.bfloat16(), sequence(N)).dtype == torch.bfloat16
        assert_close(mixer(x, sequence(N)).float(), mixer.float()(x, sequence(N)).float())
    assert_close(mixer(x, sequence(N)), mixer.double()(x.double(), sequence(N)).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv": 3}, "token_mixer.conv=3: it is of the projections; use token_mixer.gated=true"),
        ({"conv": 3, "gated": True, "coordinates": "relative"}, "not a share of the sequence; use conv=0"),
    ],
)
def test_a_short_convolution_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LongConv(context(grid=(N,)), **options)


def test_planted_missing_gate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate in front of the convolution is left out."""
    enter = Gates.enter

    def ungated(self: Gates, h: Tensor, seq: Any) -> tuple[Tensor, Tensor]:
        return enter(self, torch.cat([h[..., :D], torch.ones_like(h[..., :D]), h[..., 2 * D :]], -1), seq)

    monkeypatch.setattr(Gates, "enter", ungated)
    with pytest.raises(AssertionError):
        test_the_equation_written_out({}, True)


def test_planted_short_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps what the long convolution reads, and not what the short one reads in front of it."""
    init = Gates.__init__

    def forgetful(self: Gates, ctx: Any, conv: int) -> None:
        init(self, ctx, conv)
        self.reach = 0

    monkeypatch.setattr(Gates, "__init__", forgetful)
    with pytest.raises(AssertionError):
        test_the_cache_reaches_as_far_as_both_convolutions({"cutoff": 3, "conv": 3}, 4)
