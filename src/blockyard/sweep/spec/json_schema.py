"""The JSON schema of sweep files: their keys, and the types and names of values; the rest says `--dry-run`."""

from __future__ import annotations

from typing import Any, get_args

from blockyard.sweep.spec import ladder
from blockyard.sweep.spec.arms import KINDS
from blockyard.sweep.spec.budget import BUDGETS, MAX_SEEDS, MAX_TRIALS, MOST_UNTIL, PRUNERS, RANGE, SAMPLERS
from blockyard.sweep.spec.question import COMMAND_KEYS, KEYS, MATCHES, OVERS

_TEXT = {"type": "string", "minLength": 1}
_OVERRIDES = {"type": "array", "items": {"type": "string", "pattern": "[=~]"}}
_ARMS = {"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": [_OVERRIDES, {"type": "string"}]}}
_FACTORS = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"anyOf": [{"type": "array", "minItems": 1}, _ARMS]},
}
_SPACE = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "minItems": 1},
            {
                "type": "object",
                "properties": {name: {} for name in RANGE},
                "required": ["low", "high"],
                "additionalProperties": False,
            },
        ]
    },
}
_NAMES = {"type": "array", "items": _TEXT}


def sweep_schema() -> dict[str, Any]:
    """Return the schema of a sweep file."""
    until = {
        "type": "object",
        "properties": {
            "first": {"type": "integer", "minimum": 2, "maximum": MOST_UNTIL},
            "most": {"type": "integer", "minimum": 3, "maximum": MOST_UNTIL},
            "until": {"const": "decided"},
        },
        "required": ["until"],
        "additionalProperties": False,
    }
    seeds = [
        {"type": "integer", "minimum": 1, "maximum": MAX_SEEDS},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        until,
    ]
    search = {
        "type": "object",
        "properties": {
            "trials": {"type": "integer", "minimum": 1, "maximum": MAX_TRIALS},
            "sampler": {"enum": list(SAMPLERS)},
            "pruner": {"enum": list(PRUNERS)},
            "space": _SPACE,
            "seeds": {"type": "integer", "minimum": 1},
            "only": {"type": "object", "additionalProperties": _SPACE},
        },
        "required": ["trials", "space"],
        "additionalProperties": False,
    }
    budget = {
        "type": "object",
        "properties": {name: {"type": "number", "exclusiveMinimum": 0} for name in BUDGETS},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }
    positive = {"type": "number", "exclusiveMinimum": 0}
    rungs = {"type": "array", "minItems": ladder.RUNGS, "maxItems": ladder.MOST, "items": positive}
    climbed = {
        "type": "object",
        "properties": {
            "tokens_per_param": {"anyOf": [positive, {"type": "null"}]},
            "floors": {"enum": list(get_args(ladder.Floors))},
            **dict.fromkeys(ladder.KINDS, rungs),
        },
        "oneOf": [{"required": [kind]} for kind in ladder.KINDS],
        "additionalProperties": False,
    }
    schemas: dict[str, Any] = {
        "ladder": climbed,
        **dict.fromkeys(("claim", "source", "metric", "success", "steps_to", "expect"), _TEXT),
        **dict.fromkeys(KINDS, _FACTORS),
        "arms": _ARMS,
        "leave_one_out": _ARMS,
        "base": _OVERRIDES,
        "baseline": {"type": ["string", "number"]},
        "seeds": {"anyOf": seeds},
        "budget": budget,
        "tune": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "minItems": 1}},
        "tune_seeds": {"type": "integer", "minimum": 1},
        "search": search,
        "match": {"enum": list(MATCHES)},
        "over": {"enum": list(OVERS)},
        "resplit": {"type": "boolean"},
        "external": {"type": "object", "additionalProperties": {"type": "object", "required": ["value", "source"]}},
        "margin": {"type": "number", "exclusiveMinimum": 0},
        **dict.fromkeys(COMMAND_KEYS, _NAMES),
    }
    properties = {key: schemas.get(key, {}) for key in (*KEYS, *COMMAND_KEYS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A sweep file",
        "type": "object",
        "properties": {
            key: {"anyOf": [each, {"type": "null"}]} if key != "claim" else each for key, each in properties.items()
        },
        "required": ["claim"],
        "oneOf": [{"required": [kind]} for kind in KINDS],
        "additionalProperties": False,
    }
