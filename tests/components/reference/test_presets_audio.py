"""The presets of sound as a whole against transformers, with copied weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, WhisperConfig, WhisperForConditionalGeneration

from blockyard.contracts import Inputs
from tests.components.reference.inputs import SIZES, preset
from tests.components.reference.preset_weights import concatenate, renamed
from tests.support.helpers import stir
from tests.support.tolerances import FLOAT32_STEPS

DATA = ["data=dial_tones"]


def sounds(samples: int) -> Tensor:
    return torch.randn(2, samples, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.1


BLOCK = {
    "attention.q_proj": "token_mixer.q",
    "attention.k_proj": "token_mixer.k",
    "attention.v_proj": "token_mixer.v",
    "attention.out_proj": "token_mixer.proj_out",
    "layer_norm": "token_norm",
    "feed_forward.intermediate_dense": "channel_mixer.proj_in",
    "feed_forward.output_dense": "channel_mixer.proj_out",
    "final_layer_norm": "channel_norm",
    "wav2vec2.encoder.layer_norm": "blocks.0.first_norm",
    "wav2vec2.feature_projection.layer_norm": "embedder.final_norm",
    "wav2vec2.feature_projection.projection": "embedder.proj",
    "wav2vec2.feature_extractor.conv_layers.0.layer_norm": "embedder.norms.0",
    "lm_head": "head.proj",
}


def test_wav2vec2() -> None:
    stem = ["source_tokenizer.kernels=[10,3,2]", "source_tokenizer.strides=[5,2,2]", "source_tokenizer.channels=8"]
    place = ["position.kernel=8", "position.groups=4", "source_tokenizer.standardize=false"]
    model = preset("preset=wav2vec2", *DATA, *stem, *place)
    config = Wav2Vec2Config(
        vocab_size=model.ctx.outputs,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(8, 8, 8),
        conv_kernel=(10, 3, 2),
        conv_stride=(5, 2, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
    )
    theirs = stir(Wav2Vec2ForCTC(config)).double().eval()
    names = dict(BLOCK)
    names |= {f"wav2vec2.feature_extractor.conv_layers.{n}.conv": f"embedder.convs.{n}" for n in range(3)}
    copied = renamed(theirs.state_dict(), names, r"wav2vec2\.encoder\.layers\.(\d+)")
    concatenate(copied, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
    place_of = theirs.wav2vec2.encoder.pos_conv_embed.conv
    model.load_state_dict(copied | {"position.weight": place_of.weight, "position.constant": place_of.bias})
    x = sounds(600)
    expected = theirs(x).logits
    assert_close(model(x), expected)
    with torch.no_grad():
        model.blocks[1].channel_norm.weight[::2] += 0.5
    assert not torch.allclose(model(x), expected)


ENCODER = {
    "self_attn.q_proj": "token_mixer.q",
    "self_attn.k_proj": "token_mixer.k",
    "self_attn.v_proj": "token_mixer.v",
    "self_attn.out_proj": "token_mixer.proj_out",
    "self_attn_layer_norm": "token_norm",
    "encoder_attn.q_proj": "cross_mixer.q",
    "encoder_attn.k_proj": "cross_mixer.k",
    "encoder_attn.v_proj": "cross_mixer.v",
    "encoder_attn.out_proj": "cross_mixer.proj_out",
    "encoder_attn_layer_norm": "cross_norm",
    "fc1": "channel_mixer.proj_in",
    "fc2": "channel_mixer.proj_out",
    "final_layer_norm": "channel_norm",
}


def test_whisper() -> None:
    half = 8  # of 16 channels: their frequencies end at 1 / 10000, ours would one step later
    base = 10000 ** (half / (half - 1))
    model = preset("preset=whisper", *DATA, f"source_position.base={base}", "source_position.scale=1", sizes=SIZES)
    frames = 60
    config = WhisperConfig(
        vocab_size=model.ctx.tokens.vocabulary,
        num_mel_bins=40,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=frames // 2,
        max_target_positions=model.ctx.tokens.max_len,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
    theirs = WhisperForConditionalGeneration(config)
    waves = theirs.model.encoder.embed_positions.weight.clone()
    theirs = stir(theirs).double().eval()
    with torch.no_grad():
        theirs.model.encoder.embed_positions.weight.copy_(waves)
    state = theirs.state_dict()
    for name in [name for name in state if name.endswith("k_proj.weight")]:  # they have no bias of keys
        state[name.replace("weight", "bias")] = torch.zeros(16, dtype=torch.float64)
    copied: dict[str, Tensor] = {}
    for side, to in (("encoder", "encoder."), ("decoder", "")):
        own = renamed(state, ENCODER | {f"model.{side}.layer_norm": "final_norm"}, rf"model\.{side}\.layers\.(\d+)")
        concatenate(own, "token_mixer.proj_in", ("token_mixer.q", "token_mixer.k", "token_mixer.v"))
        copied |= {f"{to}{name}": value for name, value in own.items()}
    concatenate(copied, "cross_mixer.proj_in", ("cross_mixer.q", "cross_mixer.k", "cross_mixer.v"))
    for number in (1, 2):
        for kind in ("weight", "bias"):
            copied[f"encoder.embedder.conv{number}.{kind}"] = state[f"model.encoder.conv{number}.{kind}"]
    table = state["model.decoder.embed_tokens.weight"]
    copied |= {"embedder.symbols.weight": table, "head.proj.weight": table}
    copied["position.table"] = state["model.decoder.embed_positions.weight"]
    model.load_state_dict(copied)
    features = torch.randn(2, 40, frames, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    token_ids = torch.randint(model.ctx.tokens.vocabulary, (2, 5), generator=torch.Generator().manual_seed(1))
    expected = theirs(input_features=features, decoder_input_ids=token_ids).logits
    ours = written_like(model, features, token_ids)
    assert_close(ours, expected, **FLOAT32_STEPS)
    with torch.no_grad():
        model.encoder.blocks[1].channel_norm.weight[::2] += 0.5
    assert not torch.allclose(written_like(model, features, token_ids), expected)


def written_like(model: torch.nn.Module, features: Tensor, token_ids: Tensor) -> Tensor:
    """The model from its spectrogram on, which `test_features_are_those_of_whisper` compares."""
    from blockyard.tokenizer import log_mel

    whole = log_mel.log_mel
    log_mel.log_mel = lambda *arguments: features
    try:
        return model(Inputs(token_ids, source=torch.zeros(2, 200 + 59 * 80, dtype=torch.float64)))
    finally:
        log_mel.log_mel = whole
