"""The most frequent words, punctuation marks and runs of whitespace as tokens.

Source: Bengio et al. 2003, A Neural Probabilistic Language Model (its closed vocabulary);
    Radford et al. 2019 (GPT-2), for keeping the space in front of a word with it.
Reference: torchtext.vocab
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from blockyard.contracts import DataSpec, TextTokenizer, TokenizerState, TokenSpec, Vocabulary
from blockyard.tokenizer._lookup import REPLACEMENT, UNKNOWN, LookupTokenizer, closed_vocabulary, text_tokens

if TYPE_CHECKING:
    import tokenizers

# ` ?word`, ` ?marks`, or whitespace. The matches of a text concatenate to the text.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s")


@dataclass(kw_only=True, eq=False)
class Word(LookupTokenizer, TextTokenizer):
    """Words of the training split; all others are token id 0, decoded to U+FFFD.

    Bits per byte are too optimistic on text with unknown words: an unknown word costs one prediction and cannot be
    recovered.

    Options:
        max_words: maximum vocabulary, including the unknown token, for rarer words
    """

    max_words: Vocabulary = 8192

    def __post_init__(self) -> None:
        self.load_state({})

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per word, mark or run of whitespace."""
        size = len(self._text) if self._fitted else self.max_words
        return text_tokens(data, size, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Keep the most frequent words. Ties go to the first in sorted order."""
        counts = Counter[str]()
        for text in texts:
            counts.update(WORD.findall(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.load_state({"words": ranked[: self.max_words - 1]})

    def encode(self, text: str) -> list[int]:
        """Return one token id per word."""
        return [self._ids.get(word, UNKNOWN) for word in self.pieces(text)]

    def pieces(self, text: str) -> list[str]:
        """Return the words, marks and runs of whitespace."""
        return WORD.findall(text)

    def decode(self, token_ids: list[int]) -> str:
        """Return the words, concatenated."""
        return "".join(self._text[token_id] for token_id in token_ids)

    def to_tokenizers(self) -> tokenizers.Tokenizer | None:
        """Return a table of the words; None before `fit`."""
        if self._fitted:
            return closed_vocabulary(self._text[1:], _pattern())
        return None

    def state(self) -> TokenizerState:
        """Return the words in the order of their token ids, from 1."""
        return {"words": self._text[1:]} if self._fitted else {}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged."""
        texts = state.get("words", [] if not state else None)
        if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            raise ValueError("not the saved state of a word tokenizer: words is not a list of texts")
        self._fitted = bool(state)
        self._text = [REPLACEMENT, *texts]
        self._ids = {text: token_id for token_id, text in enumerate(self._text) if token_id != UNKNOWN}


@cache
def _pattern() -> str:
    """Return `WORD` as a pattern of Oniguruma."""
    # Its own classes of words and spaces have other characters than Python's, so that the ranges are written out.
    surrogates = range(0xD800, 0xE000)
    characters = "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in surrogates)

    def ranges(kind: str) -> str:
        runs = re.findall(kind, characters)
        return "".join(f"\\x{{{ord(run[0]):x}}}-\\x{{{ord(run[-1]):x}}}" for run in runs)

    word = ranges(r"\w+")
    space = ranges(r"\s+")
    return f" ?[{word}]+| ?[^{word}{space}]+|[{space}]+(?![^{space}])|[{space}]"
