"""Facts of tokenizers that a config records as it is composed: hash and vocabulary of a file, and options `auto`.

A frozen config then has them, and a run is loaded where the tokenizer's file is not.
"""

from __future__ import annotations

import hashlib

from pydantic import TypeAdapter, ValidationError

from blockyard.config.instantiate import instantiate
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import Issue, Text
from blockyard.errors import UserError
from blockyard.tokenizer.pretrained import read_tokenizer

TOKENIZERS = ("tokenizer", "source_tokenizer")  # config keys
PRETRAINED = "blockyard.tokenizer.pretrained.Pretrained"


def fill(config: Node, issues: list[Issue]) -> None:
    """Record the facts of the tokenizers of a config in place. A file that cannot be used is an issue."""
    for key in TOKENIZERS:
        _record_file(config.get(key), key, issues)
        _resolve_auto(config, key)


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
