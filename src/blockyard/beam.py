"""Beam search: the likeliest whole row that a few hypotheses at a time find.

Source: Graves 2012, Sequence Transduction with Recurrent Neural Networks (arXiv 1211.3711), algorithm 1; dividing by
a power of the length as in Wu et al. 2016, Google's Neural Machine Translation System (arXiv 1609.08144), eq. 14,
without its constant 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from blockyard.choosing import finite
from blockyard.contracts import Memory
from blockyard.stepping import Stats, Stepper


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
    """Symbols of the row with the best score, each as soon as all that may still win agree on it.

    The score is the sum of log probabilities, divided by the length ** length_penalty, `end` counted; a row
    ends before `end` or after `max_tokens`. With a `width` that leaves nothing out the best row is found.
    """
    stepper = Stepper(model, [list(prompt)], cache=cache, memory=memory, stats=stats)
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    best: tuple[float, list[int]] | None = None  # of those that ended
    said = 0
    for length in range(1, max_tokens + 1):
        logs = torch.log_softmax(finite(stepper.scores()), -1)  # (R, V)
        totals = logs.double() + torch.tensor([total for total, _ in live]).double()[:, None]  # (R, V)
        values, places = totals.flatten().topk(min(2 * width, totals.numel()))
        grown: list[tuple[float, list[int]]] = []
        order: list[int] = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            row, symbol = divmod(place, totals.shape[1])
            if value == -float("inf"):
                continue
            if symbol == end:
                score = value / length**length_penalty
                best = (score, live[row][1]) if best is None or score > best[0] else best
            elif len(grown) < width:
                grown.append((value, [*live[row][1], symbol]))
                order.append(row)
        stepper.made(1)
        live = grown
        if not live:
            break
        # No total rises any more, so that this is the best that any of them may come to.
        hope = max(total / (max_tokens if length_penalty > 0 else length) ** length_penalty for total, _ in live)
        if length == max_tokens or (best is not None and best[0] >= hope):
            break
        stepper.reorder(order)
        stepper.append([symbols[-1] for _, symbols in live])
        rows = [symbols for _, symbols in live] + ([best[1]] if best else [])
        agreed = _agreed(rows)
        yield from rows[0][said:agreed]
        said = max(said, agreed)
    if live and length == max_tokens:
        total, symbols = max(live, key=lambda one: one[0])
        score = total / max_tokens**length_penalty
        best = (score, symbols) if best is None or score > best[0] else best
    yield from (best[1] if best else [])[said:]


def _agreed(rows: list[list[int]]) -> int:
    """How many symbols all rows begin with alike."""
    count = min(map(len, rows))
    return next((n for n in range(count) if any(row[n] != rows[0][n] for row in rows)), count)
