"""Presets that read a source against the models of transformers, with the same weights."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GitConfig, GitForCausalLM, T5Config, T5ForConditionalGeneration, ViltConfig, ViltModel

from blockyard.contracts import Inputs
from tests.components.reference.inputs import preset
from tests.components.reference.preset_weights import SINGLE, concatenate, differ, renamed
from tests.support.helpers import stir

ATTENTION = ("token_mixer.q", "token_mixer.k", "token_mixer.v")
DATES = ["data=translation", "data.context=6", "data.source_context=7", "tokenizer=byte"]


def drawn(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def t5_weights(theirs: T5ForConditionalGeneration, width: int, dim: int) -> dict[str, Tensor]:
    """T5's weights under our names; a factor that we have and T5 has not goes into the weights beside it."""
    state, copied = theirs.state_dict(), {"embedder.symbols.weight": theirs.shared.weight}
    for stack, to in (("encoder", "encoder."), ("decoder", "")):
        last = 2 if stack == "decoder" else 1
        names = {
            **{f"layer.0.SelfAttention.{each}": f"token_mixer.{each}" for each in "qkv"},
            "layer.0.SelfAttention.o": "token_mixer.proj_out",
            "layer.0.layer_norm": "token_norm",
            **{f"layer.1.EncDecAttention.{each}": f"cross_mixer.{each}" for each in "qkv"},
            "layer.1.EncDecAttention.o": "cross_mixer.proj_out",
            f"layer.{last}.DenseReluDense.wi": "channel_mixer.proj_in",
            f"layer.{last}.DenseReluDense.wo": "channel_mixer.proj_out",
            f"layer.{last}.layer_norm": "channel_norm",
            **({"layer.1.layer_norm": "cross_norm"} if stack == "decoder" else {}),
        }
        weights = renamed(state, names, rf"{stack}\.block\.(\d+)")
        weights = {k: v * width**0.5 if k.endswith("mixer.q.weight") else v for k, v in weights.items()}
        concatenate(weights, "token_mixer.proj_in", ATTENTION)
        concatenate(weights, "cross_mixer.proj_in", tuple(each.replace("token", "cross") for each in ATTENTION))
        copied |= {to + name: value for name, value in weights.items()}
        bias = state[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        copied[f"{to}position.table"] = bias.T[None]
        copied[f"{to}final_norm.weight"] = state[f"{stack}.final_layer_norm.weight"]
    copied["final_norm.weight"] = copied["final_norm.weight"] * dim**-0.5
    return copied | {"head.proj.weight": theirs.shared.weight}


def test_t5() -> None:
    model = preset("preset=t5", *DATES)
    config = T5Config(
        vocab_size=model.ctx.tokens.vocabulary,
        d_model=16,
        d_kv=4,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        tie_word_embeddings=True,
        decoder_start_token_id=0,
    )
    theirs = stir(T5ForConditionalGeneration(config)).double().eval()
    model.load_state_dict(t5_weights(theirs, 4, 16))
    inputs, source = drawn(200, 3, 6), drawn(200, 3, 7, seed=1)
    lengths = torch.tensor([7, 3, 5])
    mask = torch.arange(7) < lengths[:, None]
    expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=inputs).logits
    call = partial(model, Inputs(inputs, source=source, source_lengths=lengths))
    assert_close(call(), expected, **SINGLE)
    differ(model, call, expected)


BERT_LAYER = {
    **{f"attention.self.{each}": f"token_mixer.{each[0]}" for each in ("query", "key", "value")},
    "attention.output.dense": "token_mixer.proj_out",
    "attention.output.LayerNorm": "token_norm",
    "intermediate.dense": "channel_mixer.proj_in",
    "output.dense": "channel_mixer.proj_out",
    "output.LayerNorm": "channel_norm",
}


