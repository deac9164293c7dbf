"""Greedy, speculative and beam decoding to the end, with their statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.decode import decode_batch
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import SpeculativeStats, speculate
from blockyard.generate.stats import Stats
from tests.support.helpers import LENGTH

PROMPT = [4, 2, 7]
MAX_TOKENS = 2 * LENGTH + 2  # so many that sequences of a bounded length are cut, twice


def greedy(model: nn.Module, prompts: list[list[int]], *, cache: bool, **more: Any) -> tuple[list[list[int]], Stats]:
    """The likeliest token ids after each prompt."""
    stats, sequences = Stats(), [[] for _ in prompts]
    choose = [Sampler(0, None, 0) for _ in prompts]
    settings = {"max_tokens": MAX_TOKENS, **more}
    for step in decode_batch(model, prompts, choose, cache=cache, stats=stats, **settings):
        for row, token_id in step:
            sequences[row].append(token_id)
    return sequences, stats


def beam(model: nn.Module, prompts: list[list[int]], **more: Any) -> tuple[list[list[int]], Stats]:
    """The best sequence that a beam finds for each prompt."""
    stats, sequences = Stats(), [[] for _ in prompts]
    for step in beam_search_batch(model, prompts, **{"cache": True, "max_tokens": LENGTH, "stats": stats, **more}):
        for row, token_id in step:
            sequences[row].append(token_id)
    return sequences, stats


class HalfRight:
    """A draft that knows how the sequence goes on, and proposes a wrong token after `right` of them."""

    def __init__(self, tokens: list[int], right: int) -> None:
        self.tokens, self.right, self.count = tokens, right, 0

    def propose(self, most: int, sampler: Sampler, vocabulary: int) -> Any:
        """As `Draft.propose`."""
        token_ids = self.tokens[self.count : self.count + most]
        token_ids = [each if n < self.right else (each + 1) % (vocabulary - 1) for n, each in enumerate(token_ids)]
        return token_ids, [nn.functional.one_hot(torch.tensor(each), vocabulary).float() for each in token_ids]

    def accept(self, kept: int, token_id: int) -> None:
        """As `Draft.accept`."""
        self.count += kept + 1


def written(
    model: nn.Module, draft: Any, *, temperature: float = 0.0, seed: int = 0, draft_tokens: int = 3, **settings: Any
) -> tuple[list[int], SpeculativeStats]:
    """The tokens after the prompt."""
    stats, sampler = SpeculativeStats(), Sampler(temperature, None, seed)
    settings = {"max_tokens": MAX_TOKENS, "cache": True, **settings}
    rounds = speculate(model, PROMPT, draft, sampler, draft_tokens=draft_tokens, stats=stats, **settings)
    return [token_id for round_ in rounds for token_id in round_], stats


def same_as_plain(model: nn.Module, *, cache: bool = True) -> None:
    """Tokens are those of plain decoding, through cuts too, whatever is accepted of three proposals."""
    expected, plain = greedy(model, [PROMPT], cache=cache)
    for right in (0, 1, 3):
        tokens, stats = written(model, HalfRight(expected[0], right), cache=cache)
        assert tokens == expected[0]
        assert stats.cuts == plain.cuts
        assert stats.accepted + stats.rounds == len(tokens) == stats.tokens
        assert (stats.accepted < sum(stats.proposals)) == (right < 3)
        assert (stats.accepted > 0) == (right > 0)
