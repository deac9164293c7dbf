"""Sampling and greedy decoding: one token per step for each prompt of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from blockyard.contracts import Memory, Model
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import Stepper, tokens_left
from blockyard.model._cache import select_sequences


def decode(
    model: Model,
    token_ids: list[int],
    choose: Callable[[Tensor], int],
    *,
    max_tokens: int,
    cache: bool,
    stats: Stats | None = None,
) -> Iterator[int]:
    """Yield the token ids that follow one prompt, one per step; `stats` is updated on the way."""
    stats = Stats() if stats is None else stats
    for step in decode_batch(model, [token_ids], [choose], max_tokens=max_tokens, cache=cache, stats=stats):
        yield from (token_id for _, token_id in step)


def separate(model: nn.Module, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The numbers of the prompts that can step together: all, or those of one length in a model that sees the source.

    There a source has to be read in one pass.
    """
    if getattr(model, "sees", "past") == "past":
        return [list(range(len(prompts)))]
    lengths = sorted({len(prompt) for prompt in prompts})
    return [[index for index, prompt in enumerate(prompts) if len(prompt) == length] for length in lengths]


def decode_batch(
    model: Model,
    prompts: Sequence[Sequence[int]],
    choose: Sequence[Callable[[Tensor], int]],
    *,
    max_tokens: int,
    cache: bool,
    stats: Stats,
    memory: Memory | None = None,
    end: int | None = None,
    compiled: bool = False,
) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each step, (index of the prompt, token id) of every sequence that got a new token.

    All sequences step together: one with a longer prompt still reads it while the others generate, so that each
    result equals that of the prompt alone, with any mixer. A sequence stops before the token `end`; where the data
    has an end token, a sequence without one stops at the model's maximum length. `compiled` as in `Stepper`.
    """
    groups = separate(model, prompts)
    if len(groups) > 1:
        for group in groups:
            part = None if memory is None else select_sequences(memory, torch.tensor(group))
            chosen = [choose[index] for index in group]
            for step in decode_batch(
                model,
                [prompts[index] for index in group],
                chosen,
                max_tokens=max_tokens,
                cache=cache,
                stats=stats,
                memory=part,
                end=end,
                compiled=compiled,
            ):
                yield [(group[index], token_id) for index, token_id in step]
        return
    shortest = min(map(len, prompts))
    starts = [list(prompt[:shortest]) for prompt in prompts]
    stepper = Stepper(model, starts, cache=cache, memory=memory, stats=stats, end=end, compiled=compiled)
    unread = [list(prompt[shortest:]) for prompt in prompts]
    budgets = [tokens_left(model, prompt, max_tokens, end) for prompt in prompts]
    remaining = list(budgets)
    while any(remaining):
        scores = stepper.scores()  # (R, V)
        token_ids, generated = [], []
        for index, left in enumerate(remaining):
            if unread[index]:
                token_ids.append(unread[index].pop(0))
            elif not left:
                token_ids.append(0)  # a finished sequence; what follows is not read
            else:
                token_id = choose[index](scores[index])
                token_ids.append(token_id)
                if token_id == end:
                    remaining[index] = 0
                else:
                    remaining[index] -= 1
                    generated.append((index, token_id))
                    if not remaining[index] and budgets[index] < max_tokens:
                        stepper.count_unfinished()
        stepper.append(token_ids)
        stepper.count_tokens(len(generated))
        yield generated
