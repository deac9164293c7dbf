"""Refuse to write texts for a split that has nothing to compare them with. Decoding is not imported for this."""

from __future__ import annotations

from blockyard.contracts import CodeTokenizer, ReadsOutputs, Split, TextPairs, TextTokenizer, Tokenizer


def refusal(split: Split, tokenizer: Tokenizer) -> str | None:
    """Return why a split has nothing to compare written texts with, or None."""
    name = type(split).__name__
    if not isinstance(tokenizer, TextTokenizer | CodeTokenizer):
        return f"{type(tokenizer).__name__} reads no text and no codes that a model could write"
    if isinstance(tokenizer, CodeTokenizer) and not isinstance(split, ReadsOutputs):
        return f"{name} has no judge (`ReadsOutputs`) of what is written"
    if not isinstance(split, TextPairs | ReadsOutputs):
        return f"{name} gives no texts (`TextPairs`) to compare what is written with"
    return None
