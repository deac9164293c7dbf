"""ModernBERT: an encoder with rotary positions, GEGLU, a norm of the embeddings, and windows in two of three layers.

Its first block has no norm in front of attention: the embeddings are normalised already.

Reference: transformers ModernBertForMaskedLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import ACTIVATIONS, DecoderSizes, LayerFacts, shared, written_types
from blockyard.weights.convert.rotary import FULL, SLIDING, rotations, window_base, written_rotations
from blockyard.weights.convert.rules import modules, same, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

EVERY = 3  # layers of which one has no window, where a config does not name them
MODULES = {
    "embed_norm": "model.embeddings.norm",
    "final_norm": "model.final_norm",
    "head.hidden.proj": "head.dense",
    "head.hidden.norm": "head.norm",
    "blocks.{n}.token_norm": "model.layers.{n}.attn_norm",
    "blocks.{n}.token_mixer.proj_in": "model.layers.{n}.attn.Wqkv",
    "blocks.{n}.token_mixer.proj_out": "model.layers.{n}.attn.Wo",
    "blocks.{n}.channel_norm": "model.layers.{n}.mlp_norm",
    "blocks.{n}.channel_mixer.proj_in": "model.layers.{n}.mlp.Wi",
    "blocks.{n}.channel_mixer.proj_out": "model.layers.{n}.mlp.Wo",
}
TABLE = "model.embeddings.tok_embeddings.weight"


def read(settings: LibrarySettings) -> Foreign:
    """ModernBERT's config as overrides."""
    of_types = rotations(settings, ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0))
    sizes = DecoderSizes(settings, activation=("hidden_activation", "gelu"), rope=of_types[FULL])
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    every = settings.integer("global_attn_every_n_layers", EVERY, is_dimension=False)
    types = sizes.layer_types([SLIDING if layer % every else FULL for layer in range(sizes.depth)])
    side = settings.integer("local_attention", 128, least=2, is_dimension=False) // 2
    base = window_base(settings, of_types[SLIDING])
    layers = [
        LayerFacts(window=side + 1, base=base, normed=n > 0) if each == SLIDING else LayerFacts(normed=n > 0)
        for n, each in enumerate(types)
    ]
    biases = [settings.flag(key, False) for key in ("norm_bias", "classifier_bias")]
    if biases[0] != biases[1]:
        settings.problems.append(f"norm_bias={biases[0]} and classifier_bias={biases[1]}: expected equal values")
    for key in ("deterministic_flash_attn", "reference_compile", "sparse_prediction", "sparse_pred_ignore_index"):
        settings.take(key, None)  # how it is computed
    for key in ("classifier_pooling", "initializer_cutoff_factor"):
        settings.take(key, None)  # of other heads and of initial weights
    settings.must("tie_word_embeddings", True)
    settings.must("rope_scaling", None)
    settings.must("position_embedding_type", "absolute")  # of the released files, which the class does not read
    settings.take("layer_norm_eps", None)  # beside `norm_eps` in the released files
    eps = settings.number("norm_eps", 1e-5)
    overrides = [
        *sizes.gated(),
        f"channel_mixer.bias={boolean(settings.flag('mlp_bias', False))}",
        *(f"norm.eps={eps!r}", f"norm.bias={boolean(biases[0])}"),
        f"head.hidden={settings.one_of('classifier_activation', ACTIVATIONS, 'gelu')}",
        *(f"head.hidden_eps={eps!r}", f"head.hidden_bias={boolean(biases[0])}"),
        f"head.bias={boolean(settings.flag('decoder_bias', True))}",
    ]
    rules = [
        *modules(MODULES),
        *(*table_and_head(TABLE, "decoder.weight", is_tied=True), same("head.proj.bias", "decoder.bias")),
    ]
    return sizes.foreign(overrides, rules, layers)


def write(run: Trained) -> LibraryConfig:
    """ModernBERT's config of a model of ours."""
    config = shared(run)
    dropped = ("hidden_act", "rms_norm_eps", "rope_parameters", "num_key_value_heads", "head_dim")
    windows = written_types(run)
    bias = bool(run.option("norm.bias"))
    return {
        **{key: value for key, value in config.items() if key not in dropped},
        "layer_types": windows["layer_types"],
        "local_attention": 2 * ((windows["sliding_window"] or 65) - 1),
        "hidden_activation": config["hidden_act"],
        "classifier_activation": run.option("head.hidden"),
        "rope_parameters": written_rotations(run, config),
        "norm_eps": run.option("norm.eps"),
        "norm_bias": bias,
        "classifier_bias": bias,
        "decoder_bias": bool(run.option("head.bias")),
        "attention_bias": bool(run.option("token_mixer.bias")),
        "mlp_bias": bool(run.option("channel_mixer.bias")),
        "cls_token_id": None,
        "sep_token_id": None,
    }


CONVERTER = Converter("modernbert", "transformers", "ModernBertForMaskedLM", read, write, model_type="modernbert")
