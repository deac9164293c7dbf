"""SmolLM3: Llama without positions in every fourth layer, and windows in some layers where a config has them.

Reference: transformers SmolLM3ForCausalLM
"""

from __future__ import annotations

from blockyard.errors import UserError, quoted
from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

NO_POSITIONS = "blockyard.position.none.NoPosition"
EVERY = 4  # of so many layers one has no positions


def _read_layers(settings: LibrarySettings, values: keys.Values) -> list[llama.LayerFacts]:
    """Read the layers with a window: the layers without positions, if a config does not name them."""
    tokens, rotated = llama.window(settings, None, has_switch=True), _rotated(settings, values)
    types = llama.layer_types(settings, values, lambda layer: tokens is not None and not rotated[layer])
    return [llama.LayerFacts(tokens if near else None, turns) for near, turns in zip(types, rotated, strict=True)]


def _written_layers(run: Trained) -> LibraryConfig:
    rotated = [layer["position"]["_target_"] != NO_POSITIONS for layer in run.layers]
    return llama.switched_types(run) | {"no_rope_layers": [*map(int, rotated)], "no_rope_layer_interval": EVERY}


def _rotated(settings: LibrarySettings, values: keys.Values) -> list[bool]:
    """Return whether each layer has positions. Raises UserError for anything else."""
    depth = values["model.depth"]
    every = settings.integer("no_rope_layer_interval", EVERY, is_dimension=False)
    layers = settings.take("no_rope_layers", None)
    if layers is None:
        return [bool((layer + 1) % every) for layer in range(depth)]
    if not isinstance(layers, list | tuple) or len(layers) != depth or not {*map(repr, layers)} <= {"0", "1"}:
        raise UserError(f"{settings.name}: no_rope_layers={quoted(layers)}: expected 0 or 1 for each of {depth} layers")
    return [bool(layer) for layer in layers]


CONVERTER = llama.decoder(
    "smollm3",
    "SmolLM3ForCausalLM",
    [
        *(
            *llama.sizes(),
            llama.positions(2e6),
            llama.GATED,
            llama.eps(1e-6),
            keys.tied(True),
            llama.ATTENTION_BIAS,
            llama.MLP_BIAS,
        ),
        llama.layers(_read_layers, _written_layers),
        keys.ignored("max_window_layers"),  # which the class does not read
    ],
    lambda values: [*llama.llama_rules(values), *modules(llama.NORMS)],
)
