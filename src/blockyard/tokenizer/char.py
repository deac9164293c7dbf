"""Every character a symbol.

Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks (char-rnn).
Reference: nanoGPT data/shakespeare_char/prepare.py

Before the text is read, the vocabulary is counted as `max_symbols`, which it cannot exceed; after
`fit` it is as large as the training part made it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

from blockyard.contracts import Count, DataSpec, TextTokenizer, TokenSpec
from blockyard.tokenizer._symbols import REPLACEMENT, UNKNOWN, Scale, Tabled, text_tokens


class Char(Tabled, TextTokenizer):
    """Characters of the training part, sorted; all others are symbol 0, read as U+FFFD.

    Options:
        max_symbols: the largest vocabulary, the unknown symbol included; rarer characters fall to it
    """

    def __init__(self, *, max_symbols: Count = 256, scale: Scale = "one") -> None:
        self.max_symbols, self.scale = max_symbols, scale
        self.load_state({})

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per character."""
        return text_tokens(data, len(self._text) if self._fitted else self.max_symbols, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Keep the most frequent characters; of equally frequent ones, the lower code points."""
        counts = Counter[str]()
        for text in texts:
            counts.update(text)
        if len(counts) >= self.max_symbols:
            # Words are cut off by design; of characters one expects to have them all.
            lost = len(counts) - self.max_symbols + 1
            warnings.warn(
                f"{lost} of {len(counts)} characters become the unknown symbol; "
                f"tokenizer.max_symbols={len(counts) + 1} would keep all",
                stacklevel=2,
            )
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        self.load_state({"symbols": "".join(sorted(ranked[: self.max_symbols - 1]))})

    def encode(self, text: str) -> list[int]:
        """One symbol per character."""
        symbol = self._symbol.get
        return [symbol(character, UNKNOWN) for character in text]

    def decode(self, symbols: list[int]) -> str:
        """One character per symbol."""
        return "".join(self._text[symbol] for symbol in symbols)

    def state(self) -> dict[str, Any]:
        """The characters, in the order of their symbols from 1."""
        return {"symbols": "".join(self._text[1:])} if self._fitted else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._fitted = bool(state)
        self._text = [REPLACEMENT, *state.get("symbols", "")]
        self._symbol = {text: number for number, text in enumerate(self._text) if number != UNKNOWN}
