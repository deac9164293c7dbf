"""Drafts, which propose tokens for speculative decoding: a smaller run, or the text so far."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Memory, Model, TextTokenizer
from blockyard.errors import UserError
from blockyard.generate.decode import Steps
from blockyard.generate.request import GeneratedText, encode_sources
from blockyard.generate.retracting import RetractingStepper
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import Draft, Proposal, SpeculativeStats, speculate
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import ordered_for_decoding
from blockyard.model._cache import select_sequences
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load
from blockyard.runs.store import find

Run = str | os.PathLike[str] | RunFolder | Loaded
NGRAM = "ngram"
LONGEST = 3  # tokens that are looked up in the text so far


class ModelDraft:
    """A model that proposes token by token, each with its distribution."""

    def __init__(
        self, model: Model, prompt: list[int], most: int, *, cache: bool, memory: Memory | None, end: int | None
    ) -> None:
        self._stepper = RetractingStepper(model, prompt, most, cache=cache, memory=memory, stats=Stats(), end=end)
        self._proposed = 0

    def propose(self, most: int, sampler: Sampler, vocabulary: int) -> Proposal:
        """Propose as `Draft.propose`. The sequence is not cut between proposals: a cut could not be taken back."""
        token_ids, weights = list[int](), list[Tensor]()
        self._stepper.mark()
        room = self._stepper.room
        for _ in range(most if room is None else min(most, room + 1)):
            weights.append(sampler.distribution(self._stepper.scores()[0]))  # (V,)
            token_ids.append(sampler.draw(weights[-1]))
            self._stepper.append(token_ids[-1:])
        self._proposed = len(token_ids)
        return token_ids, weights

    def accept(self, kept: int, token_id: int) -> None:
        """Accept as `Draft.accept`."""
        self._stepper.retract(self._proposed - kept)
        self._stepper.append([token_id])


class NgramDraft:
    """Proposes the tokens that followed the last occurrence of the last tokens, of at most three, in the text so far.

    Source: Saxena 2023, Prompt Lookup Decoding
    """

    def __init__(self, prompt: list[int]) -> None:
        self._sequence, self._proposed = list(prompt), list[int]()

    def propose(self, most: int, sampler: Sampler, vocabulary: int) -> Proposal:
        """Propose as `Draft.propose`, each with probability one; no token if the last one is new."""
        self._proposed = follow(self._sequence, most)
        return self._proposed, [F.one_hot(torch.tensor(token_id), vocabulary).float() for token_id in self._proposed]

    def accept(self, kept: int, token_id: int) -> None:
        """Accept as `Draft.accept`."""
        self._sequence += [*self._proposed[:kept], token_id]


def follow(sequence: list[int], most: int) -> list[int]:
    """Return at most `most` token ids that followed the longest repeated end of a sequence, of at most three tokens."""
    for length in range(min(LONGEST, len(sequence) - 1), 0, -1):
        end = sequence[-length:]
        for start in range(len(sequence) - length - 1, -1, -1):
            if sequence[start : start + length] == end:
                return sequence[start + length : start + length + most]
    return []


def check_draft(loaded: Loaded, draft: Loaded) -> None:
    """Raise UserError if `draft` has other tokens than the run, or does not continue texts."""
    name, other = loaded.folder.name, draft.folder.name
    if not isinstance(draft.tokenizer, TextTokenizer) or not draft.model.ctx.causal:
        raise UserError(f"draft={other} is not a decoder of text; use a smaller run of the same data, or draft={NGRAM}")
    if draft.objective.takes != "token" or draft.objective.target == "symbols":
        raise UserError(f"draft={other} does not generate text; use a run of objective=next_token, or draft={NGRAM}")
    for tokenizer, of_draft, kind in (
        (loaded.tokenizer, draft.tokenizer, "tokenizer"),
        (loaded.components.source_tokenizer, draft.components.source_tokenizer, "source tokenizer"),
    ):
        if type(tokenizer) is not type(of_draft) or tokenizer.state() != of_draft.state():
            raise UserError(
                f"draft={other} has another {kind} than {name}, so its tokens mean something else; train it on the "
                f"same data with the same tokenizer, or use draft={NGRAM}"
            )
    if _sequence_facts(loaded) != _sequence_facts(draft):
        raise UserError(
            f"draft={other} and {name} disagree about the source or about start and end tokens; train it on the same "
            f"data with the same objective, or use draft={NGRAM}"
        )


def _sequence_facts(run: Loaded) -> tuple[Any, ...]:
    """Return the facts of a run's sequences in which a draft must agree: special tokens, outputs and the source."""
    ctx = run.model.ctx
    tokens, data = ctx.tokens, ctx.data
    return tokens.vocabulary, tokens.start, tokens.end, ctx.outputs, data.joined, data.source is None


def load_draft(loaded: Loaded, draft: Run, **settings: Any) -> Loaded | None:
    """Return the run that drafts for `loaded`; None for n-grams. settings: of `load`

    Raises UserError as `load` and `check_draft` do.
    """
    if draft == NGRAM:
        return None
    if not isinstance(draft, Loaded | RunFolder):
        draft = find(draft, settings.get("outputs", "outputs"), option="draft")
    run = draft if isinstance(draft, Loaded) else load(draft, **settings)
    check_draft(loaded, run)
    return run


@dataclass(frozen=True)
class Drafting:
    """A draft for each of several prompts, decoded one after the other: each accepts another number of tokens.

    run: the draft's run; None looks up n-grams in the text so far
    """

    loaded: Loaded
    texts: list[GeneratedText]
    run: Loaded | None
    tokens: int

    def decode(self, samplers: list[Sampler], memory: Memory | None, stats: SpeculativeStats, **settings: Any) -> Steps:
        """Yield (index of the prompt, token id) of the tokens of each round, as `decode_batch` does.

        settings: max_tokens, cache and end, as in `decode_batch`
        """
        draft_memory = None
        if self.run is not None and memory is not None:
            draft_memory = encode_sources(self.run, [text.source or "" for text in self.texts])
        with ExitStack() as stack:
            for run in (self.loaded, self.run):
                if run is not None:
                    stack.enter_context(ordered_for_decoding(run.model, 1, cache=settings["cache"]))
            for index, (text, sampler) in enumerate(zip(self.texts, samplers, strict=True)):
                draft = self._draft(text.prompt_ids, _of(draft_memory, index), settings["cache"], settings["end"])
                more = {"draft_tokens": self.tokens, "memory": _of(memory, index), "stats": stats, **settings}
                for token_ids in speculate(self.loaded.model, text.prompt_ids, draft, sampler, **more):
                    yield [(index, token_id) for token_id in token_ids]

    def _draft(self, prompt: list[int], memory: Memory | None, cache: bool, end: int | None) -> Draft:
        if self.run is None:
            return NgramDraft(prompt)
        return ModelDraft(self.run.model, prompt, self.tokens, cache=cache, memory=memory, end=end)


def _of(memory: Memory | None, index: int) -> Memory | None:
    """Return the encoded source of one prompt."""
    if memory is None:
        return None
    return select_sequences(memory, torch.tensor([index]))
