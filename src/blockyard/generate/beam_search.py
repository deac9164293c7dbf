"""Beam search: the likeliest whole row that a few hypotheses at a time find.

Source: Graves 2012, Sequence Transduction with Recurrent Neural Networks (arXiv 1211.3711), algorithm 1; dividing by
a power of the length as in Wu et al. 2016, Google's Neural Machine Translation System (arXiv 1609.08144), eq. 14,
without its constant 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from blockyard.contracts import Memory
from blockyard.generate.sampling import finite
from blockyard.generate.stepper import Stats, Stepper, room


def beam_search(
    model: nn.Module,
    prompt: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    cache: bool,
    stats: Stats,
    length_penalty: float = 1.0,
    memory: Memory | None = None,
    end: int | None = None,
) -> Iterator[int]:
    """What `beam_rows` finds for one prompt, symbol by symbol."""
    settings = {"width": width, "max_tokens": max_tokens, "cache": cache, "stats": stats}
    for step in beam_rows(model, [prompt], **settings, length_penalty=length_penalty, memory=memory, end=end):
        yield from (symbol for _, symbol in step)


def beam_rows(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    max_tokens: int,
    cache: bool,
    stats: Stats,
    length_penalty: float = 1.0,
    memory: Memory | None = None,
    end: int | None = None,
) -> Iterator[list[tuple[int, int]]]:
    """(row, symbol) of the best row for each prompt, each as soon as all that may still win agree on it.

    The score is the sum of log probabilities, divided by the length ** length_penalty, `end` counted; a row ends
    before `end`, after `max_tokens`, or, where there is an end, at the model's last place. A search is over when
    `width` hypotheses have ended or none that goes on can beat the best, so that a width of 1 is greedy; with a
    `width` that leaves nothing out the best row is found. All prompts take a step together, as in `decode_rows`.
    """
    shortest = min(map(len, prompts))
    starts = [list(prompt[:shortest]) for prompt in prompts]
    stepper = Stepper(model, starts, cache=cache, memory=memory, stats=stats, end=end)
    searches = [
        _Search(prompt[shortest:], width, room(model, prompt, max_tokens, end), length_penalty, end)
        for prompt in prompts
    ]
    while any(search.live for search in searches):
        logs = torch.log_softmax(finite(stepper.scores()), -1)  # (R, V)
        order, taken, said, first = list[int](), list[int](), list[tuple[int, int]](), 0
        for number, search in enumerate(searches):
            if not (count := len(search.live)):
                continue
            for row, symbol in search.grow(logs[first : first + count]):
                order.append(first + row)
                taken.append(symbol)
            first += count
            said += [(number, symbol) for symbol in search.fresh()]
            if search.full and search.room < max_tokens:
                stepper.unfinished()
        stepper.made(len(said))
        if order:
            stepper.reorder(order)
            stepper.append(taken)
        yield said


class _Search:
    """The hypotheses of one prompt: (log probability, symbols) of those that go on, the best of those that ended."""

    def __init__(
        self, waiting: Sequence[int], width: int, room_left: int, length_penalty: float, end: int | None
    ) -> None:
        self.width, self.room, self.power, self.end = width, room_left, length_penalty, end
        self.live: list[tuple[float, list[int]]] = [(0.0, [])] if room_left else []
        self.best: tuple[float, list[int]] | None = None
        self.full = False  # the best row ends at the last place and has no end symbol
        self._waiting, self._ended, self._length, self._said = list(waiting), 0, 0, 0

    def grow(self, logs: Tensor) -> list[tuple[int, int]]:
        """Let the hypotheses go on, by log probabilities (R, V): (row before, symbol) of each that is left."""
        if self._waiting:
            return [(0, self._waiting.pop(0))]
        self._length += 1
        totals = logs.double() + torch.tensor([total for total, _ in self.live]).double()[:, None]  # (R, V)
        values, places = totals.flatten().topk(min(2 * self.width, totals.numel()))
        grown: list[tuple[float, list[int]]] = []
        kept: list[tuple[int, int]] = []
        for rank, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            row, symbol = divmod(place, totals.shape[1])
            if value == -float("inf"):
                break
            if symbol == self.end:
                if rank < self.width:
                    self._ended += 1
                    self._offer(value, self.live[row][1])
            elif len(grown) < self.width:
                grown.append((value, [*self.live[row][1], symbol]))
                kept.append((row, symbol))
        if self._length == self.room and grown:
            self.full = self._offer(*grown[0])
        over = self._length == self.room or self._ended >= self.width or not grown or self._decided(grown[0][0])
        self.live = [] if over else grown
        return [] if over else kept

    def _offer(self, total: float, symbols: list[int]) -> bool:
        score = total / self._length**self.power
        if self.best is not None and score <= self.best[0]:
            return False
        self.best = (score, symbols)
        return True

    def _decided(self, total: float) -> bool:
        # No total rises any more, so that this is the best that any of them may come to.
        hope = total / (self.room if self.power > 0 else self._length) ** self.power
        return self.best is not None and self.best[0] >= hope

    def fresh(self) -> list[int]:
        """Symbols that are certain now and were not before."""
        rows = [symbols for _, symbols in self.live] + ([self.best[1]] if self.best else [])
        agreed = _agreed(rows) if self.live else len(rows[0])
        before, self._said = self._said, max(self._said, agreed)
        return rows[0][before:agreed]


def _agreed(rows: list[list[int]]) -> int:
    """How many symbols all rows begin with alike."""
    count = min(map(len, rows))
    return next((n for n in range(count) if any(row[n] != rows[0][n] for row in rows)), count)
