"""UTF-8 bytes as tokens: a vocabulary of 256, nothing to fit, nothing unknown.

Source: Xue et al. 2022, ByT5: Towards a Token-Free Future (arXiv 2105.13626).
Reference: transformers ByT5Tokenizer (without its special tokens)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from blockyard.contracts import DataSpec, TextTokenizer, TokenSpec
from blockyard.tokenizer._lookup import LookupTokenizer, text_tokens

if TYPE_CHECKING:
    import tokenizers

# Bytes that GPT-2's byte-level tokenizers write as the character of that number; the others follow from 256 on.
_SHOWN = (*range(33, 127), *range(161, 173), *range(174, 256))


class Byte(LookupTokenizer, TextTokenizer):
    """UTF-8 bytes. Invalid UTF-8 is decoded to U+FFFD."""

    learns: ClassVar[bool] = False

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per byte."""
        return text_tokens(data, 256, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Do nothing: the vocabulary is fixed."""

    def encode(self, text: str) -> list[int]:
        """Return one token id per byte."""
        return list(text.encode("utf-8"))

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of the bytes."""
        return bytes(token_ids).decode("utf-8", errors="replace")

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """Return byte-level pair encoding without merges."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        hidden = [byte for byte in range(256) if byte not in _SHOWN]
        characters = {chr(256 + number): byte for number, byte in enumerate(hidden)}
        tokenizer = Tokenizer(models.BPE(characters | {chr(byte): byte for byte in _SHOWN}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
