"""A tokenizer from a file of Hugging Face's `tokenizers`, of a pre-trained model or of your own.

Source: the format `tokenizer.json` of Hugging Face's tokenizers
Reference: tokenizers.Tokenizer.from_file

The hash of the file's content and its vocabulary are written into the config as it is composed. The hash is part of a
run's identity, the path is not. The whole tokenizer is saved with the run, so that the run needs the file no more.
Special tokens that a post-processor would add around a text ([CLS], </s>) are not added, and texts are neither cut nor
filled to a length that the file names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_bytes
from blockyard.contracts import CountOrZero, DataSpec, Text, TokenSpec, Vocabulary
from blockyard.errors import UserError, first_line
from blockyard.tokenizer._lookup import text_tokens
from blockyard.tokenizer._trained import TrainedTokenizer, whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Trained

_LARGEST = 200_000_000  # bytes of a file, at most


@dataclass(kw_only=True, eq=False)
class Pretrained(TrainedTokenizer):
    """Token ids of a tokenizer file.

    Options:
        path: a tokenizer.json
        sha256: hash of the file's content; null reads it from the file; a file with another hash is refused
        vocab_size: number of token ids of the model; null means the number of the file; further ids occur in no text
        mask_id: the token id that hides others from a model that fills them in; null adds one
        start_id: the token id in front of a text that a decoder writes from a source; null adds one
        end_id: the token id behind such a text; null adds one
    """

    incidental = frozenset({"path"})
    unfitted = "this tokenizer's file is not read yet"

    path: Text = "tokenizer.json"
    sha256: Text | None = None
    vocab_size: Vocabulary | None = None
    mask_id: CountOrZero | None = None
    start_id: CountOrZero | None = None
    end_id: CountOrZero | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.start_id is None) != (self.end_id is None):
            raise ValueError("tokenizer.start_id and tokenizer.end_id go together; set both or neither")
        for name in ("mask_id", "start_id", "end_id"):
            value = getattr(self, name)
            if value is not None and self.vocab_size is not None and value >= self.vocab_size:
                raise ValueError(f"tokenizer.{name}={value} is not below tokenizer.vocab_size={self.vocab_size}")

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return the tokens of a text. Raises ValueError if the vocabulary was never read from the file."""
        if self.vocab_size is None:
            raise ValueError(f"tokenizer.vocab_size is unknown: {self.path} was not read")
        tokens = text_tokens(data, self.vocab_size, self.scale)
        if tokens.start is not None and self.start_id is not None:
            tokens = replace(tokens, vocabulary=self.vocab_size, start=self.start_id, end=self.end_id)
        if self.mask_id is not None:
            tokens = replace(tokens, mask=self.mask_id)
        return tokens

    def fit(self, texts: Iterable[str]) -> None:
        """Read the file. Raises UserError if it is missing, damaged, or has another hash than the config."""
        content, trained = read_tokenizer(self.path)
        actual = hashlib.sha256(content).hexdigest()
        if self.sha256 is not None and actual != self.sha256:
            raise UserError(
                f"tokenizer.path={self.path}: its content has changed (SHA-256 {actual[:12]}, expected "
                f"{self.sha256[:12]}); restore the file, or set tokenizer.sha256=null"
            )
        self._trained = whole(trained)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens around it."""
        return list(self.trained.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return str(self.trained.decode(token_ids))


def read_tokenizer(path: str) -> tuple[bytes, Trained]:
    """Return the content of a file and its tokenizer. Raises UserError if it is missing or damaged."""
    from tokenizers import Tokenizer

    where = Path(os.path.expanduser(path))
    try:
        content = read_bytes(where, limit=_LARGEST)
    except FileNotFoundError:
        raise UserError(
            f"tokenizer.path={path}: {where.absolute()} does not exist; use the tokenizer.json of a model"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer.path={path} cannot be read: {first_line(error)}") from error
    try:
        return content, Tokenizer.from_buffer(content)
    except BaseException as error:  # the library raises nothing narrower, a panic of Rust among it
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise UserError(f"tokenizer.path={path} is damaged or no tokenizer.json: {first_line(error)}") from error
