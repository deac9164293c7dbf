"""Whether a tokenizer is the one with which shards of token ids were written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.contracts import TextTokenizer
from blockyard.data._split import sha256
from blockyard.data._token_folder import TOKENIZER, TokenSource
from blockyard.errors import UserError

_OF_MODEL = ("scale",)  # options of a tokenizer that its token ids do not depend on


def describe(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Returns what a manifest records of a tokenizer: its class, and the options that its token ids depend on."""
    declared: tuple[Field[Any], ...] = fields(tokenizer) if is_dataclass(tokenizer) else ()
    names = [each.name for each in declared if each.init]
    cls = type(tokenizer)
    options = {name: getattr(tokenizer, name) for name in names if name not in _OF_MODEL}
    return {"target": f"{cls.__module__}.{cls.__qualname__}", "options": options}


def check_tokenizer(tokenizer: TextTokenizer, sources: Sequence[TokenSource]) -> None:
    """Give the tokenizer what the one of the shards learned. Raises UserError where it is another one.

    A tokenizer that only passes ids through (`reads_ids`) fits all shards.
    """
    if tokenizer.reads_ids:
        return
    for source in sources:
        if not source.manifest:
            if tokenizer.learns and not tokenizer.state():
                raise UserError(
                    f"{source.path} has no manifest that says what its token ids stand for, and this tokenizer would "
                    "learn its own; use tokenizer=ids data.vocabulary=N, or write shards with `blockyard tokenize`"
                )
            continue
        written, own = source.manifest["tokenizer"], describe(tokenizer)
        for key in ("target", "options"):
            if written.get(key) != own[key]:
                raise UserError(
                    f"{source.path} was written with {_named(written)}, this config has {_named(own)}; use the same "
                    "tokenizer, or tokenizer=ids to read the ids alone"
                )
        state = _state(source)
        if tokenizer.state() and tokenizer.state() != state:
            raise UserError(
                f"the vocabulary of {source.path} is not that of the other sources, or of the run; write all "
                "sources with one tokenizer"
            )
        tokenizer.load_state(state)


def _state(source: TokenSource) -> dict[str, Any]:
    file = source.path / TOKENIZER
    try:
        state = read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(state, dict) or sha256([_text(state)]) != source.manifest["tokenizer"].get("sha256"):
        raise UserError(f"{file} is not the one that the shards were written with; write them again")
    return state


def state_hash(tokenizer: TextTokenizer) -> str:
    """Returns the SHA-256 of what a tokenizer learned."""
    return sha256([_text(tokenizer.state())])


def _text(state: dict[str, Any]) -> str:
    return json.dumps(state, sort_keys=True)


def _named(record: dict[str, Any]) -> str:
    """A tokenizer as overrides."""
    name = str(record.get("target", "?")).split(".")[-2:][0]
    options = record.get("options") or {}
    return " ".join([f"tokenizer={name}", *(f"tokenizer.{key}={value}" for key, value in options.items())])
