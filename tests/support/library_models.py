"""Small models of transformers and timm with random weights, and how they and ours are called with the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from blockyard.tokenizer.log_mel import hann, log_mel, mel_filters

NO_END: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
BERT: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2}


LLAMA: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    **NO_END,
}
MODERNBERT = {
    "vocab_size": 257,
    "max_position_embeddings": 6,
    "local_attention": 4,
    **BERT,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")),
}
EXPERTS: dict[str, Any] = {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LATENT: dict[str, Any] = {
    **{key: value for key, value in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")},
    "num_key_value_heads": 4,
    "moe_intermediate_size": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
    "qk_nope_head_dim": 6,
}
HYBRID: dict[str, Any] = {
    **EXPERTS,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "partial_rotary_factor": 0.5,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 6,
}
BESIDE: dict[str, Any] = {
    **LLAMA,
    "head_dim": 6,
    "mamba_d_ssm": 24,
    "mamba_n_heads": 3,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 6,
}
MULTIPLIERS: dict[str, Any] = {
    "lm_head_multiplier": 0.6,
    "embedding_multiplier": 1.5,
    "mlp_multipliers": [0.7, 1.3],
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.75,
    "ssm_multipliers": [0.9, 1.4, 0.5, 1.6, 0.7],
}
MAMBA: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 16,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 6,
    "n_groups": 2,
    "num_hidden_layers": 2,
    "expand": 2,
    "chunk_size": 4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def rope(theta: float) -> dict[str, Any]:
    """Plain rotary positions of a base."""
    return {"rope_type": "default", "rope_theta": theta}


@dataclass(frozen=True)
class Case:
    """A model of transformers.

    config: of its class `name`; overrides: of the run that an import becomes
    inputs: what both models get; call: theirs on them
    """

    name: str
    config: Callable[[], Any]
    overrides: tuple[str, ...]
    inputs: Callable[[], dict[str, Tensor]]
    call: Callable[[nn.Module, dict[str, Tensor]], Tensor] = lambda model, batch: model(batch["inputs"]).logits


def token_ids(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Random token ids below `high`."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def text(high: int = 256) -> dict[str, Tensor]:
    """Two sequences of six token ids."""
    return {"inputs": token_ids(high, 2, 6)}


def levels() -> dict[str, Tensor]:
    """Gray levels of two images behind a start token, the last id of the vocabulary."""
    inputs = token_ids(17, 2, 64)
    inputs[:, 0] = 17
    return {"inputs": inputs}


def noise(*shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def as_double(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mamba-2's predictions, which it gives in float32."""
    return model(batch["inputs"]).logits.double()


