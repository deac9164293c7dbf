"""Options of softmax attention against the classes of libraries that have them, on equal weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from timm.layers.attention import Attention as TimmAttention
from timm.models.swin_transformer_v2 import WindowAttention as SwinAttention
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Gemma2Config, GptOssConfig, Olmo2Config, Qwen3NextConfig
from transformers.masking_utils import chunked_causal_mask_function
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention
from x_transformers.x_transformers import Attention as XAttention

from blockyard.ops import maps
from blockyard.position.rope import Rope
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.strict_attention import StrictAttention
from blockyard.token_mixer.windowed_attention import WindowedAttention
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import context
from tests.support.tolerances import FLOAT32_STEPS

N, D, H, K = 6, 16, 4, 4
STILL = (torch.ones(1, N, K).double(), torch.zeros(1, N, K).double())  # no rotation
LATER = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None]


def tokens(seed: int = 0) -> Tensor:
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def built(causal: bool = True, **options: Any) -> Attention:
    return stirred(Attention(context(causal=causal), **options)).eval()


def differ(ours: Tensor, theirs: Tensor) -> None:
    """Planted: another weight is another output, by far more than rounding."""
    assert (ours - theirs).abs().max() > 1e-3


def test_gate_of_channels_is_qwens() -> None:
    ours = built(num_kv_heads=2, qk_norm=True, gate="channel")
    config = Qwen3NextConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=2,
        head_dim=K,
        attn_implementation="eager",
        num_hidden_layers=1,
        layer_types=["full_attention"],
    )
    theirs = Qwen3NextAttention(config, 0).double().eval()
    q, k, v, gate = ours.proj_in.weight.split(ours.parts)
    with torch.no_grad():
        theirs.q_proj.weight.copy_(torch.cat([q.view(H, K, D), gate.view(H, K, D)], 1).flatten(0, 1))  # head by head
        theirs.k_proj.weight.copy_(k)
        theirs.v_proj.weight.copy_(v)
        theirs.o_proj.weight.copy_(ours.proj_out.weight)
        theirs.q_norm.weight.copy_(ours.q_norm.weight - 1)  # theirs are how far a gain is from one
        theirs.k_norm.weight.copy_(ours.k_norm.weight - 1)
    x = tokens()
    out = theirs(x, STILL, LATER)[0]
    assert_close(ours(x, sequence(N)), out, **FLOAT32_STEPS)  # their norms and softmax are in float32
    with torch.no_grad():
        ours.proj_in.weight[-1] += 1.0
    differ(ours(x, sequence(N)), out)


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_gates_are_those_of_x_transformers(gate: str) -> None:
    ours = built(gate=gate)
    theirs = XAttention(
        dim=D, heads=H, dim_head=K, causal=True, gate_values=True, gate_values_headwise=gate == "head"
    ).double()
    with torch.no_grad():
        parts = zip(("to_q", "to_k", "to_v", "to_v_gate"), ours.proj_in.weight.split(ours.parts), strict=True)
        for name, part in parts:
            getattr(theirs, name).weight.copy_(part)
        theirs.to_out.weight.copy_(ours.proj_out.weight)
    x = tokens()
    assert_close(ours(x, sequence(N)), theirs(x), **FLOAT32_STEPS)  # their softmax is in float32
    with torch.no_grad():
        ours.proj_in.weight[-1] += 1.0
    differ(ours(x, sequence(N)), theirs(x))


def test_a_gate_would_let_a_strict_token_through() -> None:
    with pytest.raises(ValueError, match=r"token_mixer\.gate=head depends on the token itself.* use gate=none or asks"):
        StrictAttention(context(), asks="learned", gate="head")


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_norm_over_all_heads_is_that_of_olmo(kv_heads: int) -> None:
    ours = built(num_kv_heads=kv_heads, qk_norm="full")
    config = Olmo2Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
    )
    theirs = Olmo2Attention(config, 0).double().eval()
    with torch.no_grad():
        for name, part in zip("qkv", ours.proj_in.weight.split(ours.widths), strict=True):
            getattr(theirs, f"{name}_proj").weight.copy_(part)
        theirs.o_proj.weight.copy_(ours.proj_out.weight)
        theirs.q_norm.weight.copy_(ours.q_norm.weight)
        theirs.k_norm.weight.copy_(ours.k_norm.weight)
    x = tokens()
    out = theirs(x, STILL, LATER)[0]
    assert_close(ours(x, sequence(N)), out, **FLOAT32_STEPS)  # their norms and softmax are in float32
    heads = stirred(Attention(context(causal=True), num_kv_heads=kv_heads, qk_norm="head"))
    heads.proj_in, heads.proj_out = ours.proj_in, ours.proj_out
    differ(heads(x, sequence(N)), out)  # the norm of each head is another


def test_layer_norm_of_heads_is_timms() -> None:
    ours = built(causal=False, qk_norm="layer", bias=True)
    norm = partial(nn.LayerNorm, eps=1e-6, bias=False)
    theirs = TimmAttention(D, num_heads=H, qkv_bias=True, qk_norm=True, norm_layer=norm).double().eval()
    with torch.no_grad():
        theirs.qkv.weight.copy_(ours.proj_in.weight)
        theirs.qkv.bias.copy_(ours.proj_in.bias)
        theirs.proj.weight.copy_(ours.proj_out.weight)
        theirs.proj.bias.copy_(ours.proj_out.bias)
        theirs.q_norm.weight.copy_(ours.q_norm.weight)
        theirs.k_norm.weight.copy_(ours.k_norm.weight)
    x = tokens()
    assert_close(ours(x, sequence(N)), theirs(x))
    with torch.no_grad():
        ours.k_norm.weight[0] += 1.0
    differ(ours(x, sequence(N)), theirs(x))


@pytest.mark.parametrize("largest", [False, True])
def test_cosines_are_those_of_swin(largest: bool) -> None:
    """Its bias by coordinates is made zero here; the factor on cosines ends at 100."""
    ours = built(causal=False, qk_norm="cosine")
    theirs = SwinAttention(D, (2, 3), H, qkv_bias=False).double().eval()
    with torch.no_grad():
        if largest:
            ours.q_norm.log_scale.fill_(9.0)
        theirs.qkv.weight.copy_(ours.proj_in.weight)
        theirs.proj.weight.copy_(ours.proj_out.weight)
        theirs.proj.bias.zero_()
        theirs.logit_scale.copy_(ours.q_norm.log_scale[:, None, None])
        theirs.cpb_mlp[2].weight.zero_()
    x = tokens()
    assert_close(ours(x, sequence(N)), theirs(x))
    with torch.no_grad():
        ours.q_norm.log_scale[0] = 1.0
    differ(ours(x, sequence(N)), theirs(x))


def same_projections(ours: Attention, theirs: nn.Module) -> None:
    """Copy the four maps; biases of theirs are zero."""
    with torch.no_grad():
        for name, part in zip("qkv", ours.proj_in.weight.split(ours.widths), strict=True):
            getattr(theirs, f"{name}_proj").weight.copy_(part)
        theirs.o_proj.weight.copy_(ours.proj_out.weight)
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("sink", ["zero", "learned"])
def test_sinks_are_those_of_gpt_oss(sink: str, kv_heads: int) -> None:
    ours = built(num_kv_heads=kv_heads, sink=sink)
    config = GptOssConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=kv_heads,
        head_dim=K,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        attn_implementation="eager",
    )
    theirs = GptOssAttention(config, 0).double().eval()
    same_projections(ours, theirs)
    half = (torch.ones(1, N, K // 2).double(), torch.zeros(1, N, K // 2).double())
    with torch.no_grad():
        theirs.sinks.copy_(torch.zeros(H) if sink == "zero" else ours.scores.sink)
    x = tokens()
    out = theirs(x, half, LATER)[0]
    assert_close(ours(x, sequence(N)), out)
    with torch.no_grad():
        theirs.sinks[-1] += 1.0
    differ(ours(x, sequence(N)), theirs(x, half, LATER)[0])


def test_caps_and_scales_are_gemmas() -> None:
    """Its scale is a number of the config."""
    ours = built(num_kv_heads=2, softcap=1.5, score_scale=9.0**-0.5)
    config = Gemma2Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=2,
        head_dim=K,
        num_hidden_layers=1,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=1.5,
        layer_types=["full_attention"],
        attn_implementation="eager",
    )
    theirs = Gemma2Attention(config, 0).double().eval()
    same_projections(ours, theirs)
    x = tokens()
    assert_close(ours(x, sequence(N)), theirs(x, STILL, LATER)[0], **FLOAT32_STEPS)  # their softmax is in float32
    theirs.attn_logit_softcapping = 2.0
    differ(ours(x, sequence(N)), theirs(x, STILL, LATER)[0])


def by_formula(ours: Attention, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """What each head reads and the values, (B, H, N, K); scores are products times `factor` (H, N, 1)."""
    q, k, v = (x @ part.T for part in ours.proj_in.weight.split(ours.widths))
    q, k, v = (part.unflatten(-1, (-1, K)).transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(H // part.shape[1], dim=1) for part in (k, v))
    scores = (q @ k.mT * factor).masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v, v


def test_scores_grow_with_the_logarithm_of_the_keys() -> None:
    """Scalable softmax: a query scales its scores by s ln n, where it sees n keys."""
    ours, x = built(score_scale="log_n"), tokens()
    counts = torch.arange(1, N + 1).double()[:, None]
    y, _ = by_formula(ours, x, ours.scores.factor[:, None, None] * counts.log() / K**0.5)
    assert_close(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    y, _ = by_formula(ours, x, ours.scores.factor[:, None, None] * (counts + 1).log() / K**0.5)
    differ(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    fresh = Attention(context(causal=True), score_scale="log_n")
    assert fresh.scores.first_factor * torch.tensor(float(N)).log() == pytest.approx(1.0)  # of the longest sequence


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_tokens_own_value_is_taken_out(kv_heads: int) -> None:
    ours, x = built(num_kv_heads=kv_heads, exclusive=True), tokens()
    y, v = by_formula(ours, x, torch.full((H, N, 1), K**-0.5).double())
    own = v / v.norm(dim=-1, keepdim=True)
    exclusive = y - (y * own).sum(-1, keepdim=True) * own
    assert_close(ours(x, sequence(N)), exclusive.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    differ(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    with pytest.raises(ValueError, match=r"exclusive=true depends on the token itself"):
        StrictAttention(context(), asks="learned", exclusive=True)


def test_values_that_are_keys() -> None:
    """Those of a layer whose two projections are equal, before the norm and the rotation of keys."""
    tied, plain = (built(num_kv_heads=2, qk_norm="head", tied_kv=tied) for tied in (True, False))
    q, k, v = tied.proj_in.weight.split(tied.widths)
    assert v.numel() == 0
    with torch.no_grad():
        plain.proj_in.weight.copy_(torch.cat([q, k, k]))
        plain.proj_out.weight.copy_(tied.proj_out.weight)
        for norm in ("q_norm", "k_norm"):
            getattr(plain, norm).weight.copy_(getattr(tied, norm).weight)
    x, seq = tokens(), sequence(N, position=Rope(context(causal=True)))
    assert_close(tied(x, seq), plain(x, seq))
    with torch.no_grad():
        plain.proj_in.weight[-1] += 1.0
    differ(tied(x, seq), plain(x, seq))
    with pytest.raises(ValueError, match=r"keys of 4 channels cannot be values of 8; use equal key_dim and value_dim"):
        built(tied_kv=True, value_dim=8)
    with pytest.raises(ValueError, match=r"qk_norm=cosine has a trained factor for each head; leave one out"):
        built(qk_norm="cosine", score_scale="learned")


@pytest.mark.parametrize("chunk", [2, 4])
def test_chunks_are_those_of_llama_4(chunk: int) -> None:
    mixer = stirred(WindowedAttention(context(causal=True), window=chunk, chunked=True)).eval()
    sees = chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.long))
    wanted = torch.tensor([[bool(sees(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(N)] for i in range(N)])
    with maps.listen(mixer) as seen:
        mixer(tokens(), sequence(N))
    assert torch.equal(seen[0].weights()[0, 0] > 0, wanted)
    with pytest.raises(ValueError, match="a chunk holds neighbours; use stride=1 or chunked=false"):
        WindowedAttention(context(), stride=2, chunked=True)


def test_a_cache_of_a_stride_reaches_as_far_as_it() -> None:
    cache = WindowedAttention(context(causal=True), window=3, stride=4).init_cache(1)
    assert cache.window == 12


def test_a_short_convolution_of_queries_keys_and_values() -> None:
    ours = built(conv=3, num_kv_heads=2)
    filters = nn.Conv1d(sum(ours.widths), sum(ours.widths), 3, padding=2, groups=sum(ours.widths), bias=False).double()
    with torch.no_grad():
        filters.weight.copy_(ours.conv.weight[:, None])
    x = tokens()
    h = filters((x @ ours.proj_in.weight.T).mT)[..., :N].mT
    q, k, v = (part.unflatten(-1, (-1, K)).transpose(1, 2) for part in h.split(ours.widths, -1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_close(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    with torch.no_grad():
        ours.conv.weight[0, 0] += 1.0
    differ(ours(x, sequence(N)), y.transpose(1, 2).flatten(2) @ ours.proj_out.weight.T)
    cache = ours.init_cache(2)
    ours(x, sequence(N), cache)
    assert cache.bytes == cache.keys.bytes + 2 * 2 * sum(ours.widths) * 8
    with pytest.raises(ValueError, match=r"layers that read earlier keys have none to convolve; use conv=0"):
        built(conv=3, kv_every=2)


def test_names_of_norms() -> None:
    """true is head and false is none, to the bit."""
    x = tokens()
    for flag, name in ((True, "head"), (False, "none")):
        assert torch.equal(built(qk_norm=flag)(x, sequence(N)), built(qk_norm=name)(x, sequence(N)))
    ours = built(qk_norm="cosine")
    cosines = F.normalize(torch.randn(3, K).double(), dim=-1)
    assert_close(ours.k_norm(cosines[None, None]), cosines[None, None])


@pytest.mark.parametrize("kind", ["head", "full", "layer", "cosine", "sphere"])
def test_the_linear_part_of_a_norm(kind: str) -> None:
    """What a norm gives is its linear part times one positive factor for each token and head."""
    norm = built(qk_norm=kind).q_norm
    weights, x = torch.randn(H, K, D).double(), tokens()
    normed = norm(torch.einsum("hkd,bnd->bhnk", weights, x))
    ratio = normed / torch.einsum("hkd,bnd->bhnk", norm.linear_part(weights), x)
    assert (ratio > 0).all()
    assert_close(ratio, ratio[..., :1].expand_as(ratio))
