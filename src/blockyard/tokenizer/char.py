"""Characters as tokens.

Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks (char-rnn).
Reference: nanoGPT data/shakespeare_char/prepare.py

Before `fit` the vocabulary size is `max_symbols`, its upper bound. Afterwards it is the number of characters of the
training split, plus one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockyard.contracts import DataSpec, TextTokenizer, TokenizerState, TokenSpec, Vocabulary
from blockyard.tokenizer._lookup import REPLACEMENT, UNKNOWN, LookupTokenizer, closed_vocabulary, text_tokens

if TYPE_CHECKING:
    import tokenizers

_LONG = 200  # from so many characters on a NumPy table is faster than a dict


@dataclass(kw_only=True, eq=False)
class Char(LookupTokenizer, TextTokenizer):
    """Characters of the training split, sorted; all others are token id 0, decoded to U+FFFD.

    Options:
        max_symbols: maximum vocabulary, including the unknown token, for rarer characters
    """

    max_symbols: Vocabulary = 256

    def __post_init__(self) -> None:
        self.load_state({})

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per character."""
        size = len(self._text) if self._fitted else self.max_symbols
        return text_tokens(data, size, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Keep the most frequent characters. Ties go to the lower code points."""
        counts = Counter[str]()
        for text in texts:
            counts.update(text)
        if len(counts) >= self.max_symbols:
            # A vocabulary of words is truncated by design, while a vocabulary of characters should be complete.
            lost = len(counts) - self.max_symbols + 1
            warnings.warn(
                f"{lost} of {len(counts)} characters become the unknown token; "
                f"tokenizer.max_symbols={len(counts) + 1} would keep all",
                stacklevel=2,
            )
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        self.load_state({"symbols": "".join(sorted(ranked[: self.max_symbols - 1]))})

    def encode(self, text: str) -> list[int]:
        """Return one token id per character."""
        if len(text) < _LONG:
            return [self._ids.get(character, UNKNOWN) for character in text]
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        token_ids: list[int] = self._table[np.minimum(points, len(self._table) - 1)].tolist()
        return token_ids

    def pieces(self, text: str) -> list[str]:
        """Return the characters."""
        return list(text)

    def decode(self, token_ids: list[int]) -> str:
        """Return one character per token id."""
        return "".join(self._text[token_id] for token_id in token_ids)

    def to_tokenizers(self) -> tokenizers.Tokenizer | None:
        """Return a table of the characters; None before `fit`."""
        if self._fitted:
            return closed_vocabulary(self._text[1:], r"[\s\S]")
        return None

    def state(self) -> TokenizerState:
        """Return the characters in the order of their token ids, from 1."""
        if self._fitted:
            return {"symbols": "".join(self._text[1:])}
        return {}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged."""
        characters = state.get("symbols", "" if not state else None)
        if not isinstance(characters, str):
            raise ValueError("not the saved state of a char tokenizer: symbols is not text")
        self._fitted = bool(state)
        self._text = [REPLACEMENT, *characters]
        self._ids = {text: token_id for token_id, text in enumerate(self._text) if token_id != UNKNOWN}
        # By code point. The last entry is for all higher ones.
        self._table = np.full(max(map(ord, self._ids), default=0) + 2, UNKNOWN)
        self._table[[ord(text) for text in self._ids]] = list(self._ids.values())
