"""The cost of a generation: tokens, seconds and bytes of cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """The cost of a generation.

    tokens: generated, over all sequences, without end tokens and discarded hypotheses; steps: forward passes
    seconds: from the first forward pass of each batch or prompt to its last token; first_seconds: until the first token
    method: the source of the past in each step, as text
    cache_bytes: kept at the end, over all sequences, also if they came one after the other; None without a cache
    cache_bytes_per_token: added by the last token of a sequence: 0 for a state of constant size or a full window; None
        without a cache
    cuts: the number of times that the sequences were cut to half a context
    unfinished: sequences that reached the model's maximum length without an end token; max_length: that length
    """

    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cache_bytes: int | None = None
    cache_bytes_per_token: float | None = None
    cuts: int = 0
    unfinished: int = 0
    max_length: int = 0
    method: str = "full recomputation"

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def count(self, tokens: int, seconds: float) -> None:
        """Add generated tokens and the time since the last ones; the first tokens set `first_seconds`."""
        self.tokens += tokens
        self.seconds += seconds
        if self.tokens:
            self.first_seconds = self.first_seconds or self.seconds

    def __str__(self) -> str:
        parts = [_counted(self.tokens, "token")]
        if self.steps != self.tokens:
            parts[0] += f" in {_counted(self.steps, 'step')}"
        parts += [f"{self.tokens_per_second:,.1f} tokens/s", self.method]
        if self.cache_bytes_per_token:
            parts.append(f"{self.cache_bytes_per_token:,.0f} cache bytes per token")
        elif self.cache_bytes_per_token is not None:
            parts.append(f"{self.cache_bytes or 0:,} cache bytes at any length")
        if self.cuts:
            parts.append(f"sequence cut {self.cuts} times")
        if self.unfinished:
            sequences = _counted(self.unfinished, "sequence")
            parts.append(f"{sequences} reached the maximum length of {self.max_length} without an end token")
        return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"
