"""From a stream of token ids to text in whole characters."""

from __future__ import annotations

from collections.abc import Iterator

from blockyard.contracts import TextTokenizer

_MAX_HELD = 8  # tokens without a whole character after which one is given up; UTF-8 needs four bytes at most


class Detokenizer:
    """Decodes token ids as they arrive and holds a character back until all of its tokens are there."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        # token_ids[start:stop] is the last piece that was returned. It is decoded again with the next one, for
        # tokenizers whose text depends on the token before.
        self._start = self._stop = 0

    def push(self, token_id: int) -> str:
        """Add a token and return the text that became whole, or "" while a character is incomplete."""
        self._token_ids.append(token_id)
        text = self._tokenizer.decode(self._token_ids[self._start :])
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._token_ids) - self._stop < _MAX_HELD:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """Return what is still held back, after the last token."""
        if self._stop == len(self._token_ids):
            return ""
        return self._emit(self._tokenizer.decode(self._token_ids[self._start :]))

    def _emit(self, text: str) -> str:
        previous = len(self._tokenizer.decode(self._token_ids[self._start : self._stop]))
        self._start, self._stop = self._stop, len(self._token_ids)
        return text[previous:]


def detokenize(tokenizer: TextTokenizer, token_ids: Iterator[int]) -> Iterator[str]:
    """Yield the text of a stream of token ids in whole characters."""
    detokenizer = Detokenizer(tokenizer)
    for token_id in token_ids:
        if text := detokenizer.push(token_id):
            yield text
    if text := detokenizer.flush():
        yield text
