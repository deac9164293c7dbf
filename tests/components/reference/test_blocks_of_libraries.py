"""Blocks against those of transformers and timm: sandwich, branch_norm, parallel."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import Gemma2Config, Olmo2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

from blockyard.contracts import Block
from tests.components.reference.inputs import sequence
from tests.support.helpers import tiny
from tests.support.tolerances import FLOAT32_STEPS

D, HEADS, N = 16, 4, 6
X = torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def gemma(ours: Block) -> nn.Module:
    """Gemma 2's layer with the weights of a sandwich block of attention and GEGLU, without capped scores."""
    config = Gemma2Config(
        hidden_size=D,
        intermediate_size=ours.channel_mixer.proj_out.in_features,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=D // HEADS,
        query_pre_attn_scalar=D // HEADS,
        attn_logit_softcapping=None,
        attn_implementation="eager",
    )
    theirs = Gemma2DecoderLayer(config, layer_idx=1).double().eval()
    q, k, v = ours.token_mixer.proj_in.weight.split([D, D // 2, D // 2])
    gate, up = ours.channel_mixer.proj_in.weight.chunk(2)
    weights = {
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": ours.token_mixer.proj_out.weight,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": ours.channel_mixer.proj_out.weight,
        "input_layernorm": ours.token_norm.weight - 1,  # theirs are how far a gain is from one
        "post_attention_layernorm": ours.token_finish.weight - 1,
        "pre_feedforward_layernorm": ours.channel_norm.weight - 1,
        "post_feedforward_layernorm": ours.channel_finish.weight - 1,
    }
    theirs.load_state_dict({f"{name}.weight": weight for name, weight in weights.items()})
    return theirs


def sandwich() -> Block:
    """A decoder block with the components of Gemma 2."""
    options = {"token_mixer": {"num_kv_heads": 2}, "channel_mixer": {"activation": "gelu_tanh"}}
    return tiny(causal=True, block="sandwich", norm="rms", channel_mixer="glu", options=options).blocks[0]


def reference_output(theirs: nn.Module) -> Tensor:
    """The output of a layer of transformers for X, without rotation, with a causal mask."""
    still = (torch.ones(1, N, D // HEADS).double(), torch.zeros(1, N, D // HEADS).double())
    later = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    return theirs(X, position_embeddings=still, attention_mask=later)


def test_sandwich_is_gemmas() -> None:
    """Their norms and softmax are always in float32."""
    ours = sandwich()
    assert_close(ours(X, sequence(N)), reference_output(gemma(ours)), **FLOAT32_STEPS)


@pytest.mark.parametrize("norm", ["token_norm", "token_finish", "channel_norm", "channel_finish"])
def test_each_norm_of_a_sandwich_matters(norm: str) -> None:
    ours = sandwich()
    theirs = gemma(ours)
    setattr(ours, norm, nn.Identity())
    with pytest.raises(AssertionError):
        assert_close(ours(X, sequence(N)), reference_output(theirs), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def olmo(ours: Block) -> nn.Module:
    """OLMo 2's layer with the weights of a block, without its norms of queries and keys."""
    config = Olmo2Config(
        hidden_size=D,
        intermediate_size=ours.channel_mixer.proj_out.in_features,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
    )
    theirs = Olmo2DecoderLayer(config, layer_idx=0).double().eval()
    theirs.self_attn.q_norm = theirs.self_attn.k_norm = nn.Identity()
    q, k, v = ours.token_mixer.proj_in.weight.split([D, D // 2, D // 2])
    gate, up = ours.channel_mixer.proj_in.weight.chunk(2)
    weights = {
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": ours.token_mixer.proj_out.weight,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": ours.channel_mixer.proj_out.weight,
        "post_attention_layernorm": ours.token_finish.weight,
        "post_feedforward_layernorm": ours.channel_finish.weight,
    }
    theirs.load_state_dict({f"{name}.weight": weight for name, weight in weights.items()})
    return theirs


def test_branch_norm_is_olmos() -> None:
    """Their norms and softmax are always in float32."""
    options = {"token_mixer": {"num_kv_heads": 2}}
    ours = tiny(causal=True, block="branch_norm", norm="rms", channel_mixer="glu", options=options).blocks[0]
    theirs = olmo(ours)
    assert_close(ours(X, sequence(N)), reference_output(theirs), **FLOAT32_STEPS)
    for norm in ("token_finish", "channel_finish"):
        kept = getattr(ours, norm)
        setattr(ours, norm, nn.Identity())
        with pytest.raises(AssertionError):
            assert_close(ours(X, sequence(N)), reference_output(theirs), rtol=1e-3, atol=1e-3)
        setattr(ours, norm, kept)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_parallel_is_timms(bias: bool, fused: bool) -> None:
    """In timm's fused projection the weights of the hidden layer come first."""
    options = {"token_mixer": {"bias": bias}, "channel_mixer": {"bias": bias}, "block": {"fused": fused}}
    ours = tiny(block="parallel", options=options).blocks[0]
    theirs = ParallelScalingBlock(
        D, HEADS, qkv_bias=bias, proj_bias=bias, norm_layer=partial(nn.LayerNorm, eps=1e-5), fuse_out_proj=fused
    ).double()
    ins, outs = ([getattr(m, end) for m in (ours.channel_mixer, ours.token_mixer)] for end in ("proj_in", "proj_out"))
    mlp, attention = outs
    state = {"in_norm.weight": ours.token_norm.weight, "in_norm.bias": ours.token_norm.bias}
    for end in ("weight", "bias") if bias else ("weight",):
        state[f"in_proj.{end}"] = torch.cat([getattr(part, end) for part in ins])
        first, second = getattr(attention, end), getattr(mlp, end)
        if fused:
            state[f"out_proj.{end}"] = torch.cat([first, second], dim=1) if end == "weight" else first + second
        else:
            state |= {f"attn_out_proj.{end}": first, f"mlp_out_proj.{end}": second}
    if not bias:
        state["mlp_bias"] = torch.zeros(4 * D)
    theirs.load_state_dict(state)
    assert_close(ours(X, sequence(N)), theirs(X))
    with torch.no_grad():
        theirs.in_norm.weight[0] += 0.1
    with pytest.raises(AssertionError):
        assert_close(ours(X, sequence(N)), theirs(X))
