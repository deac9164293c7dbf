"""What a config records of a tokenizer's file as it is composed: the hash of its content, and its vocabulary.

A frozen config then has both, and a run is loaded where the file is not.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeGuard

from pydantic import TypeAdapter, ValidationError

from blockyard.contracts import Issue, Text
from blockyard.errors import UserError
from blockyard.tokenizer.pretrained import read_tokenizer

TARGET = "blockyard.tokenizer.pretrained.Pretrained"
KEYS = ("tokenizer", "source_tokenizer")


def record_files(config: dict[str, Any], issues: list[Issue]) -> None:
    """Fill in what a file says; a file that is missing, damaged or too large for its model is an issue."""
    for key in KEYS:
        node = config.get(key)
        if not isinstance(node, dict) or node.get("_target_") != TARGET or node.get("sha256") is not None:
            continue
        path = node.get("path")
        if not _is_text(path):
            continue  # the schema says so
        try:
            content, tokenizer = read_tokenizer(path)
        except UserError as error:
            _, _, reason = str(error).partition(path)
            issues.append(Issue(f"{key}.path", f"{path}{reason}"))
            continue
        size = tokenizer.get_vocab_size()
        wanted = node.get("vocab_size")
        if isinstance(wanted, int) and wanted < size:
            text = f"{wanted} is less than the {size} token ids of {path}"
            issues.append(Issue(f"{key}.vocab_size", text, [f"{key}.vocab_size={size}"]))
            continue
        node["sha256"] = hashlib.sha256(content).hexdigest()
        if wanted is None:
            node["vocab_size"] = size


def _is_text(path: object) -> TypeGuard[str]:
    try:
        TypeAdapter(Text).validate_python(path, strict=True)
    except ValidationError:
        return False
    return True
