"""Byte-pair encoding over bytes: frequent neighbours are merged until the vocabulary is full.

Source: Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units (arXiv 1508.07909);
    Radford et al. 2019 (GPT-2), for bytes in place of characters.
Reference: Hugging Face tokenizers, models.BPE with ByteLevel

Every text can be written and read back: what no merge covers stays bytes. Merges are learned on the
training part only and kept in BLOCKYARD_CACHE (or the platform's cache folder) under a hash of that
text, the vocabulary size and the library's version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from blockyard.contracts import DataSpec, TextTokenizer, TokenSpec
from blockyard.data._split import sha256
from blockyard.tokenizer._cache import cache_dir, keep
from blockyard.tokenizer._symbols import Scale, Tabled, text_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Trained


class BPE(Tabled, TextTokenizer):
    """Byte-level pair encoding, trained by Hugging Face's `tokenizers`.

    Options:
        vocab_size: the largest vocabulary, the 256 bytes included; a short text may fill less
    """

    def __init__(self, *, vocab_size: Annotated[int, Ge(256)] = 1024, scale: Scale = "one") -> None:
        self.vocab_size, self.scale = vocab_size, scale
        self._trained: Trained | None = None

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per merged run of bytes."""
        return text_tokens(data, self._trained.get_vocab_size() if self._trained else self.vocab_size, self.scale)

    def fit(self, texts: Iterable[str]) -> None:
        """Learn the merges, or take them from the cache."""
        import tokenizers

        texts = list(texts)
        name = sha256([*texts, str(self.vocab_size), tokenizers.__version__])
        path = cache_dir() / "bpe" / f"{name[:32]}.json"
        try:
            self.load_state(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # not there, or damaged: learned again
            self._trained = None
        if self._trained is None:
            self._trained = _train(texts, self.vocab_size)
            keep(path, json.dumps(self.state()))

    def encode(self, text: str) -> list[int]:
        """Symbols of the merged bytes."""
        return self._known().encode(text).ids

    def decode(self, symbols: list[int]) -> str:
        """The text of the bytes; bytes that form no character read as U+FFFD."""
        return self._known().decode(symbols)

    def state(self) -> dict[str, Any]:
        """The merges, in the library's own form."""
        return {"tokenizer": json.loads(self._trained.to_str())} if self._trained else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. Raises ValueError where the state is damaged."""
        from tokenizers import Tokenizer

        try:
            self._trained = Tokenizer.from_str(json.dumps(state["tokenizer"])) if state else None
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"this is no saved bpe tokenizer: {error}") from error

    def _known(self) -> Trained:
        if self._trained is None:
            raise ValueError("this bpe tokenizer has learned nothing yet; fit it or load its state")
        return self._trained


def _train(texts: list[str], vocab_size: int) -> Trained:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    return trained
