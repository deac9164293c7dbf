"""Latent attention against DeepSeek V3's, on equal weights, and absorbed against not absorbed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from blockyard.position.rope import Rope
from blockyard.token_mixer.latent_attention import LatentAttention
from tests.components.reference.inputs import sequence, stirred
from tests.support.helpers import LENGTH, context, tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS

N, D, H, K, ROTATED, VALUES, RANK = 6, 16, 4, 5, 4, 3, 7


def pair(query_rank: int | None) -> tuple[LatentAttention, nn.Module]:
    """Ours and DeepSeek's with the same weights; its map from the latent vector goes head by head."""
    options: dict[str, Any] = {"rank": RANK, "key_dim": K, "rotated_dim": ROTATED, "value_dim": VALUES}
    ours = stirred(LatentAttention(context(causal=True), query_rank=query_rank, **options)).eval()
    config = DeepseekV3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=query_rank,
        kv_lora_rank=RANK,
        qk_nope_head_dim=K,
        qk_rope_head_dim=ROTATED,
        v_head_dim=VALUES,
        rope_interleave=False,
        attn_implementation="eager",
    )
    theirs = DeepseekV3Attention(config, 0).double().eval()
    q, latent = ours.proj_in.weight.split([ours.widths[0], RANK + ROTATED])
    keys, values = ours.proj_latent.weight.split([H * K, H * VALUES])
    with torch.no_grad():
        (theirs.q_proj if query_rank is None else theirs.q_a_proj).weight.copy_(q)
        if query_rank is not None:
            theirs.q_b_proj.weight.copy_(ours.proj_query.weight)
            theirs.q_a_layernorm.weight.copy_(ours.query_norm.weight)
        theirs.kv_a_proj_with_mqa.weight.copy_(latent)
        theirs.kv_a_layernorm.weight.copy_(ours.latent_norm.weight)
        theirs.kv_b_proj.weight.copy_(torch.cat([keys.view(H, K, RANK), values.view(H, VALUES, RANK)], 1).flatten(0, 1))
        theirs.o_proj.weight.copy_(ours.proj_out.weight)
    return ours, theirs


def rotation() -> tuple[Tensor, Tensor]:
    """Cosines and sines (1, N, K_r) of their layout."""
    angle = torch.arange(N).double()[:, None] * 10000.0 ** -(torch.arange(ROTATED // 2).double() / (ROTATED // 2))
    angle = torch.cat([angle, angle], -1)[None]
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("query_rank", [None, 6])
def test_deepseek(query_rank: int | None) -> None:
    ours, theirs = pair(query_rank)
    x = torch.randn(2, N, D, dtype=torch.float64)
    later = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    seq = sequence(N, position=Rope(context(causal=True)))
    out = theirs(x, rotation(), later)[0]
    assert_close(ours(x, seq), out, **FLOAT32_STEPS)  # their norms and softmax are in float32
    with torch.no_grad():
        ours.proj_in.weight[-1] += 1.0  # a channel that rotates
    assert (ours(x, seq) - out).abs().max() > 1e-3


@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
@pytest.mark.parametrize("query_rank", [None, 6])
def test_absorbed_is_the_same(position: str, query_rank: int | None) -> None:
    """Decoding from the cache, by the latent vectors and by keys and values made of them, is the full pass."""
    ids, outputs = token_ids(2, LENGTH), []
    for absorbed in (True, False):
        options = {"absorbed": absorbed, "query_rank": query_rank}
        model = tiny(causal=True, token_mixer="latent_attention", position=position, options={"token_mixer": options})
        cache = model.init_cache(2)
        outputs.append(
            torch.cat([model(ids[:, :3], cache=cache), *(model(i, cache=cache) for i in ids[:, 3:].split(1, 1))], 1)
        )
        assert_close(outputs[-1], model(ids))
        # rank 4 and 2 channels that rotate, in float64, for 2 sequences
        assert cache.layers[0].bytes == 2 * LENGTH * (4 + 2) * 8
    assert_close(*outputs)


@pytest.mark.parametrize("absorbed", [True, False])
def test_a_factor_on_the_scores(absorbed: bool) -> None:
    """As DeepSeek's beside YaRN; also in decoding steps."""
    options = {"absorbed": absorbed, "score_scale": 0.9}
    model = tiny(causal=True, token_mixer="latent_attention", position="rope", options={"token_mixer": options})
    ids, usual = token_ids(2, LENGTH), tiny(causal=True, token_mixer="latent_attention", position="rope")
    cache = model.init_cache(2)
    assert_close(torch.cat([model(i, cache=cache) for i in ids.split(1, 1)], 1), model(ids))
    for mixer in (each for each in usual.modules() if isinstance(each, LatentAttention)):
        assert mixer.scale != 0.9
        mixer.scale = 0.9
    assert_close(usual(ids), model(ids))


def test_a_width_that_does_not_rotate_names_its_option() -> None:
    options = {"token_mixer": {"rotated_dim": 3}}
    with pytest.raises(ValueError, match=r"token_mixer\.rotated_dim"):
        tiny(causal=True, token_mixer="latent_attention", position="rope", options=options)
