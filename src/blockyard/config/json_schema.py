"""JSON schemas (draft 2020-12) of the config files, with which editors complete and check them.

A schema says what `check` says of one file: the classes of a group, the options of each class, their types and ranges.
What depends on several files, such as which choices go together, only `blockyard check` knows. Every value may be an
interpolation, `${...}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from blockyard.config.choices import catalog
from blockyard.config.defaults import plain_default
from blockyard.config.schema import REQUIRED, Option, Root, Slot, options
from blockyard.config.untrusted.targets import allowed, locate

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
GLOBAL = ("experiment", "preset", "debug")  # groups whose files set options of every family
_INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
_DEFAULTS: Schema = {"type": "array", "items": {"type": ["string", "object"]}}
_MATCH: Schema = {
    "type": "object",
    "properties": {name: {} for name in catalog.MATCH_OPTIONS},
    "additionalProperties": False,
}
_NODE: Schema = {"type": "object", "properties": {"_target_": {"type": "string"}}, "required": ["_target_"]}


def group_schemas(folders: tuple[Path, ...] = (), allow: Sequence[str] = ()) -> dict[str, Schema]:
    """Return the schema of the files of each group, by the group's name.

    folders: the user's own config folders; allow: packages whose classes may be imported for their options
    """
    groups = {group: _targets(group, folders, allow) for group in catalog.groups() if group not in GLOBAL}
    whole = _whole(groups)
    return {
        **{group: finished(f"A choice of {group}", _choice(group, targets)) for group, targets in groups.items()},
        **{group: finished(f"A file of {group}", whole) for group in GLOBAL},
    }


def _targets(group: str, folders: tuple[Path, ...], allow: Sequence[str]) -> dict[str, dict[str, Option]]:
    """The options of every class that a choice of the group names, by its dotted name."""
    named = {
        target
        for choice in catalog.choices(group, folders).values()
        for target in _named(catalog.content(choice.path))
        if allowed(target, list(allow))
    }
    return {target: options(locate(target)) for target in sorted(named)}


def _named(content: Any) -> Iterator[str]:
    """The class of a choice, or those of its nodes by name."""
    nodes = [content] if isinstance(content, dict) and "_target_" in content else list((content or {}).values())
    yield from (node["_target_"] for node in nodes if isinstance(node, dict) and isinstance(node.get("_target_"), str))


def _choice(group: str, targets: Mapping[str, Mapping[str, Option]]) -> Schema:
    """A node, or in a family of several, nodes by name."""
    node = _node(targets)
    if group not in catalog.SEVERAL:
        return node
    by_name = {"anyOf": [node, {"type": "null"}]}
    named = {"type": "object", "properties": {"defaults": _DEFAULTS}, "additionalProperties": by_name}
    return {"anyOf": [{"not": {"required": ["_target_"]}, **named}, node]}


def _node(targets: Mapping[str, Mapping[str, Option]]) -> Schema:
    """A node of one of the classes; of another one, such as a user's own, only its name is known."""
    conditions = [
        {
            "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
            "then": {
                "properties": {**_reserved(), **{name: _option(each) for name, each in named.items()}},
                "additionalProperties": False,
            },
        }
        for target, named in targets.items()
    ]
    target = {"anyOf": [{"enum": list(targets)}, {"type": "string"}], "description": "the class, by its dotted name"}
    # A choice may take its class from another one, by `defaults`.
    named = [{"required": ["_target_"]}, {"required": ["defaults"]}]
    return {"type": "object", "properties": {"_target_": target}, "anyOf": named, "allOf": conditions}


def _reserved() -> Schema:
    return {"_target_": {"type": "string"}, "_partial_": {"type": "boolean"}, "defaults": _DEFAULTS}


