"""JSON schemas (draft 2020-12) of the config files, for editors that complete and check them.

A schema has the facts by which `check` judges one file: the classes of a group, the options of each class, their types
and ranges. Only `blockyard check` knows about several files, such as choices that go together. Every value may be an
interpolation, `${...}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from blockyard.config.choices import catalog
from blockyard.config.defaults import plain_default
from blockyard.config.schema import REQUIRED, Option, Root, Slot, options
from blockyard.config.tree import is_node
from blockyard.config.untrusted.targets import allowed, locate

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
GLOBAL = ("recipe", "experiment", "preset", "debug")  # groups whose files set options of every family
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

    folders: the user's own config folders; allow: packages with classes that may be imported for their options
    """
    groups = {}
    for group in catalog.groups():
        if group not in GLOBAL:
            groups[group] = _targets(group, folders, allow)
    schemas = {}
    for group, targets in groups.items():
        schemas[group] = finished(f"A choice of {group}", _choice(group, targets))
    whole = _whole(groups)
    for group in GLOBAL:
        schemas[group] = finished(f"A file of {group}", whole)
    return schemas


def _targets(group: str, folders: tuple[Path, ...], allow: Sequence[str]) -> dict[str, dict[str, Option]]:
    """Return the options of every class that a choice of the group names, by its dotted name."""
    targets = set()
    for choice in catalog.choices(group, folders).values():
        content = catalog.content(choice.path) or {}
        nodes = [content] if is_node(content) else content.values()
        for node in nodes:
            target = node.get("_target_") if isinstance(node, dict) else None
            if isinstance(target, str) and allowed(target, list(allow)):
                targets.add(target)
    return {target: options(locate(target)) for target in sorted(targets)}


def _choice(group: str, targets: Mapping[str, Mapping[str, Option]]) -> Schema:
    """Return the schema of a choice: a node, or in a family of several, nodes by name."""
    node = _node(targets)
    if group not in catalog.SEVERAL:
        return node
    by_name = {"anyOf": [node, {"type": "null"}]}
    named = {"type": "object", "properties": {"defaults": _DEFAULTS}, "additionalProperties": by_name}
    return {"anyOf": [{"not": {"required": ["_target_"]}, **named}, node]}


def _node(targets: Mapping[str, Mapping[str, Option]]) -> Schema:
    """Return the schema of a node of one of the classes. Another class, such as a user's own, has only a name."""
    conditions = []
    for target, declared in targets.items():
        properties = _reserved() | {name: _option(option) for name, option in declared.items()}
        condition = {"properties": {"_target_": {"const": target}}, "required": ["_target_"]}
        conditions.append({"if": condition, "then": {"properties": properties, "additionalProperties": False}})
    name = {"anyOf": [{"enum": list(targets)}, {"type": "string"}], "description": "the class, by its dotted name"}
    # A choice may take its class from another one, by `defaults`.
    named = [{"required": ["_target_"]}, {"required": ["defaults"]}]
    return {"type": "object", "properties": {"_target_": name}, "anyOf": named, "allOf": conditions}


def _reserved() -> Schema:
    return {"_target_": {"type": "string"}, "_partial_": {"type": "boolean"}, "defaults": _DEFAULTS}


