"""Which library's class a model of ours is: the library's config must read back as the run's own settings."""

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

# Options of training, of initial weights and of longer sequences, and sizes that the weights themselves have.
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
    """A converter, the library's config of a model, and what it says in our terms."""

    converter: Converter
    config: Node
    foreign: Foreign


def match(run: Trained, library: str, preset: str | None = None, *, near: str | None = None) -> Match:
    """The library's class for a model of ours. Raises UserError with the settings that no class has.

    preset: the only converter to try; None tries each of the library
    near: the preset that the run was made of, whose differences a refusal lists
    """
    of_library = {name: each for name, each in converters().items() if each.library == library}
    if preset is not None and preset not in of_library:
        there = [name for name, each in of_library.items() if not each.partly]
        raise UserError(f"as={preset}: no class of {library} is written for it (there are {', '.join(there)})")
    nearest: tuple[Converter, list[str]] | None = None
    fewest: int | None = None
    for name in [preset] if preset else of_library:
        converter = of_library[str(name)]
        result = _try(converter, run)
        if isinstance(result, Match):
            return result
        if name in (preset, near):
            nearest, fewest = (converter, result), 0
        elif not converter.partly and (fewest is None or len(result) < fewest):
            nearest, fewest = (converter, result), len(result)
    assert nearest is not None
    converter, reasons = nearest
    raise UserError(
        f"no class of {library} has these blocks; the nearest is {converter.architecture} (preset={converter.preset}), "
        f"and it differs: {'; '.join(reasons)}"
    )


def _try(converter: Converter, run: Trained) -> Match | list[str]:
    """The match, or why there is none."""
    if converter.write is None:
        return [converter.partly]
    wrong = list(_choices(converter, run))
    if wrong:
        return wrong
    try:
        config = converter.write(run)
        settings = LibrarySettings(config, converter.name)
        foreign = converter.read(settings)
        settings.finish(converter.preset)
        expected = architecture(converter.preset, foreign)
        reasons = list(_differences(converter, run, expected)) or list(_other_shapes(run, expected, foreign))
    except UserError as error:
        return [str(error)]
    except (ValueError, LookupError, ArithmeticError) as error:  # of sizes that no class has
        return [f"its config cannot be written ({type(error).__name__}: {error})"]
    return reasons or Match(converter, config, foreign)


def _choices(converter: Converter, run: Trained) -> Iterator[str]:
    """Families whose choice is not the preset's, before any size is read. Heads, channel mixers and layers may vary."""
    expected = architecture(converter.preset, Foreign([], [], run.ctx.data))
    for family in converter.families:
        if family in ("head", "channel_mixer", "layers"):
            continue
        ours, theirs = _target(run.config, family), _target(expected, family)
        if ours != theirs:
            yield f"{family}={_name(ours)}, expected {_name(theirs)}"


def _other_shapes(run: Trained, expected: Node, foreign: Foreign) -> Iterator[str]:
    """Images and weights that have another shape in the model that the library's config stands for."""
    if foreign.data.modality == "image" and tuple(foreign.data.shape) != tuple(run.ctx.data.shape):
        yield f"images of {tuple(run.ctx.data.shape)}, expected {tuple(foreign.data.shape)}"
        return
    components = Components(expected)
    state = build(components, context_of(components, foreign)).state_dict()
    for name in sorted(state.keys() | run.weights.keys()):
        ours, theirs = (tuple(each[name].shape) if name in each else None for each in (run.weights, state))
        if ours != theirs:
            yield f"{name} of shape {ours}, expected {theirs}"
            return  # the others follow from the same setting


def _differences(converter: Converter, run: Trained, expected: Mapping[str, Any]) -> Iterator[str]:
    for key in ("tokenizer", "source_tokenizer"):
        ours, theirs = (str((config.get(key) or {}).get("scale") or "one") for config in (run.config, expected))
        if key not in converter.families and ours != theirs:
            yield f"{key}.scale={ours}, expected {theirs}"
    differing = bool(nodes_of_kinds(dict(run.config)) or nodes_of_kinds(dict(expected)))
    for family in converter.families:
        if differing and family in ("layers", "token_mixer", "channel_mixer", "block"):
            continue  # compared layer by layer
        yield from _of_family(converter, run, family, run.config, expected)
    if differing:
        differences: dict[str, None] = {}  # a difference in several layers is told once, with the first of them
        for layer, (own, other) in enumerate(
            zip(run.layers, nodes_of_layers(dict(expected), run.ctx.depth), strict=True)
        ):
            for family in (each for each in FAMILIES if each in converter.families):
                for text in _of_family(converter, run, family, own, other):
                    if text not in differences:
                        differences[text] = None
                        yield f"layer {layer}: {text}"


def _of_family(
    converter: Converter, run: Trained, family: str, config: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[str]:
    """The differences of one family."""
    ours, theirs = _target(config, family), _target(expected, family)
    if ours != theirs:
        yield f"{family}={_name(ours)}, expected {_name(theirs)}"
        return
    own, other = (_filled(each.get(family) or {}, run, family) for each in (config, expected))
    for key in sorted({*own, *other} - _UNCOMPARED):
        if f"{family}.{key}" not in converter.uncompared and not _equal(own.get(key), other.get(key), run):
            yield f"{family}.{key}={quoted(own.get(key))}, expected {quoted(other.get(key))}"


def _target(config: Mapping[str, Any], family: str) -> str:
    node = config.get(family)
    return str(node.get("_target_")) if isinstance(node, Mapping) else "none"


def _name(target: str) -> str:
    return target.split(".")[-2] if "." in target else target


def _filled(node: Mapping[str, Any], run: Trained, family: str) -> Node:
    """Options in which a value that stands for the usual one is that."""
    dim, heads = run.ctx.dim, run.ctx.heads
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


def _equal(ours: Any, theirs: Any, run: Trained) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        own, other = (_filled(each, run, "") for each in (ours, theirs))
        return all(_equal(own.get(key), other.get(key), run) for key in {*own, *other} - _UNCOMPARED)
    numbers = isinstance(ours, int | float) and isinstance(theirs, int | float)
    if numbers and not isinstance(ours, bool) and not isinstance(theirs, bool):
        return math.isclose(ours, theirs, rel_tol=1e-9)
    return bool(ours == theirs)