def _whole(groups: Mapping[str, Mapping[str, Mapping[str, Option]]]) -> Schema:
    """A file at the root of a config: of each family any option that one of its classes has."""
    properties: Schema = {"defaults": _DEFAULTS, catalog.MATCH: _MATCH}
    properties |= {name: _option(each) for name, each in options(Root).items()}
    for family in catalog.run_keys():
        if family in GLOBAL:
            continue
        targets = groups[catalog.OF_SOURCE.get(family, family)]
        merged: dict[str, list[Schema]] = {}
        for target in targets.values():
            for name, each in target.items():
                merged.setdefault(name, []).append(_option(each, partial=True))
        inner: Schema = {
            name: each[0]
            if len(each) == 1
            else {"anyOf": [schema for i, schema in enumerate(each) if schema not in each[:i]]}
            for name, each in merged.items()
        }
        node: Schema = {
            "type": ["object", "null"],
            "properties": {**_reserved(), **inner},
            "additionalProperties": False,
        }
        several = {"type": ["object", "null"], "additionalProperties": {"type": ["object", "null"]}}
        # Of a logger also the options of one, of callbacks always nodes by their names.
        both = {"anyOf": [node, several]} if family == "logger" else several
        properties[family] = both if family in catalog.SEVERAL else node
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _option(option: Option, *, partial: bool = False) -> Schema:
    """The values of an option, with its help and its default.

    partial: whether nodes may be parts of nodes, as in files that are merged with a choice
    """
    schema: Schema = {"anyOf": [_value(option, partial), _INTERPOLATION]}
    if option.help:
        schema["description"] = option.help
    if option.default is not REQUIRED:
        schema["default"] = plain_default(option.default)
    return schema


def _value(option: Option, partial: bool) -> Schema:
    if option.slot is not None:
        nodes = {"type": ["object", "array", "null"]} if partial else _of_slot(option.slot)
        return {"anyOf": [nodes, _plain(option.annotation)]} if option.slot.or_plain else nodes
    return _plain(option.annotation)


def _of_slot(slot: Slot) -> Schema:
    one: Schema = {"anyOf": [_NODE, {"type": "array", "items": {"type": "string"}}]} if slot.named else _NODE
    value: Schema = {"type": "object", "additionalProperties": one} if slot.named else one
    return {"anyOf": [value, {"type": "null"}]} if slot.optional else value


def _plain(annotation: Any) -> Schema:
    """The plain values of a type; anything where JSON has no such type."""
    try:
        return _interpolated(TypeAdapter(annotation).json_schema(mode="validation"))
    except (PydanticUserError, PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, TypeError):
        return {}


def _interpolated(schema: Schema) -> Schema:
    """A copy in which the items of lists and the values of mappings may be interpolations too."""

    def inside(value: Any) -> Any:
        return {"anyOf": [_interpolated(value), _INTERPOLATION]} if isinstance(value, dict) else value

    copy = dict(schema)
    copy |= {key: inside(schema[key]) for key in ("items", "additionalProperties") if key in schema}
    copy |= {key: [inside(each) for each in schema[key]] for key in ("prefixItems",) if key in schema}
    copy |= {
        key: {name: inside(each) for name, each in schema[key].items()} for key in ("properties",) if key in schema
    }
    copy |= {key: [_interpolated(each) for each in schema[key]] for key in ("anyOf", "oneOf", "allOf") if key in schema}
    copy |= {key: {n: _interpolated(each) for n, each in schema[key].items()} for key in ("$defs",) if key in schema}
    return copy


def finished(title: str, schema: Schema) -> Schema:
    """Return a schema with the definitions of the types in it at its root, where references look for them."""
    definitions: Schema = {}
    body = _hoisted(schema, definitions)
    return {"$schema": DIALECT, "title": title, **body, **({"$defs": definitions} if definitions else {})}


def _hoisted(value: Any, definitions: Schema) -> Any:
    """A copy without the definitions inside, which are put into `definitions`."""
    if isinstance(value, list):
        return [_hoisted(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    for name, each in (value.get("$defs") or {}).items():
        definitions[name] = _hoisted(each, definitions)
    copy = {key: _hoisted(each, definitions) for key, each in value.items() if key != "$defs"}
    if copy.get("type") == "object" and "title" in copy and "properties" in copy:  # a dataclass, which takes no others
        copy.setdefault("additionalProperties", False)
    return copy
