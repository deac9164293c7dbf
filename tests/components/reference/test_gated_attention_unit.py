"""The gated attention unit against its equations, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.position.t5_bias import T5Bias
from blockyard.token_mixer.gated_attention_unit import GatedAttentionUnit
from blockyard.weight_init import initialise
from tests.components.properties.checks import cached_decoding, causality, relative
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, stir, tiny

D, S, E, N = 16, 4, 24, 7


def unit_of(causal: bool) -> GatedAttentionUnit:
    """A unit with large weights."""
    return stirred(GatedAttentionUnit(context(causal=causal), expansion=1.5))


@pytest.mark.parametrize("causal", [False, True])
def test_written_out(causal: bool) -> None:
    unit, x = unit_of(causal), torch.randn(2, N, D, dtype=torch.float64)
    weights, biases = (each.split([E, E, S]) for each in (unit.proj_in.weight, unit.proj_in.bias))
    u, v, z = (F.silu(x @ w.T + b) for w, b in zip(weights, biases, strict=True))
    q, k = (z * unit.offsets.gain[i] + unit.offsets.offset[i] for i in range(2))
    valid = torch.arange(N) < torch.tensor([[N], [5]])
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    for real, parts in ((None, None), (valid, None), (None, segment), (valid, segment)):
        out = unit(x, sequence(N, real, parts))
        for b in range(2):
            for i in range(N if real is None else int(real[b].sum())):
                seen = [j for j in range(N) if (j <= i or not causal) and (real is None or real[b, j])]
                seen = [j for j in seen if parts is None or parts[b, j] == parts[b, i]]
                read = sum(torch.relu(q[b, i] @ k[b, j] / len(seen)) ** 2 * v[b, j] for j in seen)
                assert_close(out[b, i], unit.proj_out.weight @ (u[b, i] * read) + unit.proj_out.bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_trained_bias_written_out(heads: int, causal: bool) -> None:
    """Eq. 4: the bias of a distance is added to the score before squaring; with several heads, that of the first."""
    ctx = context(causal=causal, heads=heads)
    unit = stirred(GatedAttentionUnit(ctx, expansion=1.5, key_dim=S))
    scheme = stir(initialise(T5Bias(ctx, buckets=8), 0)).double()
    x = 2 * torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights, biases = (each.split([E, E, S]) for each in (unit.proj_in.weight, unit.proj_in.bias))
    u, v, z = (F.silu(x @ w.T + b) for w, b in zip(weights, biases, strict=True))
    q, k = (z * unit.offsets.gain[i] + unit.offsets.offset[i] for i in range(2))
    expected = torch.zeros_like(x)
    for b in range(2):
        for i in range(N):
            seen, read = range(i + 1 if causal else N), 0
            for j in seen:
                # 8 buckets: causal, 4 exact ones, then 4 to 7 share the fifth; else 2 exact ones on each side, then one
                far = min(i - j, 4) if causal else min(abs(i - j), 2) + 4 * (j > i)
                read = read + torch.relu(q[b, i] @ k[b, j] / len(seen) + scheme.table[0, 0, far]) ** 2 * v[b, j]
            expected[b, i] = unit.proj_out.weight @ (u[b, i] * read) + unit.proj_out.bias
    assert_close(unit(x, replace(sequence(N), position=scheme)), expected)
    if causal:
        cache = unit.init_cache(2)
        seqs = [Seq(torch.tensor([i]), torch.tensor([[[float(i)]]]).double(), position=scheme) for i in range(N)]
        assert_close(torch.cat([unit(x[:, i : i + 1], seqs[i], cache) for i in range(N)], 1), expected)
    assert not torch.allclose(expected, unit(x, sequence(N)))
    unit(x, replace(sequence(N), position=scheme)).square().sum().backward()
    assert scheme.table.grad[0, 0].abs().sum() > 0
    assert scheme.table.grad[0, 1:].abs().sum() == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", ["rope", "t5_bias", "alibi"])
def test_relative_positions_make_it_relative(position: str, causal: bool) -> None:
    for options in ({}, {"key_dim": 6}):
        picks = {"token_mixer": "gated_attention_unit", "position": position, "options": {"token_mixer": options}}
        relative(tiny(causal=causal, **picks), 6)
        if causal:
            cached_decoding(tiny(causal=True, **picks), 6)


def test_dropout_is_on_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, x = stir(initialise(GatedAttentionUnit(context(), dropout=0.25), 0)), torch.randn(2, N, D)
    drawn = []
    monkeypatch.setattr(F, "dropout", lambda w, rate, training, _inplace: drawn.append((w.shape, rate, training)) or w)
    unit(x, sequence(N))
    unit.eval()(x, sequence(N))
    assert drawn == [((2, 1, N, N), 0.25, True), ((2, 1, N, N), 0.25, False)]


def test_queries_and_keys_start_different() -> None:
    gain = initialise(GatedAttentionUnit(context()), 0).offsets.gain
    assert (gain[0] - gain[1]).abs().min() > 0
    assert gain.mean().item() == pytest.approx(1.0, abs=0.05)


class Leaks(GatedAttentionUnit):
    """Planted: ignores that the model is causal."""

    def __init__(self, ctx: object) -> None:
        super().__init__(ctx)
        self.causal = False


def test_planted_leak_is_caught() -> None:
    with pytest.raises(AssertionError):
        causality(tiny(causal=True, replace={"token_mixer": Leaks}), 6)
