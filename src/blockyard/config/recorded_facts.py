"""Facts of files that a config records as it is composed: of tokenizers, trained weights and a teacher.

A frozen config then identifies them, whatever is at their paths later, and a run is loaded where a tokenizer's file is
not.
"""

from __future__ import annotations

import hashlib

from pydantic import TypeAdapter, ValidationError

from blockyard.config.build import TEACHER
from blockyard.config.instantiate import instantiate
from blockyard.config.placed_nodes import fits, options_of
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of, locate
from blockyard.contracts import Issue, Text
from blockyard.errors import UserError
from blockyard.tokenizer.pretrained import read_tokenizer

TOKENIZERS = ("tokenizer", "source_tokenizer")  # config keys
PRETRAINED = "blockyard.tokenizer.pretrained.Pretrained"


def fill(config: Node, issues: list[Issue]) -> None:
    """Record the facts in place: hashes, vocabularies, and options `auto`. A file that cannot be used is an issue."""
    for key in TOKENIZERS:
        _record_file(config.get(key), key, issues)
        _resolve_auto(config, key)
    _fill_init(config, issues)
    _fill_teacher(config, issues)


def _record_file(node: object, key: str, issues: list[Issue]) -> None:
    """Put hash and vocabulary of a pretrained tokenizer's file into its node.

    A file that is missing, damaged or too large for its model is an issue.
    """
    if not isinstance(node, dict) or node.get("_target_") != PRETRAINED or node.get("sha256") is not None:
        return
    try:
        path = TypeAdapter(Text).validate_python(node.get("path"), strict=True)
    except ValidationError:
        return  # the schema says so
    try:
        content, tokenizer = read_tokenizer(path)
    except UserError as error:
        _, _, reason = str(error).partition(path)
        issues.append(Issue(f"{key}.path", f"{path}{reason}"))
        return
    size = tokenizer.get_vocab_size()
    vocabulary = node.get("vocab_size")
    if isinstance(vocabulary, int) and vocabulary < size:
        text = f"{vocabulary} is less than the {size} token ids of {path}"
        issues.append(Issue(f"{key}.vocab_size", text, [f"{key}.vocab_size={size}"]))
        return
    node["sha256"] = hashlib.sha256(content).hexdigest()
    if vocabulary is None:
        node["vocab_size"] = size


def _resolve_auto(config: Node, key: str) -> None:
    """Put the values of options that are `auto` into the config. They follow from the data."""
    node = config.get(key)
    if not is_node(node) or "auto" not in node.values():
        return
    allow = allow_of(config)
    try:
        data = instantiate(config["data"], allow).spec
        read = data if key == "tokenizer" else data.source
        config[key] = {**node, **instantiate(node, allow).resolved(read)}
    except Exception:  # a class of the user's own may fail in any way; `check` says so
        return


def _fill_init(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the weights that a run starts from into the node `init`."""
    node = config.get("init")
    if not is_node(node):
        return
    declared = options_of(node, allow_of(config))
    if not declared or not all(fits(node, name, declared) for name in node):
        return  # `check` says so
    try:
        config["init"] = locate(str(node["_target_"])).resolved(node, _outputs(config))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("init.from", str(error).removeprefix("init.from: ").removeprefix("init.from=")))
    except (ValueError, AttributeError):
        return  # a class of the user's own


def _fill_teacher(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the model that teaches into the node `objective`."""
    node = config.get("objective")
    if not is_node(node) or node.get("teacher") is None:
        return
    declared = options_of(node, allow_of(config))
    keys = [key for key in ("teacher", "teacher_sha256") if key in node]
    if not all(fits(node, key, declared) for key in keys):
        return  # `check` says so
    try:
        config["objective"] = locate(TEACHER).resolved(node, _outputs(config))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("objective.teacher", str(error).removeprefix("objective.teacher=")))


def _outputs(config: Node) -> str:
    """Return the folder of runs. A run is found in it by its name."""
    return str(config.get("outputs") or "outputs")