def from_source(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """T5's predictions."""
    mask = torch.arange(batch["source"].shape[1]) < batch["source_lengths"][:, None]
    return model(input_ids=batch["source"], attention_mask=mask.long(), decoder_input_ids=batch["inputs"]).logits


def classified(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """BERT's classes; its [CLS] is token id 3, whose vector is that of our class token."""
    ids = torch.cat([torch.full((2, 1), model.config.cls_token_id), batch["inputs"]], 1)
    return model(ids).logits


def spoken(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """wav2vec's predictions with the blank, which is its padding, behind all labels."""
    logits, blank = model(batch["inputs"]).logits, model.config.pad_token_id
    return torch.cat([logits[..., :blank], logits[..., blank + 1 :], logits[..., blank : blank + 1]], -1)


def heard(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Whisper's predictions, from the spectrogram that `test_features_are_those_of_whisper` compares."""
    sound = batch["source"]
    features = log_mel(sound, hann(WINDOW).to(sound), HOP, mel_filters(WINDOW, 40, 8000).to(sound))
    return model(input_features=features, decoder_input_ids=batch["inputs"]).logits


WINDOW, HOP = 200, 80  # samples, at 8 kHz
CODE = ("data=code", "data.context=6", "tokenizer=byte")
DATES = ("data=translation", "data.context=6", "data.source_context=7", "tokenizer=byte")
SERIES = ("data=co2", "data.history=40", "data.horizon=12")

CASES: dict[str, Case] = {
    "gpt2": Case(
        "GPT2LMHeadModel",
        lambda: hf.GPT2Config(
            vocab_size=256, n_positions=6, n_embd=16, n_layer=2, n_head=4, n_inner=40, bos_token_id=1, eos_token_id=2
        ),
        CODE,
        text,
    ),
    "llama": Case(
        "LlamaForCausalLM",
        lambda: hf.LlamaConfig(
            vocab_size=256,
            hidden_size=16,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            attention_bias=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            **NO_END,
        ),
        CODE,
        text,
    ),
    "llama_3.1": Case(
        "LlamaForCausalLM",
        lambda: hf.LlamaConfig(
            **LLAMA | {"head_dim": 12},
            rope_parameters={
                "rope_type": "llama3",
                "factor": 4.0,
                "rope_theta": 5.0,
                "original_max_position_embeddings": 64,
                "low_freq_factor": 2.0,
                "high_freq_factor": 6.0,
            },
        ),
        CODE,
        text,
    ),
    "llama_yarn": Case(
        "LlamaForCausalLM",
        lambda: hf.LlamaConfig(
            **LLAMA | {"head_dim": 12},
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 64,
            },
        ),
        CODE,
        text,
    ),
    "mistral": Case(
        "MistralForCausalLM",
        lambda: hf.MistralConfig(**LLAMA, sliding_window=3, rope_parameters=rope(500.0)),
        CODE,
        text,
    ),
    "mistral_everywhere": Case(
        "MistralForCausalLM",
        lambda: hf.MistralConfig(**LLAMA | {"head_dim": 6}, sliding_window=None),
        CODE,
        text,
    ),
    "qwen3": Case(
        "Qwen3ForCausalLM", lambda: hf.Qwen3Config(**LLAMA | {"head_dim": 6}, attention_bias=True), CODE, text
    ),
    "qwen3_windows": Case(
        "Qwen3ForCausalLM",
        lambda: hf.Qwen3Config(**LLAMA, use_sliding_window=True, sliding_window=3, max_window_layers=1),
        CODE,
        text,
    ),
    "smollm3": Case(
        "SmolLM3ForCausalLM",
        lambda: hf.SmolLM3Config(**LLAMA | {"num_hidden_layers": 5}, rope_parameters=rope(500.0)),
        CODE,
        text,
    ),
    "smollm3_windows": Case(
        "SmolLM3ForCausalLM",
        lambda: hf.SmolLM3Config(
            **LLAMA | {"num_hidden_layers": 4},
            use_sliding_window=True,
            sliding_window=3,
            no_rope_layers=[0, 1, 1, 0],
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        ),
        CODE,
        text,
    ),
    "mixtral": Case("MixtralForCausalLM", lambda: hf.MixtralConfig(**LLAMA, num_local_experts=3), CODE, text),
    "qwen3_moe": Case(
        "Qwen3MoeForCausalLM",
        lambda: hf.Qwen3MoeConfig(**EXPERTS, norm_topk_prob=True),
        CODE,
        text,
    ),
    "qwen3_moe_dense": Case(
        "Qwen3MoeForCausalLM",
        lambda: hf.Qwen3MoeConfig(**EXPERTS | {"num_hidden_layers": 3}, mlp_only_layers=[0]),
        CODE,
        text,
    ),
    "gpt_oss": Case(  # limits that gates and values reach
        "GptOssForCausalLM",
        lambda: hf.GptOssConfig(
            **LLAMA | {"num_hidden_layers": 3, "head_dim": 12, "intermediate_size": 24},
            num_local_experts=5,
            num_experts_per_tok=3,
            sliding_window=3,
            swiglu_limit=0.5,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        ),
        CODE,
        text,
    ),
    "deepseek_v3": Case(
        "DeepseekV3ForCausalLM",
        lambda: hf.DeepseekV3Config(**LATENT, q_lora_rank=10, first_k_dense_replace=1),
        CODE,
        text,
    ),
    "deepseek_v3_yarn": Case(
        "DeepseekV3ForCausalLM",
        lambda: hf.DeepseekV3Config(
            **LATENT | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
            q_lora_rank=None,
            first_k_dense_replace=0,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
            },
        ),
        CODE,
        text,
    ),
    "qwen3_next": Case(  # two shared experts of ours; half of the channels of a head rotate
        "Qwen3NextForCausalLM",
        lambda: hf.Qwen3NextConfig(**HYBRID, shared_expert_intermediate_size=16),
        CODE,
        text,
    ),
    "qwen3_next_dense": Case(
        "Qwen3NextForCausalLM",
        lambda: hf.Qwen3NextConfig(
            **HYBRID | {"attention_bias": True},
            shared_expert_intermediate_size=8,
            layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
            mlp_only_layers=[1, 3],
            norm_topk_prob=False,
        ),
        CODE,
        text,
    ),
    "olmo2": Case(
        "Olmo2ForCausalLM",
        lambda: hf.Olmo2Config(**{k: v for k, v in LLAMA.items() if k != "head_dim"}, rms_norm_eps=1e-6),
        CODE,
        text,
    ),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        lambda: hf.Gemma2Config(
            **LLAMA | {"num_hidden_layers": 3, "head_dim": 6},
            sliding_window=3,
            query_pre_attn_scalar=10,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        CODE,
        text,
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        lambda: hf.Gemma3TextConfig(
            **LLAMA | {"num_hidden_layers": 4, "head_dim": 6},
            sliding_window=3,
            query_pre_attn_scalar=10,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        ),
        CODE,
        text,
    ),
    "gemma3_scaled": Case(  # all but the layers with a window
        "Gemma3ForCausalLM",
        lambda: hf.Gemma3TextConfig(
            **LLAMA | {"num_hidden_layers": 4, "head_dim": 12},
            sliding_window=3,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "rope_theta": 100.0,
                    "original_max_position_embeddings": 64,
                },
                "sliding_attention": rope(1e4),
            },
        ),
        CODE,
        text,
    ),
    "falcon_h1": Case(
        "FalconH1ForCausalLM",
        lambda: hf.FalconH1Config(**BESIDE, **MULTIPLIERS, mamba_rms_norm=True, mamba_norm_before_gate=False),
        CODE,
        text,
    ),
    "falcon_h1_tied": Case(
        "FalconH1ForCausalLM",
        lambda: hf.FalconH1Config(
            **BESIDE | {"tie_word_embeddings": True}, embedding_multiplier=3.0, lm_head_multiplier=0.5
        ),
        CODE,
        text,
    ),
    "mamba2": Case("Mamba2ForCausalLM", lambda: hf.Mamba2Config(**MAMBA), CODE, text, as_double),
    "mamba2_biases": Case(
        "Mamba2ForCausalLM",
        lambda: hf.Mamba2Config(**MAMBA | {"n_groups": 1, "use_bias": True, "tie_word_embeddings": True}),
        CODE,
        text,
        as_double,
    ),
    "palm": Case(  # heads of 6 channels: with 4, pairs of neighbours and halves are the same swap
        "CohereForCausalLM",
        lambda: hf.CohereConfig(
            vocab_size=256,
            hidden_size=24,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            **NO_END,
        ),
        CODE,
        text,
    ),
    "bert": Case(
        "BertForMaskedLM",
        lambda: hf.BertConfig(vocab_size=257, num_attention_heads=4, max_position_embeddings=6, **BERT),
        CODE,
        text,
    ),
    "bert_classifies": Case(
        "BertForSequenceClassification",
        lambda: hf.BertConfig(
            vocab_size=256, num_attention_heads=4, max_position_embeddings=7, num_labels=10, cls_token_id=3, **BERT
        ),
        ("data=code_topics", "data.context=6", "tokenizer=byte"),
        text,
        classified,
    ),
    "modernbert": Case(
        "ModernBertForMaskedLM",
        lambda: hf.ModernBertConfig(**MODERNBERT),
        CODE,
        text,
    ),
    "modernbert_scaled": Case(
        "ModernBertForMaskedLM",
        lambda: hf.ModernBertConfig(
            **MODERNBERT,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 16e4},
                "sliding_attention": rope(1e4),
            },
        ),
        CODE,
        text,
    ),
    "fnet": Case(
        "FNetForMaskedLM", lambda: hf.FNetConfig(vocab_size=257, max_position_embeddings=6, **BERT), CODE, text
    ),
    "imagegpt": Case(
        "ImageGPTForCausalImageModeling",
        lambda: hf.ImageGPTConfig(vocab_size=18, n_positions=64, n_embd=16, n_layer=2, n_head=4),
        ("data=digits",),
        levels,
    ),
    "t5": Case(
        "T5ForConditionalGeneration",
        lambda: hf.T5Config(
            vocab_size=258, d_model=16, d_kv=6, d_ff=40, num_layers=3, num_decoder_layers=2, num_heads=4
        ),
        DATES,
        lambda: {**text(), "source": token_ids(256, 2, 7, seed=1), "source_lengths": torch.tensor([7, 3])},
        from_source,
    ),
    "patchtst": Case(
        "PatchTSTForPrediction",
        lambda: hf.PatchTSTConfig(
            context_length=40,
            prediction_length=12,
            patch_length=8,
            patch_stride=4,
            d_model=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            pre_norm=False,
            pooling_type=None,
        ),
        SERIES,
        lambda: {"inputs": noise(2, 40, 1).cumsum(1) + 5},
        lambda model, batch: model(past_values=batch["inputs"]).prediction_outputs.squeeze(2),
    ),
    "whisper": Case(
        "WhisperForConditionalGeneration",
        lambda: hf.WhisperConfig(
            vocab_size=258,
            num_mel_bins=40,
            d_model=16,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=138,
            max_target_positions=9,
            **{"decoder_start_token_id": 1, "begin_suppress_tokens": None, **NO_END},
        ),
        ("data=dial_tones", "tokenizer=byte"),
        lambda: {**text(), "source": noise(2, WINDOW + 275 * HOP) * 0.1},  # 276 windows, two for each position
        heard,
    ),
    "wav2vec2": Case(
        "Wav2Vec2ForCTC",
        lambda: hf.Wav2Vec2Config(
            vocab_size=257,
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
        ),
        ("data=dial_tones", "tokenizer=byte", "source_tokenizer.standardize=false"),
        lambda: {"inputs": noise(2, 600) * 0.1},
        spoken,
    ),
}
