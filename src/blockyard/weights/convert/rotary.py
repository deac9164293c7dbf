"""Rotary positions in configs of transformers: the base, the share of the channels, and how they are scaled.

Older files have separate keys (`rope_theta`, `rope_scaling`), newer files one mapping, `rope_parameters`. Models whose
layers with a window rotate by another base have such a mapping for each type of layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError, quoted
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.declared_sizes import flag, mapping, real_number, whole_number
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

SCALINGS = ("linear", "llama3", "yarn")  # of rotary positions, under the same names
ORIGINAL = "original_max_position_embeddings"
SLIDING, FULL = "sliding_attention", "full_attention"  # in `layer_types`


def declared_rotary(settings: LibrarySettings) -> dict[str, Any]:
    """Return the mapping of a config; if it has two, the mapping of older files, as transformers does."""
    newer = settings.mapping("rope_parameters")
    return settings.mapping("rope_scaling") or newer


def rotary(
    settings: LibrarySettings,
    rope: Mapping[str, Any] | None = None,
    usual: float | None = None,
    *,
    theta: float = 10000.0,
) -> list[str]:
    """Return the overrides of rotary positions, from separate keys or from one mapping.

    rope: the mapping; None reads it from the settings
    usual: the usual share of the channels that rotate; None if all must; theta: the base of a config that has none
    """
    rope = dict(declared_rotary(settings) if rope is None else rope)
    where = f"{settings.name}: rope_parameters"
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    declared = rope.pop("rope_theta", None)
    base = real_number(where, "rope_theta", declared) if declared else settings.number("rope_theta", theta)
    settings.take("rope_theta", None)
    overrides = [f"position.base={base!r}"]
    if kind in SCALINGS:
        factor = real_number(where, "factor", rope.pop("factor", 1.0))
        overrides += [
            f"position.scaling={kind}",
            f"position.factor={factor!r}",
            *_bounds(settings, where, kind, rope, factor),
        ]
    elif kind != "default":
        expected = " or ".join(map(repr, ("default", *SCALINGS)))
        settings.problems.append(f"rope_parameters.rope_type={quoted(kind)}: expected {expected}")
        return overrides
    share = rope.pop("partial_rotary_factor", settings.take("partial_rotary_factor", usual or 1.0))
    if usual is not None:
        overrides.append(f"position.fraction={real_number(where, 'partial_rotary_factor', share)!r}")
    elif share != 1.0 or settings.values.get("partial_rotary_factor", 1.0) != 1.0:
        settings.problems.append(f"partial_rotary_factor={quoted(share)}: expected 1.0")
    settings.problems += [f"rope_parameters.{key}={quoted(value)}: unknown" for key, value in rope.items()]
    return overrides


def yarn_gain(factor: float, mscale: float = 1.0) -> float:
    """Return the factor of YaRN on queries and keys. mscale: DeepSeek's factor on the logarithm"""
    if factor > 1:
        return 0.1 * mscale * math.log(factor) + 1
    return 1.0


def _bounds(settings: LibrarySettings, where: str, kind: str, rope: dict[str, Any], factor: float) -> list[str]:
    """Return the overrides of a scaling beside its factor. Removes their keys from `rope`."""
    if kind == "linear":
        return []
    length = whole_number(where, ORIGINAL, rope.pop(ORIGINAL, None), is_dimension=False)
    overrides = [f"position.original={length}"]
    if kind == "llama3":
        keys = {"low": ("low_freq_factor", 1.0), "high": ("high_freq_factor", 4.0)}
        for option, (key, default) in keys.items():
            overrides.append(f"position.{option}={real_number(where, key, rope.pop(key, default))!r}")
        return overrides
    for key, expected in {"beta_fast": 32, "beta_slow": 1}.items():
        value = rope.pop(key, expected)
        if value not in (expected, None):
            settings.problems.append(f"rope_parameters.{key}={quoted(value)}: expected {expected}")
    gain, *scales = (rope.pop(key, None) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if gain is not None:
        overrides.append(f"position.gain={real_number(where, 'attention_factor', gain)!r}")
    elif all(scales):
        of_rotation, of_scores = (yarn_gain(factor, real_number(where, "mscale", scale)) for scale in scales)
        if of_scores <= 0:
            raise UserError(f"{where}: mscale_all_dim={scales[1]} makes the factor of the scores {of_scores:g}")
        overrides.append(f"position.gain={of_rotation / of_scores!r}")
    return [*overrides, to_override("position.truncate", flag(where, "truncate", rope.pop("truncate", True)))]


def written_rotary(run: Trained) -> LibraryConfig:
    """Return the mapping of a model's rotary positions."""
    base, kind = float(run.option("position.base") or 10000.0), run.option("position.scaling")
    if kind not in SCALINGS:
        return {"rope_type": "default", "rope_theta": base}
    factor = run.option("position.factor")
    rope = {"rope_type": kind, "factor": factor, "rope_theta": base}
    if kind != "linear":
        rope[ORIGINAL] = run.option("position.original") or round(run.ctx.tokens.max_len / factor)
    if kind == "llama3":
        rope |= {"low_freq_factor": run.option("position.low"), "high_freq_factor": run.option("position.high")}
    if kind == "yarn":
        rope["truncate"] = run.option("position.truncate") is not False
        gain = run.option("position.gain")
        if gain is not None:
            rope["attention_factor"] = gain
    return rope


def rotations(
    settings: LibrarySettings, full: tuple[str, float], near: tuple[str, float]
) -> dict[str, Mapping[str, Any]]:
    """Return the rotary mapping of each type of layer, of older or newer files. Raises UserError for anything else.

    full, near: the keys of the bases in older files, and their defaults
    """
    bases = {FULL: settings.number(*full), SLIDING: settings.number(*near)}
    rope = settings.mapping("rope_parameters")
    if not {*rope} <= {*bases}:
        raise UserError(f"{settings.name}: rope_parameters={quoted(rope)}: expected {FULL} and {SLIDING}")
    where = f"{settings.name}: rope_parameters"
    declared = {
        kind: {"rope_theta": base, **mapping(where, kind, rope.get(kind) or {})} for kind, base in bases.items()
    }
    return declared | {FULL: declared[FULL] | settings.mapping("rope_scaling")}


def window_base(settings: LibrarySettings, rope: Mapping[str, Any]) -> float:
    """Return the base of the layers with a window. Their positions are not scaled; a scaling is noted as a problem."""
    rest = {key: value for key, value in rope.items() if key != "rope_theta"}
    if rest not in ({}, {"rope_type": "default"}):
        settings.problems.append(f"rope_parameters.{SLIDING}={quoted(rest)}: expected rope_type='default' alone")
    return real_number(f"{settings.name}: rope_parameters", "rope_theta", rope["rope_theta"])


def written_rotations(run: Trained) -> LibraryConfig:
    """Return the rotary mapping of each type of layer of a model."""
    near = next((layer for layer in run.layers if "window" in layer["token_mixer"]), run.layers[0])
    local = {"rope_type": "default", "rope_theta": float(near["position"].get("base") or 10000.0)}
    return {FULL: written_rotary(run), SLIDING: local}
