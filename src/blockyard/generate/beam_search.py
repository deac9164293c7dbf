"""Beam search: the most likely complete sequence among a fixed number of hypotheses.

Source: Graves 2012, Sequence Transduction with Recurrent Neural Networks (arXiv 1211.3711), algorithm 1; division by
a power of the length as in Wu et al. 2016, Google's Neural Machine Translation System (arXiv 1609.08144), eq. 14,
without its constant 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import Memory, Model
from blockyard.generate.decode import Steps, in_groups
from blockyard.generate.sampling import to_finite
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import Stepper, tokens_left


def beam_search_batch(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    max_tokens: int,
    cache: bool,
    stats: Stats,
    length_penalty: float = 1.0,
    memory: Memory | None = None,
    end: int | None = None,
) -> Steps:
    """Yield (index of the prompt, token id) of each best sequence, as soon as all live hypotheses agree on it.

    The score is the sum of log probabilities divided by length ** length_penalty, `end` counted. A sequence ends
    before `end`, after `max_tokens`, or, if the data has an end token, at the model's maximum length. A search
    stops when no live hypothesis can beat the best, or when `width` hypotheses have ended and the best of them beats
    every live one as it is, so that a width of 1 is greedy decoding, and a width that prunes nothing returns the most
    likely sequence. All prompts step together, as in `decode_batch`.
    """

    def together(group: list[int], part: Memory | None) -> Steps:
        members = [prompts[index] for index in group]
        shortest = min(map(len, members))
        starts = [list(prompt[:shortest]) for prompt in members]
        stepper = Stepper(model, starts, cache=cache, memory=part, stats=stats, end=end)
        searches = []
        for prompt in members:
            budget = tokens_left(model, prompt, max_tokens, end)
            searches.append(_Search(prompt[shortest:], width, budget, length_penalty, end))
        while any(search.live for search in searches):
            log_probs = torch.log_softmax(to_finite(stepper.scores()), -1)  # (R, V)
            order: list[int] = []
            token_ids: list[int] = []
            settled: list[tuple[int, int]] = []
            first = 0  # sequence of the stepper: the first live hypothesis of the search
            for index, search in enumerate(searches):
                count = len(search.live)
                if not count:
                    continue
                for parent, token_id in search.extend(log_probs[first : first + count]):
                    order.append(first + parent)
                    token_ids.append(token_id)
                first += count
                for token_id in search.newly_settled():
                    settled.append((index, token_id))
                if search.truncated and search.budget < max_tokens:
                    stepper.count_unfinished()
            stepper.count_tokens(len(settled))
            if order:
                stepper.reorder(order)
                stepper.append(token_ids)
            yield settled

    return in_groups(model, prompts, memory, together, cache=cache)


class _Search:
    """The hypotheses of one prompt.

    live: (log probability, token ids) of the hypotheses that can still be extended, best first
    best: (score, token ids) of the best hypothesis that has ended
    budget: tokens that may follow the prompt
    truncated: whether the best hypothesis ends at the maximum length, without an end token
    """

    def __init__(self, unread: Sequence[int], width: int, budget: int, length_penalty: float, end: int | None) -> None:
        self.width = width
        self.budget = budget
        self.power = length_penalty
        self.end = end
        self.live: list[tuple[float, list[int]]] = []
        if budget:
            self.live.append((0.0, []))
        self.best: tuple[float, list[int]] | None = None
        self.truncated = False
        self._unread = list(unread)  # tokens of the prompt that the stepper does not hold yet
        self._ended = 0  # hypotheses
        self._length = 0  # of the live hypotheses
        self._settled = 0  # tokens on which all hypotheses agree

    def extend(self, log_probs: Tensor) -> list[tuple[int, int]]:
        """Extend the live hypotheses by log probabilities (R, V); return (parent, token id) of each kept hypothesis."""
        if self._unread:
            return [(0, self._unread.pop(0))]
        self._length += 1
        totals = log_probs.double() + torch.tensor([total for total, _ in self.live]).double()[:, None]  # (R, V)
        # Twice the width: at most `width` of them end, so that `width` others stay.
        values, flat_indices = totals.flatten().topk(min(2 * self.width, totals.numel()))
        extended: list[tuple[float, list[int]]] = []
        parents: list[tuple[int, int]] = []
        for rank, (value, flat_index) in enumerate(zip(values.tolist(), flat_indices.tolist(), strict=True)):
            parent, token_id = divmod(flat_index, totals.shape[1])
            if value == -float("inf"):
                break
            if token_id == self.end:
                if rank < self.width:
                    self._ended += 1
                    self._offer(value, self.live[parent][1])
            elif len(extended) < self.width:
                extended.append((value, [*self.live[parent][1], token_id]))
                parents.append((parent, token_id))
        if self._length == self.budget and extended:
            self.truncated = self._offer(*extended[0])
        if self._is_done(extended):
            self.live = []
            return []
        self.live = extended
        return parents

    def _is_done(self, extended: list[tuple[float, list[int]]]) -> bool:
        """Return whether no hypothesis needs to be extended further."""
        if self._length == self.budget or not extended:
            return True
        total, _ = extended[0]
        if self._cannot_improve(total):
            return True
        return self._ended >= self.width and not self._leads(total)

    def _offer(self, total: float, token_ids: list[int]) -> bool:
        """Keep an ended hypothesis if it is the best so far; return whether it is."""
        score = total / self._length**self.power
        if self.best is not None and score <= self.best[0]:
            return False
        self.best = (score, token_ids)
        return True

    def _leads(self, total: float) -> bool:
        # A confident model has a few unlikely ends among its best candidates at every step.
        return self.best is not None and total / self._length**self.power > self.best[0]

    def _cannot_improve(self, total: float) -> bool:
        # A sum of log probabilities never rises, so this bounds the score of every live hypothesis.
        # A positive power favours long sequences, so the bound has the largest length.
        length = self.budget if self.power > 0 else self._length
        return self.best is not None and self.best[0] >= total / length**self.power

    def newly_settled(self) -> list[int]:
        """Return token ids on which all hypotheses agree now and did not before."""
        sequences = [token_ids for _, token_ids in self.live]
        if self.best is not None:
            sequences.append(self.best[1])
        first = sequences[0]
        agreed = len(first)
        if self.live:
            agreed = _common_prefix(sequences)
        settled = first[self._settled : agreed]
        self._settled = max(self._settled, agreed)
        return settled


def _common_prefix(sequences: list[list[int]]) -> int:
    """Return the length of the longest prefix that all sequences share."""
    for index, token_ids in enumerate(zip(*sequences, strict=False)):
        if len(set(token_ids)) > 1:
            return index
    return min(map(len, sequences))
