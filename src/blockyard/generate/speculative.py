"""Speculative decoding: a draft proposes several tokens, and one pass of the model accepts a beginning of them.

Source: Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192), algorithm 1
Reference: transformers `generate(assistant_model=...)`, and for `ngram` its `prompt_lookup_num_tokens`
Equation: x ~ q is accepted with probability min(1, p(x) / q(x)); otherwise x ~ max(0, p - q), normalised

p and q are the distributions that the model and the draft sample from, after temperature, top-k and top-p, so that the
tokens have the distribution of plain sampling, and greedily are the same tokens. Samples of one seed differ from those
of plain decoding: more random numbers are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from torch import Tensor

from blockyard.contracts import Memory, Model
from blockyard.generate.retracting import RetractingStepper
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import special_token_ids, tokens_left

Proposal = tuple[list[int], list[Tensor]]  # token ids, and the distribution (V,) that each was drawn from


class Draft(Protocol):
    """Proposes the next tokens of a sequence."""

    def propose(self, most: int, sampler: Sampler, vocabulary: int) -> Proposal:
        """Return at most `most` token ids after the sequence, and their distributions."""

    def accept(self, kept: int, token_id: int) -> None:
        """Continue the sequence with the first `kept` of the proposed tokens and then this one."""


@dataclass
class SpeculativeStats(Stats):
    """The cost of speculative decoding. `steps` counts all passes of the model, `rounds` passes that read proposals.

    draft: the name of the draft; draft_seconds: its time
    proposals: the number of proposed tokens in each round
    tested, accepted: the number of proposed tokens up to the first rejected one, and of accepted ones
    """

    draft: str = ""
    draft_seconds: float = 0.0
    proposals: list[int] = field(default_factory=list)
    tested: int = 0
    accepted: int = 0

    @property
    def rounds(self) -> int:
        """Passes of the model that read proposals."""
        return len(self.proposals)

    @property
    def acceptance(self) -> float:
        """The share of the tested tokens that was accepted, alpha of the paper."""
        if not self.tested:
            return 0.0
        return self.accepted / self.tested

    @property
    def expected(self) -> float:
        """Tokens of a round if each token were accepted with probability alpha, independently (the paper's eq. 1)."""
        return sum(expected_tokens(self.acceptance, count) for count in self.proposals) / max(1, self.rounds)

    def __str__(self) -> str:
        actual = (self.accepted + self.rounds) / max(1, self.rounds)
        return (
            f"{super().__str__()}; {self.draft} proposed {sum(self.proposals)} tokens in {self.draft_seconds:.2f} of "
            f"{self.seconds:.2f} s, acceptance {self.acceptance:.2f}, {actual:.2f} tokens a pass "
            f"(expected {self.expected:.2f})"
        )


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Return (1 - alpha^(gamma + 1)) / (1 - alpha), the expected number of tokens of a pass over gamma proposals."""
    return sum(acceptance**count for count in range(draft_tokens + 1))


def speculate(
    model: Model,
    prompt: Sequence[int],
    draft: Draft,
    sampler: Sampler,
    *,
    draft_tokens: int,
    max_tokens: int,
    cache: bool,
    stats: SpeculativeStats,
    memory: Memory | None = None,
    end: int | None = None,
) -> Iterator[list[int]]:
    """Yield the token ids after one prompt, at least one a round; `stats` is updated on the way.

    Raises UserError if the model's cache cannot be taken back.
    """
    stepper = RetractingStepper(model, list(prompt), draft_tokens, cache=cache, memory=memory, stats=stats, end=end)
    budget = remaining = tokens_left(model, prompt, max_tokens, end)
    vocabulary = model.ctx.outputs
    special = set(special_token_ids(model, end))
    while remaining:
        stepper.mark()
        started = time.perf_counter()
        most = min(draft_tokens, remaining - 1)  # the round adds a token of the model itself
        if stepper.room is not None:
            most = max(0, min(most, stepper.room))
        proposed, weights = draft.propose(most, sampler, vocabulary)
        # An n-gram may hold special tokens, such as the start token of the prompt, which are never generated.
        proposed = list(takewhile(lambda token_id: token_id not in special, proposed))
        stats.draft_seconds += time.perf_counter() - started
        token_ids = verify(stepper, proposed, weights, sampler, stats)
        draft.accept(len(token_ids) - 1, token_ids[-1])
        if end is not None and end in token_ids:
            token_ids = token_ids[: token_ids.index(end)]
            remaining = 0
        else:
            remaining -= len(token_ids)
            if not remaining and budget < max_tokens:
                stepper.count_unfinished()
        stepper.count_tokens(len(token_ids))
        yield token_ids


def verify(
    stepper: RetractingStepper,
    proposed: Sequence[int],
    weights: Sequence[Tensor],
    sampler: Sampler,
    stats: SpeculativeStats,
) -> list[int]:
    """Accept a beginning of the proposed tokens and draw one more; return these, which end the sequence."""
    for token_id in proposed:
        stepper.append([token_id])
    scores = stepper.last_scores(len(proposed) + 1)[0]  # (proposed + 1, V)
    stats.proposals.append(len(proposed))
    accepted: list[int] = []
    for token_id, q, row in zip(proposed, weights, scores, strict=False):
        p = sampler.distribution(row)  # (V,)
        stats.tested += 1
        # u q >= p in place of u >= p / q, which has no value if q is rounded to zero.
        if sampler.uniform() * float(q[token_id]) >= float(p[token_id]):
            drawn = sampler.draw(residual(p, q))
            break
        stats.accepted += 1
        accepted.append(token_id)
    else:
        drawn = sampler.draw(sampler.distribution(scores[-1]))
    stepper.retract(len(proposed) - len(accepted))
    stepper.append([drawn])
    return [*accepted, drawn]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return the distribution (V,) after a rejection: max(0, p - q), normalised; p if rounding leaves nothing."""
    beyond = (p - q).clamp_min(0.0)
    total = beyond.sum()
    return beyond / total if total > 0 else p
