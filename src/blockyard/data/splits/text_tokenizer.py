"""Checks of the tokenizer that data of texts is given."""

from __future__ import annotations

from blockyard.contracts import DataSpec, TextTokenizer, Tokenizer


def text_tokenizer(tokenizer: Tokenizer, subject: str = "text data needs") -> TextTokenizer:
    """Return the tokenizer. Raises ValueError for one that does not read texts.

    subject: the beginning of the message, with its verb
    """
    if not isinstance(tokenizer, TextTokenizer):
        raise ValueError(f"{subject} a text tokenizer, not {type(tokenizer).__name__}")
    return tokenizer


def ends_of(tokenizer: Tokenizer, spec: DataSpec) -> tuple[int, int]:
    """Return the start and the end token of a tokenizer. Raises ValueError for a tokenizer without them.

    spec: of the data
    """
    tokens = tokenizer.spec(spec)
    if tokens.start is None or tokens.end is None:
        raise ValueError(f"{type(tokenizer).__name__} has no start and end token; see TokenSpec.start")
    return tokens.start, tokens.end
