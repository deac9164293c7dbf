"""The library's class that is like a model of ours: the class' config must read back as the run's settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.config.build import Components
from blockyard.config.layer_kinds import FAMILIES, nodes_of_kinds, nodes_of_layers
from blockyard.config.tree import Node
from blockyard.errors import UserError, quoted
from blockyard.token_mixer._query_key_norms import SAME_NORMS
from blockyard.weights.convert.converter import Converter, Foreign, Trained, converters
from blockyard.weights.convert.importing import architecture, build, context_of
from blockyard.weights.convert.settings import LibrarySettings

# Options of training, initial weights and longer sequences, and sizes that follow from the weights.
_UNCOMPARED = frozenset(
    [
        "dropout",
        "drop_path",
        "init_std",
        "zero_branches",
        "zero",
        "std",
        "beyond",
        "start",
        "expansion",
        "momentum",
        "mask_bands",
        "mask_frames",
        "condition",
        "missing",
        "_partial_",
        "combine_width",
    ]
)


@dataclass(frozen=True)
class Match:
    """A converter, the library's config of a model, and the config in our terms."""

    converter: Converter
    config: Node
    foreign: Foreign


def match(run: Trained, library: str, preset: str | None = None, *, near: str | None = None) -> Match:
    """Return the library's class for a model of ours. Raises UserError with the settings that no class has.

    preset: the only converter to try; None tries each of the library
    near: the preset of the run; a refusal lists the differences from it
    """
    candidates = {name: converter for name, converter in converters().items() if converter.library == library}
    if preset is not None:
        if preset not in candidates:
            names = [name for name, converter in candidates.items() if not converter.partly]
            raise UserError(f"as={preset}: no class of {library} is written for it (there are {', '.join(names)})")
        candidates = {preset: candidates[preset]}
    nearest: Converter | None = None
    reasons: list[str] = []  # the differences from the nearest
    fewest: int | None = None
    for name, converter in candidates.items():
        result = _try(converter, run)
        if isinstance(result, Match):
            return result
        if name in (preset, near):
            count = 0  # nearest whatever differs, since the user knows it
        elif converter.partly or (fewest is not None and len(result) >= fewest):
            continue
        else:
            count = len(result)
        nearest = converter
        reasons = result
        fewest = count
    assert nearest is not None
    raise UserError(
        f"no class of {library} has these blocks; the nearest is {nearest.architecture} (preset={nearest.preset}), "
        f"and it differs: {'; '.join(reasons)}"
    )


def _try(converter: Converter, run: Trained) -> Match | list[str]:
    """Return the match, or the reasons why there is none."""
    if converter.write is None:
        return [converter.partly]
    reasons = list(_choices(converter, run))
    if reasons:
        return reasons
    try:
        config = converter.write(run)
        settings = LibrarySettings(config, converter.name)
        foreign = converter.read(settings)
        settings.finish(converter.preset)
        expected = architecture(converter.preset, foreign)
        reasons = list(_differences(converter, run, expected))
        if not reasons:
            reasons = list(_other_shapes(run, expected, foreign))
    except UserError as error:
        return [str(error)]
    except (ValueError, LookupError, ArithmeticError) as error:  # writers compute with sizes that no class may have
        return [f"its config cannot be written ({type(error).__name__}: {error})"]
    if reasons:
        return reasons
    return Match(converter, config, foreign)


def _choices(converter: Converter, run: Trained) -> Iterator[str]:
    """Yield families with another choice than the preset's. Heads, channel mixers and layers may vary."""
    expected = architecture(converter.preset, Foreign([], [], run.ctx.data))
    for family in converter.families:
        if family in ("head", "channel_mixer", "layers"):
            continue
        yield from _target_difference(run.config, expected, family)


def _other_shapes(run: Trained, expected: Node, foreign: Foreign) -> Iterator[str]:
    """Yield the images or the first weight of another shape in the model of the library's config."""
    if foreign.data.modality == "image" and tuple(foreign.data.shape) != tuple(run.ctx.data.shape):
        yield f"images of {tuple(run.ctx.data.shape)}, expected {tuple(foreign.data.shape)}"
        return
    components = Components(expected)
    state = build(components, context_of(components, foreign)).state_dict()
    for name in sorted(state.keys() | run.weights.keys()):
        shape = tuple(run.weights[name].shape) if name in run.weights else None
        expected_shape = tuple(state[name].shape) if name in state else None
        if shape != expected_shape:
            yield f"{name} of shape {shape}, expected {expected_shape}"
            return  # other weights differ by the same setting


