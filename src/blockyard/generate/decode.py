"""From scores to text: row by row or as a beam, and characters of several tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from blockyard.contracts import Memory, TextTokenizer
from blockyard.generate.stepper import Stats, Stepper, room

_HELD = 8  # tokens without a whole character after which one is given up; UTF-8 needs four bytes at most


def decode(
    model: nn.Module,
    symbols: list[int],
    choose: Callable[[Tensor], int],
    *,
    max_tokens: int,
    cache: bool,
    stats: Stats | None = None,
) -> Iterator[int]:
    """Symbols that follow `symbols`, one per step; `stats` is kept up to date."""
    stats = Stats() if stats is None else stats
    for step in decode_rows(model, [symbols], [choose], max_tokens=max_tokens, cache=cache, stats=stats):
        yield from (symbol for _, symbol in step)


def decode_rows(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    choose: Sequence[Callable[[Tensor], int]],
    *,
    max_tokens: int,
    cache: bool,
    stats: Stats,
    memory: Memory | None = None,
    end: int | None = None,
) -> Iterator[list[tuple[int, int]]]:
    """What follows each prompt, all at once: (row, symbol) of every row that made one in a step.

    All rows take a step together: one with a longer prompt reads on in it while others write already, so
    that every row is what it would be alone, with any mixer. Before `end`, a row stops; where there is one, a row
    without it stops at the model's last place.
    """
    shortest = min(map(len, prompts))
    starts = [list(prompt[:shortest]) for prompt in prompts]
    stepper = Stepper(model, starts, cache=cache, memory=memory, stats=stats, end=end)
    waiting = [list(prompt[shortest:]) for prompt in prompts]
    rooms = [room(model, prompt, max_tokens, end) for prompt in prompts]
    left = list(rooms)
    while any(left):
        scores = stepper.scores()  # (R, V)
        taken, made = [], []
        for row, still in enumerate(left):
            if waiting[row]:
                taken.append(waiting[row].pop(0))
            elif not still:
                taken.append(0)  # a row that is done: nobody reads what follows
            else:
                taken.append(choose[row](scores[row]))
                if taken[-1] == end:
                    left[row] = 0
                else:
                    left[row] -= 1
                    made.append((row, taken[-1]))
                    if not left[row] and rooms[row] < max_tokens:
                        stepper.unfinished()
        stepper.append(taken)
        stepper.made(len(made))
        yield made


class Pieces:
    """Text of symbols as they come; a character of several symbols is held back until it is whole."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer, self._made = tokenizer, list[int]()
        self._begin = self._said = 0  # made[begin:said] is the last piece, for tokenizers whose pieces touch

    def push(self, symbol: int) -> str:
        """What one symbol more lets us read; nothing where it ends in half a character."""
        self._made.append(symbol)
        text = self._tokenizer.decode(self._made[self._begin :])
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._made) - self._said < _HELD:
            return ""
        return self._say(text)

    def rest(self) -> str:
        """What is still held back, when no symbol follows."""
        if self._said == len(self._made):
            return ""
        return self._say(self._tokenizer.decode(self._made[self._begin :]))

    def _say(self, text: str) -> str:
        before = len(self._tokenizer.decode(self._made[self._begin : self._said]))
        self._begin, self._said = self._said, len(self._made)
        return text[before:]


def pieces(tokenizer: TextTokenizer, symbols: Iterator[int]) -> Iterator[str]:
    """The text of a stream of symbols, in whole characters."""
    held = Pieces(tokenizer)
    for symbol in symbols:
        if piece := held.push(symbol):
            yield piece
    if piece := held.rest():
        yield piece
