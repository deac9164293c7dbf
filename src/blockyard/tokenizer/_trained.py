"""Shared parts of tokenizers that wrap one of Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from blockyard.contracts import TextTokenizer, TokenizerState
from blockyard.tokenizer._lookup import LookupTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Trained


@dataclass(kw_only=True, eq=False)
class TrainedTokenizer(LookupTokenizer, TextTokenizer):
    """A tokenizer of the library, which `fit` learns or reads. unfitted: the message before that"""

    unfitted: ClassVar[str]

    def __post_init__(self) -> None:
        self._trained: Trained | None = None

    @property
    def trained(self) -> Trained:
        """The library's tokenizer. Raises ValueError before `fit`."""
        if self._trained is None:
            raise ValueError(self.unfitted)
        return self._trained

    def state(self) -> TokenizerState:
        """Return the tokenizer in the library's own format."""
        if self._trained is None:
            return {}
        return {"tokenizer": json.loads(self._trained.to_str())}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged."""
        from tokenizers import Tokenizer

        try:
            self._trained = whole(Tokenizer.from_str(json.dumps(state["tokenizer"]))) if state else None
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"not the saved state of a {type(self).__name__.lower()} tokenizer: {error}") from error

    def to_tokenizers(self) -> Trained | None:
        """Return a copy; None before `fit`."""
        if self._trained is None:
            return None
        return type(self._trained).from_str(self._trained.to_str())


def whole(tokenizer: Trained) -> Trained:
    """Return the tokenizer without a length to which it would cut or fill every text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