class Shown(nn.Module):
    """An image encoder that gives the vectors it was made with."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.vectors)


def canvas() -> Tensor:
    return torch.rand(2, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_git() -> None:
    """Behind the image encoder: our patches stand for its features, and one norm is before the blocks for both."""
    model = stir(preset("preset=git", "data=canvas_captions", "source_tokenizer.size=8", "tokenizer.max_words=30"))
    config = GitConfig(
        vision_config={"hidden_size": 16, "image_size": 24, "patch_size": 8, "num_hidden_layers": 1}
        | {"num_attention_heads": 4, "intermediate_size": 16},
        vocab_size=model.ctx.outputs,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=model.ctx.tokens.max_len,
        attn_implementation="eager",
    )
    theirs = stir(GitForCausalLM(config)).double().eval()
    norm = theirs.git.embeddings.LayerNorm
    with torch.no_grad():
        theirs.git.visual_projection.visual_projection[0].weight.copy_(torch.eye(16))
        theirs.git.visual_projection.visual_projection[0].bias.zero_()
    norm_of_image = theirs.git.visual_projection.visual_projection[1]
    norm_of_image.load_state_dict(norm.state_dict())
    norm_of_image.eps = norm.eps
    theirs.git.image_encoder = Shown(model.encode(canvas()).x.detach())
    copied = renamed(theirs.state_dict(), BERT_LAYER, r"git\.encoder\.layer\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ATTENTION)
    copied |= {
        "embedder.symbols.weight": theirs.git.embeddings.word_embeddings.weight,
        "position.table": theirs.git.embeddings.position_embeddings.weight,
        "blocks.0.first_norm.weight": norm.weight,
        "blocks.0.first_norm.bias": norm.bias,
        "head.proj.weight": theirs.output.weight,
        "head.proj.bias": theirs.output.bias,
    }
    own = {name: value for name, value in model.state_dict().items() if name.startswith("source.")}
    model.load_state_dict(copied | own)
    inputs = drawn(model.ctx.outputs, 2, 6)
    expected = theirs(input_ids=inputs, pixel_values=canvas(), use_cache=False).logits[:, -6:]
    call = partial(model, Inputs(inputs, source=canvas()))
    assert_close(call(), expected, **SINGLE)
    differ(model, call, expected)
    model.ties = False
    with pytest.raises(AssertionError):  # patches that see the patches before them only
        assert_close(call(), expected, **SINGLE)


VILT_LAYER = {
    "layernorm_before": "token_norm",
    **{f"attention.attention.{each}": f"token_mixer.{each[0]}" for each in ("query", "key", "value")},
    "attention.output.dense": "token_mixer.proj_out",
    "layernorm_after": "channel_norm",
    "intermediate.dense": "channel_mixer.proj_in",
    "output.dense": "channel_mixer.proj_out",
}


def test_vilt() -> None:
    """Its words are normalised before the blocks: here by a table of normal vectors, without text positions."""
    model = preset("preset=vilt", "data=canvas_questions", "source_tokenizer.size=8", "tokenizer.max_words=30")
    vocabulary = model.embedder.symbols.weight.shape[0]
    config = ViltConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=24,
        patch_size=8,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-12,
        max_image_length=-1,
    )
    theirs = stir(ViltModel(config)).double().eval()
    text, image = theirs.embeddings.text_embeddings, theirs.embeddings
    with torch.no_grad():
        table = text.word_embeddings.weight
        table.sub_(table.mean(1, keepdim=True)).div_(table.var(1, unbiased=False, keepdim=True).sqrt())
        for each in (text.position_embeddings.weight, text.token_type_embeddings.weight, text.LayerNorm.bias):
            each.zero_()
        text.LayerNorm.weight.fill_(1)
    kinds = image.token_type_embeddings.weight  # of text and of image
    copied = renamed(theirs.state_dict(), VILT_LAYER, r"encoder\.layer\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ATTENTION)
    positions = image.position_embeddings[0]  # (1 + 9, D)
    copied |= {
        "embedder.symbols.weight": table,
        "position.table": torch.zeros_like(model.position.table),
        "source.embedder.proj.weight": image.patch_embeddings.projection.weight.flatten(1),
        "source.embedder.proj.bias": image.patch_embeddings.projection.bias,
        "source.position.table": positions[1:],
        "types.vectors": kinds.flip(0),
        "prefix.class_token": table[3][None] + kinds[0],
        "prefix.registers": image.cls_token[0] + positions[:1] + kinds[1],
        "final_norm.weight": theirs.layernorm.weight,
        "final_norm.bias": theirs.layernorm.bias,
    }
    state = model.state_dict()
    head = {name: value for name, value in state.items() if name.startswith("head.")}
    model.load_state_dict({name: value.reshape(state[name].shape) for name, value in (copied | head).items()})
    inputs = drawn(vocabulary, 2, 5)
    first = torch.full((2, 1), 3)
    called = {"input_ids": torch.cat([first, inputs], 1), "pixel_values": canvas()}
    expected = theirs(
        **called, pixel_mask=torch.ones(2, 24, 24, dtype=torch.long)
    ).last_hidden_state  # text, then image

    def ours() -> Tensor:
        x = model.steps(Inputs(inputs, source=canvas()))["normed"]  # class token, register, 9 patches, words
        return torch.cat([x[:, :1], x[:, 11:]], 1)

    assert_close(ours(), expected[:, :6], **SINGLE)
    differ(model, ours, expected[:, :6])
