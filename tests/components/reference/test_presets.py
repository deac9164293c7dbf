"""Each preset of text against a library's model with the same weights, in float64: transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    CohereConfig,
    CohereForCausalLM,
    FNetConfig,
    FNetForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from blockyard.contracts import Inputs
from tests.components.reference.inputs import preset
from tests.components.reference.preset_weights import SINGLE, TEXT, concatenate, differ, renamed, token_ids
from tests.support.helpers import stir

NO_END = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def test_gpt2() -> None:
    model = preset("preset=gpt2", *TEXT)
    config = GPT2Config(vocab_size=model.ctx.tokens.vocabulary, n_positions=6, n_embd=16, n_layer=2, n_head=4)
    theirs = stir(GPT2LMHeadModel(config)).double().eval()
    names = {
        "transformer.wte": "embedder.symbols",
        "lm_head": "head.proj",
        "ln_1": "token_norm",
        "attn.c_attn": "token_mixer.proj_in",
        "attn.c_proj": "token_mixer.proj_out",
        "ln_2": "channel_norm",
        "mlp.c_fc": "channel_mixer.proj_in",
        "mlp.c_proj": "channel_mixer.proj_out",
        "transformer.ln_f": "final_norm",
    }
    copied = renamed(theirs.state_dict(), names, r"transformer\.h\.(\d+)")
    # GPT-2 stores the matrices of its blocks transposed.
    copied = {k: v.T if k.startswith("blocks") and v.ndim == 2 else v for k, v in copied.items()}
    model.load_state_dict(copied | {"position.table": theirs.transformer.wpe.weight})
    inputs = token_ids(model)
    expected = theirs(inputs).logits
    assert_close(model(inputs), expected)
    differ(model, partial(model, inputs), expected)


LLAMA = {
    "model.embed_tokens": "embedder.symbols",
    "model.norm": "final_norm",
    "lm_head": "head.proj",
    "input_layernorm": "token_norm",
    "post_attention_layernorm": "channel_norm",
    "self_attn.q_proj": "token_mixer.q",
    "self_attn.k_proj": "token_mixer.k",
    "self_attn.v_proj": "token_mixer.v",
    "self_attn.o_proj": "token_mixer.proj_out",
    "mlp.gate_proj": "channel_mixer.gate",
    "mlp.up_proj": "channel_mixer.up",
    "mlp.down_proj": "channel_mixer.proj_out",
}


def same_as_llama(model: nn.Module, theirs: nn.Module) -> None:
    """Asserts that a model with the weights of one of Llama's shape gives the same scores."""
    copied = renamed(theirs.state_dict(), LLAMA, r"model\.layers\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
    concatenate(copied, "channel_mixer.proj_in", ("channel_mixer.gate", "channel_mixer.up"))
    model.load_state_dict(copied)
    inputs = token_ids(model)
    expected = theirs(inputs).logits
    assert_close(model(inputs), expected, **SINGLE)
    differ(model, partial(model, inputs), expected)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_llama(kv_heads: int) -> None:
    model = preset("preset=llama", *TEXT, f"token_mixer.num_kv_heads={kv_heads}")
    config = LlamaConfig(
        vocab_size=model.ctx.tokens.vocabulary,
        hidden_size=16,
        intermediate_size=model.blocks[0].channel_mixer.proj_out.in_features,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        **NO_END,
    )
    theirs = stir(LlamaForCausalLM(config)).double().eval()
    same_as_llama(model, theirs)


def test_layers_are_smollm3s() -> None:
    """SmolLM3 is Llama with layers that rotate within a window, and layers without positions over all tokens."""
    near = "layers.kinds.near=[token_mixer=windowed_attention,token_mixer.window=3,token_mixer.num_kv_heads=2]"
    kinds = (near, "layers.pattern=[near,far]", "layers.kinds.far=[position=none]")
    model = preset("preset=llama", *TEXT, "token_mixer.num_kv_heads=2", "position.base=500", *kinds)
    config = SmolLM3Config(
        vocab_size=model.ctx.tokens.vocabulary,
        hidden_size=16,
        intermediate_size=model.blocks[0].channel_mixer.proj_out.in_features,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        no_rope_layers=[1, 0],
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
        **NO_END,
    )
    theirs = stir(SmolLM3ForCausalLM(config)).double().eval()
    same_as_llama(model, theirs)


def test_palm_is_coheres_block() -> None:
    """Command-R has PaLM's block: parallel, multi-query, no biases; it rotates neighbouring channels."""
    model = preset("preset=palm", *TEXT)
    config = CohereConfig(
        vocab_size=model.ctx.tokens.vocabulary,
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        logit_scale=1.0,
        layer_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **NO_END,
    )
    theirs = stir(CohereForCausalLM(config)).double().eval()
    copied = renamed(theirs.state_dict(), LLAMA, r"model\.layers\.(\d+)")
    for name in [name for name in copied if name.endswith(("token_mixer.q.weight", "token_mixer.k.weight"))]:
        copied[name] = copied[name].unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)
    concatenate(copied, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
    concatenate(copied, "channel_mixer.proj_in", ("channel_mixer.gate", "channel_mixer.up"))
    model.load_state_dict(copied)
    inputs = token_ids(model)
    expected = theirs(inputs).logits
    assert_close(model(inputs), expected, **SINGLE)
    differ(model, partial(model, inputs), expected)


MASKED_HEAD = {
    "cls.predictions.transform.dense": "head.hidden.proj",
    "cls.predictions.transform.LayerNorm": "head.hidden.norm",
}


def folded(weights: dict[str, Tensor], theirs: Any, bias: Tensor) -> dict[str, Tensor]:
    """BERT's three tables as ours: token types are folded into the token embedding, which the head shares."""
    table = theirs.embeddings.word_embeddings.weight + theirs.embeddings.token_type_embeddings.weight[0]
    position = theirs.embeddings.position_embeddings.weight
    tables = {"embedder.symbols.weight": table, "head.proj.weight": table, "position.table": position}
    return weights | tables | {"head.proj.bias": bias}


BERT = {
    "bert.embeddings.LayerNorm": "blocks.0.first_norm",
    "attention.self.query": "token_mixer.q",
    "attention.self.key": "token_mixer.k",
    "attention.self.value": "token_mixer.v",
    "attention.output.dense": "token_mixer.proj_out",
    "attention.output.LayerNorm": "token_norm",
    "intermediate.dense": "channel_mixer.proj_in",
    "output.dense": "channel_mixer.proj_out",
    "output.LayerNorm": "channel_norm",
}


def test_bert() -> None:
    """Predictions are equal up to a constant: what the token type in our table adds to every logit."""
    model = preset("preset=bert", *TEXT)
    size = {"vocab_size": model.ctx.tokens.vocabulary, "hidden_size": 16, "intermediate_size": 64}
    config = BertConfig(**size, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=6)
    theirs = stir(BertForMaskedLM(config)).double().eval()
    copied = renamed(theirs.state_dict(), MASKED_HEAD | BERT, r"bert\.encoder\.layer\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
    model.load_state_dict(folded(copied, theirs.bert, theirs.cls.predictions.bias))
    masked_like(model, theirs)


@pytest.mark.parametrize("data", ["code_topics", "table"])
def test_bert_classifies(data: str, tmp_path: Path) -> None:
    """From the class token through a layer with tanh, as their pooler; their [CLS] is the last token id."""
    (tmp_path / "x.csv").write_text("text,label\na,x\nb,y\n")
    where = [f"data.path={tmp_path / 'x.csv'}"] if data == "table" else []
    head = ["head=class_token", "head.hidden=tanh", "objective=classify", "model.prefix.class_token=true"]
    model = preset("preset=bert", f"data={data}", *where, "data.context=6", "tokenizer=byte", *head)
    vocabulary = model.ctx.tokens.vocabulary
    size = {"vocab_size": vocabulary + 1, "hidden_size": 16, "intermediate_size": 64, "num_labels": model.ctx.outputs}
    config = BertConfig(**size, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=7)
    theirs = stir(BertForSequenceClassification(config)).double().eval()
    names = BERT | {"bert.pooler.dense": "head.hidden", "classifier": "head.proj"}
    copied = renamed(theirs.state_dict(), names, r"bert\.encoder\.layer\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
    embeddings = theirs.bert.embeddings
    embedding = embeddings.word_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    positions = embeddings.position_embeddings.weight
    copied |= {"embedder.symbols.weight": embedding[:-1], "position.table": positions[1:]}
    model.load_state_dict(copied | {"prefix.class_token": embedding[-1:] + positions[:1]})
    inputs = token_ids(model)
    classed = torch.cat([torch.full((len(inputs), 1), vocabulary), inputs], 1)
    expected = theirs(classed).logits
    assert_close(model(inputs), expected)
    differ(model, partial(model, inputs), expected)
    if data == "table":  # padded
        lengths = torch.tensor([6, 3, 1])
        visible = torch.arange(7) <= lengths[:, None]
        with torch.no_grad():
            model.blocks[1].token_norm.weight[::2] -= 0.5  # what `differ` has changed
        assert_close(model(Inputs(inputs, lengths=lengths)), theirs(classed, attention_mask=visible.long()).logits)


def masked_like(model: nn.Module, theirs: nn.Module) -> None:
    """Compares hidden states and log-likelihoods; every weight affects one of them."""
    inputs = token_ids(model)
    outputs = theirs(inputs, output_hidden_states=True)
    assert_close(model.steps(inputs)["normed"], outputs.hidden_states[-1])
    expected = outputs.logits.log_softmax(-1)
    assert_close(model(inputs).log_softmax(-1), expected)
    differ(model, lambda: model(inputs).log_softmax(-1), expected)


def test_fnet() -> None:
    model = preset("preset=fnet", *TEXT)
    size = {"vocab_size": model.ctx.tokens.vocabulary, "hidden_size": 16, "intermediate_size": 64}
    theirs = stir(FNetForMaskedLM(FNetConfig(**size, num_hidden_layers=2, max_position_embeddings=6))).double().eval()
    with torch.no_grad():  # its further projection, which the paper does not have
        theirs.fnet.embeddings.projection.weight.copy_(torch.eye(16))
        theirs.fnet.embeddings.projection.bias.zero_()
    names = MASKED_HEAD | {
        "fnet.embeddings.LayerNorm": "blocks.0.first_norm",
        "fourier.output.LayerNorm": "token_norm",
        "intermediate.dense": "channel_mixer.proj_in",
        "output.dense": "channel_mixer.proj_out",
        "output.LayerNorm": "channel_norm",
    }
    copied = renamed(theirs.state_dict(), names, r"fnet\.encoder\.layer\.(\d+)")
    model.load_state_dict(folded(copied, theirs.fnet, theirs.cls.predictions.bias))
    masked_like(model, theirs)
