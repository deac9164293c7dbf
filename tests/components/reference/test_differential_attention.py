"""Differential attention against timm and DiffLlama, on equal weights."""

from __future__ import annotations

import pytest
import torch
from timm.layers.diff_attention import DiffAttention
from torch import Tensor
from torch.testing import assert_close
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from blockyard.ops import maps
from blockyard.token_mixer.differential_attention import DifferentialAttention
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context, tiny
from tests.support.tolerances import FLOAT32_STEPS

N, D, H, K = 6, 16, 4, 4


def tokens() -> Tensor:
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_timm(causal: bool, layer: int) -> None:
    ours = stirred(DifferentialAttention(context(causal=causal, depth=4).at(layer), bias=True)).eval()
    theirs = DiffAttention(D, H, qkv_bias=True, depth=layer).double().eval()
    with torch.no_grad():
        for their_map, our_map in ((theirs.qkv, ours.proj_in), (theirs.proj, ours.proj_out)):
            their_map.weight.copy_(our_map.weight)
            their_map.bias.copy_(our_map.bias)
        for name, vector in zip(("q1", "k1", "q2", "k2"), ours.lambdas, strict=True):
            getattr(theirs, f"lambda_{name}").copy_(vector)
        theirs.sub_norm.weight.copy_(ours.norm.weight)
    x = tokens()
    # Their factor is computed in float32.
    assert_close(ours(x, sequence(N)), theirs(x, is_causal=causal), **FLOAT32_STEPS)
    with torch.no_grad():
        ours.lambdas[3] += 0.5
    assert (ours(x, sequence(N)) - theirs(x, is_causal=causal)).abs().max() > 1e-3


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_diffllama(kv_heads: int) -> None:
    """Its heads are all first halves and then all second ones, also those of values; its norm has no gain."""
    ours = stirred(DifferentialAttention(context(causal=True), num_kv_heads=kv_heads)).eval()
    config = DiffLlamaConfig(
        hidden_size=D,
        num_attention_heads=2 * H,
        num_key_value_heads=2 * kv_heads,
        head_dim=K // 2,
        attn_implementation="eager",
    )
    theirs = DiffLlamaAttention(config, 0).double().eval()
    with torch.no_grad():
        ours.norm.weight.fill_(1.0)
        for name, part in zip("qkv", ours.proj_in.weight.split(ours.widths), strict=True):
            by_pair = part.unflatten(0, (-1, 2, K // 2)).transpose(0, 1)  # (2, heads, K / 2, D)
            getattr(theirs, f"{name}_proj").weight.copy_(by_pair.flatten(0, 2))
        theirs.o_proj.weight.copy_(ours.proj_out.weight)
        for name, vector in zip(("q1", "k1", "q2", "k2"), ours.lambdas, strict=True):
            getattr(theirs, f"lambda_{name}").copy_(vector)
        theirs.groupnorm.eps = ours.norm.eps
    still = (torch.ones(1, N, K // 2).double(), torch.zeros(1, N, K // 2).double())
    later = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    x = tokens()
    out = theirs(x, still, later)[0]
    assert_close(ours(x, sequence(N)), out, **FLOAT32_STEPS)  # their softmax is in float32
    with torch.no_grad():
        ours.proj_in.weight[0] += 1.0
    assert (ours(x, sequence(N)) - out).abs().max() > 1e-3


def test_a_map_is_the_difference() -> None:
    ours = stirred(DifferentialAttention(context(causal=True))).eval()
    x = tokens()
    with maps.listen(ours) as seen:
        out = ours(x, sequence(N))
    assert len(seen) == 1
    weights = seen[0].weights().double()
    assert_close(weights.sum(-1), (1 - ours.factor()).expand(2, H, N), **FLOAT32_STEPS)
    read = weights @ seen[0].v
    normed = read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt() * ours.norm.weight * (1 - ours.first_lambda)
    assert_close(normed.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T, out, rtol=1e-4, atol=1e-4)


def test_heads_of_odd_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"halves the channels of a head, and model\.dim / model\.heads is 3"):
        DifferentialAttention(context(dim=12))


def test_heads_too_narrow_for_a_grid_are_told_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"change model\.dim or model\.heads"):
        tiny(token_mixer="differential_attention", position="rope", axes=2)
