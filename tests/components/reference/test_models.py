"""Whole models with copied weights against Hugging Face's GPT-2 and timm's Vision Transformer."""

from __future__ import annotations

import re

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from blockyard.contracts import DataSpec, Parts
from blockyard.model._prefix import Prefix
from blockyard.model.encoder import Encoder
from blockyard.tokenizer.patch import Patch
from blockyard.weight_init import initialise
from tests.components.reference.inputs import sequence
from tests.support.helpers import factory, stir, tiny, token_ids
from tests.support.tolerances import FLOAT64


def gpt2() -> tuple[nn.Module, GPT2LMHeadModel]:
    """Our decoder and GPT-2 with the same weights."""
    config = GPT2Config(vocab_size=11, n_positions=6, n_embd=16, n_layer=2, n_head=4)
    config._attn_implementation = "eager"
    theirs = stir(GPT2LMHeadModel(config)).double().eval()
    ours = tiny(
        causal=True,
        position="learned",
        options={
            "token_mixer": {"bias": True},
            "channel_mixer": {"bias": True, "activation": "gelu_tanh"},
            "head": {"tied": True},
        },
    )
    copied = {"embedder.table": theirs.transformer.wte.weight, "position.table": theirs.transformer.wpe.weight}
    copied["head.proj.weight"] = theirs.transformer.wte.weight
    names = {
        "ln_1": "token_norm",
        "attn.c_attn": "token_mixer.proj_in",
        "attn.c_proj": "token_mixer.proj_out",
        "ln_2": "channel_norm",
        "mlp.c_fc": "channel_mixer.proj_in",
        "mlp.c_proj": "channel_mixer.proj_out",
    }
    for name, value in theirs.transformer.h.named_parameters():
        number, module, kind = re.fullmatch(r"(\d+)\.(.+)\.(weight|bias)", name).groups()
        # GPT-2 stores linear weights transposed.
        value = value.T if value.ndim == 2 else value
        copied[f"blocks.{number}.{names[module]}.{kind}"] = value
    copied["final_norm.weight"] = theirs.transformer.ln_f.weight
    copied["final_norm.bias"] = theirs.transformer.ln_f.bias
    ours.load_state_dict(copied)
    return ours, theirs


def test_gpt2() -> None:
    ours, theirs = gpt2()
    inputs = token_ids(3, 6)
    assert_close(ours(inputs), theirs(inputs).logits, **FLOAT64)


def test_gpt2_generates_the_same() -> None:
    """Greedy decoding from a cache equals transformers' `generate`."""
    ours, theirs = gpt2()
    prompt = token_ids(1, 3)
    cache, generated = ours.init_cache(1), prompt
    new = prompt
    for _ in range(3):
        new = ours(new, cache=cache)[:, -1:].argmax(-1)
        generated = torch.cat([generated, new], 1)
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=3,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    assert torch.equal(generated, expected)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_vision_transformer(pool: str) -> None:
    theirs = VisionTransformer(
        img_size=8,
        patch_size=2,
        in_chans=3,
        num_classes=5,
        embed_dim=24,
        depth=2,
        num_heads=3,
        class_token=True,
        reg_tokens=2,
        global_pool=pool,
        no_embed_class=True,
        fc_norm=False,
    )
    theirs = stir(theirs).double().eval()
    data, tokenizer = DataSpec("image", (3, 8, 8), target="class", classes=5), Patch(size=2)
    plan = Encoder(dim=24, depth=2, heads=3, prefix=Prefix(class_token=True, registers=2))
    ctx = plan.context(data, tokenizer.spec(data), 5)
    parts = Parts(
        embedder=tokenizer.embedder,
        position=factory("position", "learned"),
        token_mixer=factory("token_mixer", "attention", {"bias": True}),
        channel_mixer=factory("channel_mixer", "mlp", {"bias": True}),
        norm=factory("norm", "layer", {"eps": 1e-6}),
        block=factory("block", "pre_norm"),
        head=factory("head", "class_token" if pool == "token" else "mean_pool"),
    )
    ours = initialise(plan.build(ctx, parts), 0).double().eval()
    weights = theirs.state_dict()
    copied = {
        "embedder.proj.weight": weights["patch_embed.proj.weight"].flatten(1),
        "embedder.proj.bias": weights["patch_embed.proj.bias"],
        "position.table": weights["pos_embed"][0],
        "prefix.class_token": weights["cls_token"][0],
        "prefix.registers": weights["reg_token"][0],
        "head.proj.weight": weights["head.weight"],
        "head.proj.bias": weights["head.bias"],
        "final_norm.weight": weights["norm.weight"],
        "final_norm.bias": weights["norm.bias"],
    }
    names = {
        "norm1": "token_norm",
        "attn.qkv": "token_mixer.proj_in",
        "attn.proj": "token_mixer.proj_out",
        "norm2": "channel_norm",
        "mlp.fc1": "channel_mixer.proj_in",
        "mlp.fc2": "channel_mixer.proj_out",
    }
    for name, value in weights.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name):
            copied[f"blocks.{match[1]}.{names[match[2]]}.{match[3]}"] = value
    ours.load_state_dict(copied)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    assert_close(ours(images), theirs(images))
    with torch.no_grad():
        ours.position.table[3, ::2] += 1.0
    with pytest.raises(AssertionError):
        assert_close(ours(images), theirs(images))


def test_post_norm_block() -> None:
    """torch's encoder layer is post-norm by default."""
    block = tiny(
        block="post_norm",
        options={"token_mixer": {"bias": True}, "channel_mixer": {"bias": True, "activation": "relu"}},
    ).blocks[0]
    theirs = nn.TransformerEncoderLayer(16, 4, 64, 0.0, batch_first=True).double().train()
    pairs = {
        "self_attn.out_proj": block.token_mixer.proj_out,
        "linear1": block.channel_mixer.proj_in,
        "linear2": block.channel_mixer.proj_out,
        "norm1": block.token_norm,
        "norm2": block.channel_norm,
    }
    for name, ours in pairs.items():
        theirs.get_submodule(name).load_state_dict(ours.state_dict())
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(block.token_mixer.proj_in.weight)
        theirs.self_attn.in_proj_bias.copy_(block.token_mixer.proj_in.bias)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    assert_close(block(x, sequence(6)), theirs(x))


def test_parallel_block() -> None:
    """Its equation, with the mixers called separately."""
    block = tiny(block="parallel").blocks[0]
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    h = block.token_norm(x)
    assert_close(block(x, sequence(6)), x + block.token_mixer(h, sequence(6)) + block.channel_mixer(h))
