"""Sampling and greedy decoding: one token per step for each prompt of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from blockyard.contracts import Memory, Model
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import Stepper, ordered_for_decoding, tokens_left
from blockyard.model._cache import select_sequences

Steps = Iterator[list[tuple[int, int]]]  # of each step, (index of the prompt, token id)


def in_groups(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    memory: Memory | None,
    decode_group: Callable[[list[int], Memory | None], Steps],
    *,
    cache: bool,
) -> Steps:
    """Yield the steps of prompts, in groups that step together.

    All prompts do, but for a model that sees the source: it reads a source in a single pass, so that only prompts of
    one length step together.

    decode_group: from the numbers of prompts and their memory to the steps of these, counted from 0
    """
    if getattr(model, "sees", "past") == "past":
        groups = [list(range(len(prompts)))]
    else:
        lengths = sorted({len(prompt) for prompt in prompts})
        groups = [[index for index, prompt in enumerate(prompts) if len(prompt) == length] for length in lengths]
    for group in groups:
        part = memory
        if memory is not None and len(groups) > 1:
            part = select_sequences(memory, torch.tensor(group))
        with ordered_for_decoding(model, len(group), cache=cache):
            for step in decode_group(group, part):
                yield [(group[index], token_id) for index, token_id in step]


def collected(steps: Steps, count: int) -> list[list[int]]:
    """Return the token ids of each of `count` prompts."""
    token_ids: list[list[int]] = [[] for _ in range(count)]
    for step in steps:
        for index, token_id in step:
            token_ids[index].append(token_id)
    return token_ids


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
) -> Steps:
    """Yield, for each step, (index of the prompt, token id) of every sequence that got a new token.

    All sequences step together: one with a longer prompt still reads it while the others generate, so that each
    result equals that of the prompt alone, with any mixer. A sequence stops before the token `end`; where the data
    has an end token, a sequence without one stops at the model's maximum length. `compiled` as in `Stepper`.
    """

    def together(group: list[int], part: Memory | None) -> Steps:
        members = [prompts[index] for index in group]
        shortest = min(map(len, members))
        # Longer prompts have the rest of their tokens given step by step, in place of chosen ones.
        starts = [list(prompt[:shortest]) for prompt in members]
        stepper = Stepper(model, starts, cache=cache, memory=part, stats=stats, end=end, compiled=compiled)
        unread = [list(prompt[shortest:]) for prompt in members]
        budgets = [tokens_left(model, prompt, max_tokens, end) for prompt in members]
        remaining = list(budgets)
        while any(remaining):
            scores = stepper.scores()  # (R, V)
            token_ids, generated = [], []
            for index, left in enumerate(remaining):
                if unread[index]:
                    token_ids.append(unread[index].pop(0))
                elif not left:
                    token_ids.append(0)  # a finished sequence goes on with any token
                else:
                    token_id = choose[group[index]](scores[index])
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

    return in_groups(model, prompts, memory, together, cache=cache)