def _differences(converter: Converter, run: Trained, expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that differ from the library's config."""
    for key in ("tokenizer", "source_tokenizer"):
        # Of tokenizers this option alone decides what the model computes; others decide what it reads.
        scale = _scale(run.config, key)
        expected_scale = _scale(expected, key)
        if key not in converter.families and scale != expected_scale:
            yield f"{key}.scale={scale}, expected {expected_scale}"
    differing = bool(nodes_of_kinds(dict(run.config)) or nodes_of_kinds(dict(expected)))
    for family in converter.families:
        if differing and family in ("layers", "token_mixer", "channel_mixer", "block"):
            continue  # compared layer by layer
        yield from _of_family(converter, run, family, run.config, expected)
    if differing:
        families = [family for family in FAMILIES if family in converter.families]
        expected_layers = nodes_of_layers(dict(expected), run.ctx.depth)
        seen: set[str] = set()  # a difference in several layers is told once, with the first of them
        for number, (layer, expected_layer) in enumerate(zip(run.layers, expected_layers, strict=True)):
            for family in families:
                for text in _of_family(converter, run, family, layer, expected_layer):
                    if text not in seen:
                        seen.add(text)
                        yield f"layer {number}: {text}"


def _of_family(
    converter: Converter, run: Trained, family: str, config: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the differences of one family: another choice, or other options of the same choice."""
    difference = list(_target_difference(config, expected, family))
    if difference:
        yield from difference
        return
    options = _filled(config.get(family) or {}, run, family)
    expected_options = _filled(expected.get(family) or {}, run, family)
    for key in sorted({*options, *expected_options} - _UNCOMPARED):
        value = options.get(key)
        expected_value = expected_options.get(key)
        if f"{family}.{key}" not in converter.uncompared and not _equal(value, expected_value, run):
            yield f"{family}.{key}={quoted(value)}, expected {quoted(expected_value)}"


def _scale(config: Mapping[str, Any], key: str) -> str:
    """Return the scale that a tokenizer's embeddings have."""
    return str((config.get(key) or {}).get("scale") or "one")


def _target_difference(config: Mapping[str, Any], expected: Mapping[str, Any], family: str) -> Iterator[str]:
    """Yield the difference where a family has another choice."""
    target = _target(config, family)
    expected_target = _target(expected, family)
    if target != expected_target:
        yield f"{family}={_name(target)}, expected {_name(expected_target)}"


def _target(config: Mapping[str, Any], family: str) -> str:
    node = config.get(family)
    if isinstance(node, Mapping):
        return str(node.get("_target_"))
    return "none"


def _name(target: str) -> str:
    return target.split(".")[-2] if "." in target else target


def _filled(node: Mapping[str, Any], run: Trained, family: str) -> Node:
    """Return options in which null, and other values that stand for the usual value, are replaced by it."""
    dim = run.ctx.dim
    heads = run.ctx.heads
    usual: dict[str, Any] = {
        "num_kv_heads": heads,
        "key_dim": dim // heads,
        "value_dim": dim // heads,
        "output_dim": dim,
        "encoder_depth": run.ctx.depth,
        "groups": dim,
    }
    if family == "position" and run.ctx.tokens.axes == 1:
        usual["base"] = 10000.0
    filled = {key: usual.get(key) if value is None else value for key, value in node.items()}
    norm = filled.get("qk_norm")
    if isinstance(norm, str):
        filled["qk_norm"] = SAME_NORMS.get(norm, norm)
    if "normalise" in filled and filled["normalise"] is None:
        filled["normalise"] = filled.get("route") == "token" and int(filled.get("active") or 0) > 1
    if "score_scale" in filled and filled["score_scale"] is None:
        filled["score_scale"] = float(filled.get("key_dim") or dim // heads) ** -0.5
    if filled.get("scaling") in ("yarn", "llama3") and filled.get("original") is None:
        filled["original"] = run.ctx.tokens.max_len / float(filled.get("factor") or 1.0)
    return filled


def _equal(value: Any, expected: Any, run: Trained) -> bool:
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        options = _filled(value, run, "")
        expected_options = _filled(expected, run, "")
        keys = {*options, *expected_options} - _UNCOMPARED
        return all(_equal(options.get(key), expected_options.get(key), run) for key in keys)
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    if numbers and not isinstance(value, bool) and not isinstance(expected, bool):
        # A library writes ratios and sizes, from which an option is computed again.
        return math.isclose(value, expected, rel_tol=1e-9)
    return bool(value == expected)
