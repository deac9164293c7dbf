"""Token ids of texts that were encoded elsewhere; their text is their number.

Source: Bengio et al. 2003, A Neural Probabilistic Language Model, for the embedding table
Reference: torch.nn.Embedding

For data=tokens: its files or options give the vocabulary. Prompts and generated texts are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from blockyard.contracts import DataSpec, TextTokenizer, TokenSpec
from blockyard.errors import UserError
from blockyard.tokenizer._lookup import LookupTokenizer, text_tokens


class Ids(LookupTokenizer, TextTokenizer):
    """Passes the token ids of a text through. A text is their numbers with spaces between them."""

    reads_ids: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per id. Raises ValueError for data without token ids, or without their number."""
        if data.vocabulary is None:
            raise ValueError(
                "tokenizer=ids reads token ids, and the data gives no number of them; set data.vocabulary=N of "
                "data=tokens, or read texts with another tokenizer"
            )
        return text_tokens(data, data.vocabulary, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Raise UserError: the data gives texts in place of token ids."""
        raise UserError("tokenizer=ids reads token ids (data=tokens), this data gives texts; use another tokenizer")

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text. Raises UserError for anything else in it."""
        try:
            return [int(number) for number in text.split()]
        except ValueError as error:
            raise UserError(f"tokenizer=ids reads token ids: numbers with spaces between them ({error})") from error

    def decode(self, token_ids: list[int]) -> str:
        """Return the numbers, each with a space in front."""
        return "".join(f" {token_id}" for token_id in token_ids)
