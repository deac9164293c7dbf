"""The gated attention unit against its equations written out token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.init import initialise
from blockyard.token_mixer.gated_attention_unit import GatedAttentionUnit
from tests.helpers import context, stir, tiny
from tests.properties import causality, relative

D, S, E, N = 16, 4, 24, 7


def row(valid: Tensor | None = None, segment: Tensor | None = None) -> Seq:
    """Facts of a row on a line."""
    return Seq(torch.arange(N), torch.arange(N).double()[None, :, None], valid, segment)


def made(causal: bool) -> GatedAttentionUnit:
    """In float64 with weights large enough to matter."""
    return stir(initialise(GatedAttentionUnit(context(causal=causal), expansion=1.5), 0)).double()


@pytest.mark.parametrize("causal", [False, True])
def test_written_out(causal: bool) -> None:
    unit, x = made(causal), torch.randn(2, N, D, dtype=torch.float64)
    weights, biases = (each.split([E, E, S]) for each in (unit.proj_in.weight, unit.proj_in.bias))
    u, v, z = (F.silu(x @ w.T + b) for w, b in zip(weights, biases, strict=True))
    q, k = (z * unit.offsets.gain[i] + unit.offsets.offset[i] for i in range(2))
    valid = torch.arange(N) < torch.tensor([[N], [5]])
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    for real, parts in ((None, None), (valid, None), (None, segment), (valid, segment)):
        out = unit(x, row(real, parts))
        for b in range(2):
            for i in range(N if real is None else int(real[b].sum())):
                seen = [j for j in range(N) if (j <= i or not causal) and (real is None or real[b, j])]
                seen = [j for j in seen if parts is None or parts[b, j] == parts[b, i]]
                read = sum(torch.relu(q[b, i] @ k[b, j] / len(seen)) ** 2 * v[b, j] for j in seen)
                assert_close(out[b, i], unit.proj_out.weight @ (u[b, i] * read) + unit.proj_out.bias)


@pytest.mark.parametrize("causal", [False, True])
def test_rotation_makes_it_relative(causal: bool) -> None:
    relative(tiny(causal=causal, token_mixer="gated_attention_unit", position="rope"), 6)


def test_queries_and_keys_start_apart() -> None:
    gain = initialise(GatedAttentionUnit(context()), 0).offsets.gain
    assert (gain[0] - gain[1]).abs().min() > 0
    assert gain.mean().item() == pytest.approx(1.0, abs=0.05)


class Leaks(GatedAttentionUnit):
    """Planted: forgets that the model is causal."""

    def __init__(self, ctx: object) -> None:
        super().__init__(ctx)
        self.causal = False


def test_planted_leak_is_caught() -> None:
    with pytest.raises(AssertionError):
        causality(tiny(causal=True, replace={"token_mixer": Leaks}), 6)
