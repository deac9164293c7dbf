"""ModernBERT: an encoder with rotary positions, GEGLU, a norm of the embeddings, and windows in two of three layers.

Its first block has no norm in front of attention: the embeddings are normalised already.

Reference: transformers ModernBertForMaskedLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.rules import modules, same, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

EVERY = 3  # of so many layers one has no window, if a config does not name them
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


def _read_layers(settings: LibrarySettings, values: keys.Values) -> list[llama.LayerFacts]:
    every = settings.integer("global_attn_every_n_layers", EVERY, is_dimension=False)
    side = settings.integer("local_attention", 128, least=2, is_dimension=False) // 2
    types = llama.layer_types(settings, values, lambda layer: layer % every != 0)
    layers = []
    for number, is_near in enumerate(types):
        normed = number > 0  # the first block reads the normalised embeddings
        if is_near:
            # Our window counts the token itself, ModernBERT's the tokens on both sides.
            layers.append(llama.LayerFacts(window=side + 1, base=values["near_base"], normed=normed))
        else:
            layers.append(llama.LayerFacts(normed=normed))
    return layers


def _written_layers(run: Trained) -> LibraryConfig:
    windows = llama.written_types(run)
    return {"layer_types": windows["layer_types"], "local_attention": 2 * ((windows["sliding_window"] or 65) - 1)}


def _check_biases(settings: LibrarySettings, values: keys.Values) -> None:
    bias, of_head = values["norm.bias"], settings.flag("classifier_bias", False)
    if bias != of_head:
        settings.problems.append(f"norm_bias={bias} and classifier_bias={of_head}: expected equal values")


CONVERTER = llama.decoder(
    "modernbert",
    "ModernBertForMaskedLM",
    [
        *llama.sizes(keys.Key(llama.HEADS.read), activation="hidden_activation", usual="gelu"),
        llama.positions_of_types(("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0)),
        *(llama.GATED, llama.ATTENTION_BIAS, llama.MLP_BIAS),
        keys.number("norm_eps", "norm.eps head.hidden_eps", 1e-5),
        keys.flag("norm_bias", "norm.bias head.hidden_bias", False),
        keys.Key(_check_biases, lambda run: {"classifier_bias": bool(run.option("norm.bias"))}),
        keys.choice("classifier_activation", "head.hidden", llama.ACTIVATIONS, "gelu"),
        keys.flag("decoder_bias", "head.bias", True),
        llama.layers(_read_layers, _written_layers),
        keys.fixed("tie_word_embeddings", True),
        keys.fixed("rope_scaling", None),
        keys.fixed("position_embedding_type", "absolute"),  # of the released files, which the class does not read
        keys.ignored("layer_norm_eps"),  # beside `norm_eps` in the released files
        # Speed, other heads, and initial weights.
        keys.ignored("deterministic_flash_attn reference_compile sparse_prediction sparse_pred_ignore_index"),
        keys.ignored("classifier_pooling initializer_cutoff_factor"),
        keys.written(
            tie_word_embeddings=lambda run: bool(run.option("head.tied")), cls_token_id=None, sep_token_id=None
        ),
    ],
    lambda _: [
        *(*modules(MODULES), *table_and_head(TABLE, "decoder.weight", is_tied=True)),
        same("head.proj.bias", "decoder.bias"),
    ],
)
