"""Byte-level byte-pair encoding: frequent neighbours are merged until the vocabulary is full.

Source: Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units (arXiv 1508.07909);
    Radford et al. 2019 (GPT-2), for bytes in place of characters.
Reference: Hugging Face tokenizers, models.BPE with ByteLevel

Every text can be encoded and decoded: bytes that no merge covers stay bytes. Merges are learned on the training
split only and cached in BLOCKYARD_CACHE (or the platform's cache folder) under a hash of that text, the
vocabulary size and the library's version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from blockyard.atomic_files import read_json
from blockyard.contracts import DataSpec, TokenSpec, Vocabulary
from blockyard.data.files.cache import cache_dir
from blockyard.data.files.digest import sha256
from blockyard.tokenizer._cache import save
from blockyard.tokenizer._lookup import text_tokens
from blockyard.tokenizer._trained import TrainedTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Trained


@dataclass(kw_only=True, eq=False)
class BPE(TrainedTokenizer):
    """Byte-level pair encoding, trained by Hugging Face's `tokenizers`.

    Options:
        vocab_size: maximum vocabulary, including the 256 bytes; a short text may yield a smaller one
    """

    unfitted = "this bpe tokenizer is not fitted to data"

    vocab_size: Annotated[Vocabulary, Ge(256)] = 1024

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per merged run of bytes."""
        size = self._trained.get_vocab_size() if self._trained else self.vocab_size
        return text_tokens(data, size, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Learn the merges, or load them from the cache."""
        import tokenizers

        texts = list(texts)
        name = sha256([*texts, str(self.vocab_size), tokenizers.__version__])
        path = cache_dir() / "bpe" / f"{name[:32]}.json"
        try:
            self.load_state(read_json(path))
        except (OSError, ValueError):  # missing or damaged: train again
            self._trained = None
        if self._trained is None:
            self._trained = _train(texts, self.vocab_size)
            save(path, json.dumps(self.state()))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of the merged bytes."""
        return self.trained.encode(text).ids

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of the bytes; invalid UTF-8 becomes U+FFFD."""
        return self.trained.decode(token_ids)


def _train(texts: list[str], vocab_size: int) -> Trained:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
