"""The most frequent words, marks and runs of space, each a symbol.

Source: Bengio et al. 2003, A Neural Probabilistic Language Model (its closed vocabulary);
    Radford et al. 2019 (GPT-2), for keeping the space in front with the word.
Reference: torchtext.vocab
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from blockyard.contracts import Count, DataSpec, TextTokenizer, TokenSpec
from blockyard.tokenizer._symbols import REPLACEMENT, UNKNOWN, Scale, Tabled, text_tokens

# ` ?word`, ` ?marks`, or space. The pieces of a text joined give the text: nothing is lost but what is unknown.
PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s")


class Word(Tabled, TextTokenizer):
    """Words of the training part; all others are symbol 0, read as U+FFFD.

    Bits per byte flatter it where there are unknown words: a whole word then costs one guess of
    "unknown", and cannot be read back.

    Options:
        max_words: the largest vocabulary, the unknown symbol included; rarer words fall to it
    """

    def __init__(self, *, max_words: Count = 8192, scale: Scale = "one") -> None:
        self.max_words, self.scale = max_words, scale
        self.load_state({})

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per piece."""
        return text_tokens(data, len(self._text) if self._fitted else self.max_words, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Keep the most frequent pieces; of equally frequent ones, the first in sorted order."""
        counts = Counter[str]()
        for text in texts:
            counts.update(PIECE.findall(text))
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        self.load_state({"words": ranked[: self.max_words - 1]})

    def encode(self, text: str) -> list[int]:
        """One symbol per piece."""
        symbol = self._symbol.get
        return [symbol(piece, UNKNOWN) for piece in PIECE.findall(text)]

    def decode(self, symbols: list[int]) -> str:
        """The pieces joined."""
        return "".join(self._text[symbol] for symbol in symbols)

    def state(self) -> dict[str, Any]:
        """The words, in the order of their symbols from 1."""
        return {"words": self._text[1:]} if self._fitted else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._fitted = bool(state)
        self._text = [REPLACEMENT, *state.get("words", [])]
        self._symbol = {text: number for number, text in enumerate(self._text) if number != UNKNOWN}
