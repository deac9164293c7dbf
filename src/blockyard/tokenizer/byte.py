"""Every byte of the UTF-8 text a symbol: 256 of them, nothing to learn, nothing unknown.

Source: Xue et al. 2022, ByT5: Towards a Token-Free Future (arXiv 2105.13626).
Reference: transformers ByT5Tokenizer (without its special symbols)
"""

from __future__ import annotations

from collections.abc import Iterable

from blockyard.contracts import DataSpec, TextTokenizer, TokenSpec
from blockyard.tokenizer._symbols import Scale, Tabled, text_tokens


class Byte(Tabled, TextTokenizer):
    """UTF-8 bytes. Bytes that form no character read as U+FFFD."""

    def __init__(self, *, scale: Scale = "one") -> None:
        self.scale = scale

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per byte."""
        return text_tokens(data, 256, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Nothing to learn."""

    def encode(self, text: str) -> list[int]:
        """One symbol per byte."""
        return list(text.encode("utf-8"))

    def decode(self, symbols: list[int]) -> str:
        """The text of the bytes."""
        return bytes(symbols).decode("utf-8", errors="replace")