def _whole(groups: Mapping[str, Mapping[str, Mapping[str, Option]]]) -> Schema:
    """Return the schema of a file at the root of a config: each family with any option of any of its classes."""
    properties: Schema = {"defaults": _DEFAULTS, catalog.MATCH: _MATCH}
    properties |= {name: _option(option) for name, option in options(Root).items()}
    for family in catalog.run_keys():
        if family in GLOBAL:
            continue
        targets = groups[catalog.OF_SOURCE.get(family, family)]
        merged: dict[str, list[Schema]] = {}
        for declared in targets.values():
            for name, option in declared.items():
                merged.setdefault(name, []).append(_option(option, partial=True))
        inner: Schema = {}
        for name, schemas in merged.items():
            distinct = [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]
            inner[name] = {"anyOf": distinct} if len(schemas) > 1 else schemas[0]
        node: Schema = {
            "type": ["object", "null"],
            "properties": {**_reserved(), **inner},
            "additionalProperties": False,
        }
        several = {"type": ["object", "null"], "additionalProperties": {"type": ["object", "null"]}}
        if family not in catalog.SEVERAL:
            properties[family] = node
        elif family == "logger":  # the options of one logger, or nodes by their names
            properties[family] = {"anyOf": [node, several]}
        else:
            properties[family] = several
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _option(option: Option, *, partial: bool = False) -> Schema:
    """Return the schema of an option's values, with its help and its default.

    partial: whether nodes may be parts of nodes, as in files that are merged with a choice
    """
    schema: Schema = {"anyOf": [_value(option, partial), _INTERPOLATION]}
    if option.help:
        schema["description"] = option.help
    if option.default is not REQUIRED:
        schema["default"] = plain_default(option.default)
    return schema


def _value(option: Option, partial: bool) -> Schema:
    """Return the schema of an option's values without interpolations."""
    if option.slot is None:
        return _plain(option.annotation)
    nodes: Schema = {"type": ["object", "array", "null"]}
    if not partial:
        nodes = _of_slot(option.slot)
    if option.slot.or_plain:
        return {"anyOf": [nodes, _plain(option.annotation)]}
    return nodes


def _of_slot(slot: Slot) -> Schema:
    """Return the schema of a node, or of nodes by name."""
    value = _NODE
    if slot.named:
        overrides: Schema = {"type": "array", "items": {"type": "string"}}  # of a kind of layers
        value = {"type": "object", "additionalProperties": {"anyOf": [_NODE, overrides]}}
    if slot.optional:
        return {"anyOf": [value, {"type": "null"}]}
    return value


def _plain(annotation: Any) -> Schema:
    """Return the schema of the plain values of a type; of anything where JSON has no such type."""
    try:
        return _of_type(annotation, repr(annotation))
    except (PydanticUserError, PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, TypeError):
        return {}


@cache  # thousands of options have a few hundred types
def _of_type(annotation: Any, _text: str) -> Schema:
    """Return the schema of a type. Unions of the same members in another order are equal, and differ in their text."""
    return _interpolated(TypeAdapter(annotation).json_schema(mode="validation"))


def _interpolated(schema: Schema) -> Schema:
    """Return a copy that allows interpolations as items of lists and values of mappings too."""

    def inside(value: Any) -> Any:
        if isinstance(value, dict):
            return {"anyOf": [_interpolated(value), _INTERPOLATION]}
        return value

    copy = dict(schema)
    copy |= {key: inside(schema[key]) for key in ("items", "additionalProperties") if key in schema}
    if "prefixItems" in schema:
        copy["prefixItems"] = [inside(item) for item in schema["prefixItems"]]
    if "properties" in schema:
        copy["properties"] = {name: inside(value) for name, value in schema["properties"].items()}
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            copy[key] = [_interpolated(member) for member in schema[key]]
    if "$defs" in schema:
        copy["$defs"] = {name: _interpolated(definition) for name, definition in schema["$defs"].items()}
    return copy


def finished(title: str, schema: Schema) -> Schema:
    """Return a schema with the definitions of the types in it at its root, where references look for them."""
    definitions: Schema = {}
    body = _hoisted(schema, definitions)
    result = {"$schema": DIALECT, "title": title, **body}
    if definitions:
        result["$defs"] = definitions
    return result


def _hoisted(value: Any, definitions: Schema) -> Any:
    """Return a copy without the definitions inside. They are put into `definitions`."""
    if isinstance(value, list):
        return [_hoisted(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    for name, definition in (value.get("$defs") or {}).items():
        definitions[name] = _hoisted(definition, definitions)
    copy = {key: _hoisted(inner, definitions) for key, inner in value.items() if key != "$defs"}
    if copy.get("type") == "object" and "title" in copy and "properties" in copy:  # a dataclass, which takes no others
        copy.setdefault("additionalProperties", False)
    return copy
