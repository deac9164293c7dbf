"""Text while it is generated: iterators that decode token ids as they come."""

from __future__ import annotations

from collections.abc import Iterator

from blockyard.contracts import TextTokenizer
from blockyard.generate.detokenize import Detokenizer
from blockyard.generate.request import GeneratedText
from blockyard.generate.stats import Stats
from blockyard.runs.load import Loaded


class TextStream:
    """Several texts being generated: iterate over it for (index, new text), then read `texts` and `stats`."""

    def __init__(
        self, loaded: Loaded, texts: list[GeneratedText], steps: Iterator[list[tuple[int, int]]], stats: Stats
    ) -> None:
        self.loaded, self.texts, self.stats, self._steps = loaded, texts, stats, steps

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """New text in whole characters, as it comes; the parts of one index add up to its `text`."""
        assert isinstance(self.loaded.tokenizer, TextTokenizer)
        detokenizers = [Detokenizer(self.loaded.tokenizer) for _ in self.texts]
        for step in self._steps:
            for index, token_id in step:
                self.texts[index].token_ids.append(token_id)
                yield from self._emit(index, detokenizers[index].push(token_id))
        for index, detokenizer in enumerate(detokenizers):
            yield from self._emit(index, detokenizer.flush())

    def _emit(self, index: int, text: str) -> Iterator[tuple[int, str]]:
        if text:
            self.texts[index].text += text
            yield index, text


class Generation:
    """One text being generated: iterate over it for new text, then read `text`, `token_ids` and `stats`."""

    def __init__(self, stream: TextStream) -> None:
        self.stream, self.stats, self.loaded = stream, stream.stats, stream.loaded
        self.prompt, self.prompt_ids = stream.texts[0].prompt, stream.texts[0].prompt_ids
        self.token_ids = stream.texts[0].token_ids  # generated so far

    def __iter__(self) -> Iterator[str]:
        """New text in whole characters; the parts add up to `text`."""
        return (text for _, text in self.stream)

    @property
    def text(self) -> str:
        """The text generated so far."""
        return self.stream.texts[0].text
