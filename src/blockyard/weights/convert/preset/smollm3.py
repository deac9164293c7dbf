"""SmolLM3: Llama without positions in every fourth layer, and windows in some layers where a config has them.

Reference: transformers SmolLM3ForCausalLM
"""

from __future__ import annotations

from blockyard.errors import UserError, quoted
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
    written_types,
)
from blockyard.weights.convert.rotary import FULL, SLIDING
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

NO_POSITIONS = "blockyard.position.none.NoPosition"
EVERY = 4  # layers of which one has no positions


def read(settings: LibrarySettings) -> Foreign:
    """SmolLM3's config as overrides."""
    sizes = DecoderSizes(settings, theta=2e6)
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    window, rotated = sizes.window(None, has_switch=True), _rotated(settings, sizes.depth)
    settings.take("max_window_layers", None)  # which the class does not read
    default = [SLIDING if window is not None and not each else FULL for each in rotated]
    types = sizes.layer_types(default)
    layers = [LayerFacts(window if kind == SLIDING else None, each) for kind, each in zip(types, rotated, strict=True)]
    is_tied = settings.is_tied(True)
    overrides = [
        *sizes.gated(),
        f"channel_mixer.bias={boolean(settings.flag('mlp_bias', False))}",
        sizes.eps(1e-6),
        f"head.tied={boolean(is_tied)}",
    ]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules, layers)


def _rotated(settings: LibrarySettings, depth: int) -> list[bool]:
    """Whether each layer has positions. Raises UserError for anything else."""
    every = settings.integer("no_rope_layer_interval", EVERY, is_dimension=False)
    layers = settings.take("no_rope_layers", None)
    if layers is None:
        return [bool((layer + 1) % every) for layer in range(depth)]
    if not isinstance(layers, list | tuple) or len(layers) != depth or not {*map(repr, layers)} <= {"0", "1"}:
        raise UserError(f"{settings.name}: no_rope_layers={quoted(layers)}: expected 0 or 1 for each of {depth} layers")
    return [bool(each) for each in layers]


def write(run: Trained) -> LibraryConfig:
    """SmolLM3's config of a model of ours."""
    rotated = [layer["position"]["_target_"] != NO_POSITIONS for layer in run.layers]
    biases = {"attention_bias": run.option("token_mixer.bias"), "mlp_bias": run.option("channel_mixer.bias")}
    return {
        **shared(run),
        **written_types(run),
        **{key: bool(value) for key, value in biases.items()},
        "no_rope_layers": [int(each) for each in rotated],
        "no_rope_layer_interval": EVERY,
    }


CONVERTER = Converter("smollm3", "transformers", "SmolLM3ForCausalLM", read, write, model_type="smollm3")
