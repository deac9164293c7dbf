"""Forgetting attention against x-transformers, and against its definition as a loop over tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from x_transformers.x_transformers import Attention as XAttention

from blockyard.errors import UserError
from blockyard.ops.flex import flex
from blockyard.ops.kernel import attention_kernel
from blockyard.ops.mask import CAUSAL
from blockyard.ops.reference import eager
from blockyard.ops.shaping import Forget, Shaping
from blockyard.token_mixer.forgetting_attention import ForgettingAttention
from tests.components.reference.inputs import sequence, stirred
from tests.ops.attention_inputs import facts, qkv, scheme
from tests.support.helpers import LENGTH, context, tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64

N, D, H, K = 6, 16, 4, 4


def tokens() -> Tensor:
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_x_transformers() -> None:
    ours = stirred(ForgettingAttention(context(causal=True))).eval()
    theirs = XAttention(dim=D, heads=H, dim_head=K, causal=True, data_dependent_alibi=True).double()
    q, k, v, forget = ours.proj_in.weight.split(ours.widths)
    with torch.no_grad():
        for name, part in (("q", q), ("k", k), ("v", v)):
            getattr(theirs, f"to_{name}").weight.copy_(part)
        theirs.to_out.weight.copy_(ours.proj_out.weight)
        gates = theirs.data_dependent_alibi.to_forget_gates[0]
        gates.weight.copy_(forget)
        gates.bias.copy_(ours.forget_bias)
    x = tokens()
    assert_close(ours(x, sequence(N)), theirs(x), **FLOAT32_STEPS)  # their softmax is in float32
    with torch.no_grad():
        ours.forget_bias[0] += 1.0
    assert (ours(x, sequence(N)) - theirs(x)).abs().max() > 1e-3


def by_loop(ours: ForgettingAttention, x: Tensor) -> Tensor:
    """Token by token: all weights so far are multiplied by the forget gate, and the newest one is added."""
    q, k, v, f = (x @ part.T for part in ours.proj_in.weight.split(ours.widths))
    f = torch.sigmoid(f + ours.forget_bias)  # (B, N, H)
    out = torch.zeros(2, N, H, K, dtype=x.dtype)
    for b in range(2):
        for h in range(H):
            group = h // (H // ours.kv_heads)
            kept: list[Tensor] = []
            for i in range(N):
                kept = [weight * f[b, i, h] for weight in kept] + [torch.ones(())]
                query = q[b, i, h * K : (h + 1) * K]
                keys, values = (part[b, : i + 1, group * K : (group + 1) * K] for part in (k, v))
                weights = torch.stack(kept) * (keys @ query / K**0.5).exp()
                out[b, i, h] = weights @ values / weights.sum()
    return out.flatten(2) @ ours.proj_out.weight.T


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_definition(kv_heads: int) -> None:
    ours = stirred(ForgettingAttention(context(causal=True), num_kv_heads=kv_heads)).eval()
    assert_close(ours(tokens(), sequence(N)), by_loop(ours, tokens()))


def test_both_ways() -> None:
    """A bidirectional model forgets as much of a later token as that would forget of this one."""
    ours = stirred(ForgettingAttention(context())).eval()
    x = tokens()
    q, k, v, f = (x @ part.T for part in ours.proj_in.weight.split(ours.widths))
    log = torch.sigmoid(f + ours.forget_bias).log()  # (B, N, H)
    between = torch.stack(
        [torch.stack([log[:, min(i, j) + 1 : max(i, j) + 1].sum(1) for j in range(N)], 1) for i in range(N)], 1
    )  # (B, N, N, H)
    q, k, v = (part.unflatten(-1, (H, K)).transpose(1, 2) for part in (q, k, v))
    y = (q @ k.mT / K**0.5 + between.permute(0, 3, 1, 2)).softmax(-1) @ v
    assert_close(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("position", ["no", "alibi"])
def test_flex_attention(position: str) -> None:
    q, k, v = qkv(torch.float64, 2)
    seq = facts("both", scheme(position))
    sums = torch.randn(2, 4, q.shape[2], dtype=torch.float64).cumsum(-1)
    for cap in (None, 2.0):
        shaping = Shaping(cap, forget=Forget(sums, sums))
        wanted = eager(q, k, v, seq, seq, CAUSAL, shaping=shaping)
        assert_close(flex(q, k, v, seq, seq, CAUSAL, compiled=False, shaping=shaping), wanted, **FLOAT64)
        assert (eager(q, k, v, seq, seq, CAUSAL, shaping=Shaping(cap)) - wanted).abs().max() > 1e-2


def test_kernels_that_cannot_are_refused() -> None:
    model = tiny(causal=True, token_mixer="forgetting_attention")
    for name in ("sdpa", "online"):
        with attention_kernel(name), pytest.raises(UserError, match="scores fall with what is forgotten"):
            model(token_ids(2, LENGTH))


def test_a_cache_has_a_number_of_each_head_besides() -> None:
    model = tiny(causal=True, token_mixer="forgetting_attention", options={"token_mixer": {"num_kv_heads": 2}})
    ids, cache = token_ids(2, LENGTH), model.init_cache(2)
    model(ids, cache=cache)
    assert cache.layers[0].bytes == 2 * LENGTH * (2 * 2 * K + H) * 8
    cache.crop(2)
    assert_close(model(ids[:, -2:], cache=cache), model(ids)[:, -2:])
    cache.reorder(torch.tensor([1, 0]))
    after = torch.cat([ids.flip(0), ids[:, :1]], 1)
    assert_close(model(ids[:, :1], cache=cache), model(after)[:, -1:])
