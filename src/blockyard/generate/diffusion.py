"""Text from a masked diffusion model: all of it is hidden at first, and a few tokens are drawn in each step.

    order=random      the positions of the next tokens are drawn evenly, as the tokens were hidden in training: with one
                      token a step the text has the distribution of the model, whatever the order
    order=confidence  tokens are drawn for all hidden positions, and the ones with the largest probabilities stay

Tokens before and after the hidden ones are given: a prompt, a suffix, or both. The model sees all of them in every
step. With fewer steps than tokens, the tokens of one step are drawn independently of each other.

Source: Sahoo et al. 2024, Simple and Effective Masked Diffusion Language Models (arXiv 2406.07524), section 3.2.3, for
    the ancestral sampling; Chang et al. 2022, MaskGIT (arXiv 2202.04200), section 3.2, and Nie et al. 2025, Large
    Language Diffusion Models (arXiv 2502.09992), section 2.4, for the order by confidence
Reference: by exact conditionals of a small distribution, whose samples are then those of the distribution itself
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.generate.request import GeneratedText, encode_text
from blockyard.generate.sampling import Sampler, to_finite
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import has_fixed_length, max_context
from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")

Order = Literal["random", "confidence"]


def check_gap_options(loaded: Loaded, steps: int | None, order: str | None, suffix: str | None) -> None:
    """Raise UserError for an order that does not exist, and for options without effect on the objective of a run."""
    if order is not None and order not in get_args(Order):
        raise UserError(f"order={order}: expected one of {', '.join(get_args(Order))}")
    if steps is not None and steps < 1:
        raise UserError(f"steps={steps}: expected an integer >= 1")
    if loaded.objective.fills_gaps:
        return
    for name, value in {"steps": steps, "order": order, "suffix": suffix}.items():
        if value is not None:
            raise UserError(
                f"{name}= is about a gap that is filled, and {loaded.folder.name} fills none; use a run "
                "of objective=masked_diffusion, or leave it out"
            )


def check_only_gaps(others: Mapping[str, object]) -> None:
    """Raise UserError for an option of another way to write. others: by name; None if not given, cache True"""
    for name, value in others.items():
        if value is not None and not (name == "cache" and value):
            raise UserError(f"{name}= has no effect on masked diffusion, which fills a gap in steps; leave it out")


def fill_gaps(
    loaded: Loaded,
    prompts: Sequence[str],
    suffix: str,
    max_tokens: int,
    samplers: Callable[[int], list[Sampler]],
    steps: int | None,
    order: Order,
) -> tuple[list[GeneratedText], Iterator[list[tuple[int, int]]], Stats]:
    """Return the texts, an iterator that fills the gap of each, and the cost.

    samplers: returns as many as asked for, one for each text; steps: None is one token in each
    Raises UserError if prompt and suffix leave no room for a token, and for a gap of another size than a model of one
    length needs.
    """
    model: Any = loaded.model
    mask = model.ctx.tokens.mask
    assert mask is not None
    after = encode_text(loaded, "suffix", suffix)
    texts = []
    gaps = []
    fixed = has_fixed_length(model) or model.head.fixed_length
    limit = model.ctx.tokens.max_len if fixed else max_context(model)
    for prompt in prompts:
        before = encode_text(loaded, "prompt", prompt)
        size = None  # of the gap in a sequence of the model's length
        room = max_tokens
        if limit is not None:
            size = limit - len(before) - len(after)
            room = min(max_tokens, size)
        if room < 1:
            raise UserError(
                f"prompt and suffix have {len(before) + len(after)} tokens, and {loaded.folder.name} takes {limit}: no "
                "token fits between; shorten them"
            )
        if fixed and size is not None and size != room:
            raise UserError(
                f"max_tokens={max_tokens}: {loaded.folder.name} takes sequences of {limit} tokens only, and prompt and "
                f"suffix have {len(before) + len(after)}; use max_tokens={size}"
            )
        if room < max_tokens:
            log.warning("%d tokens are written: with prompt and suffix the model takes %d", room, limit)
        texts.append(GeneratedText(prompt, before, suffix=suffix))
        gaps.append(room)
    stats = Stats(
        sum(len(text.prompt_ids) + len(after) for text in texts),
        method=f"full recomputation, order={order}",
    )
    return texts, _filled(loaded, texts, after, gaps, samplers(len(texts)), mask, steps, order, stats), stats


def _filled(
    loaded: Loaded,
    texts: list[GeneratedText],
    after: list[int],
    gaps: list[int],
    samplers: list[Sampler],
    mask: int,
    steps: int | None,
    order: Order,
    stats: Stats,
) -> Iterator[list[tuple[int, int]]]:
    """Yield (index of the text, token id) of each gap, once all of its tokens are drawn."""
    device = next(loaded.model.parameters()).device
    model: Any = loaded.model

    def scores_of(token_ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return to_finite(model(token_ids[None].to(device))[0])

    for index, (text, gap, sampler) in enumerate(zip(texts, gaps, samplers, strict=True)):
        token_ids = torch.tensor([*text.prompt_ids, *[mask] * gap, *after])
        began = time.perf_counter()
        count = fill(scores_of, token_ids, mask, sampler, min(steps or gap, gap), order)
        stats.count(gap, time.perf_counter() - began)
        stats.steps += count
        start = len(text.prompt_ids)
        for token_id in token_ids[start : start + gap].tolist():
            yield [(index, token_id)]


def fill(
    scores_of: Callable[[Tensor], Tensor], token_ids: Tensor, mask: int, sampler: Sampler, steps: int, order: Order
) -> int:
    """Put a token in place of every mask of a sequence (N,), in `steps` steps; return the number of passes.

    scores_of: token ids (N,) -> scores of the tokens at each position (N, V)
    """
    hidden = (token_ids == mask).nonzero()[:, 0].tolist()
    size = len(hidden)
    if order == "random":
        hidden = [hidden[index] for index in sampler.permutation(size)]
    for step in range(steps):
        scores = scores_of(token_ids)  # (N, V)
        scores = scores.index_fill(1, torch.tensor(mask), -torch.inf)  # a token is never the mask
        # Steps differ by one token at most where their number does not divide the size.
        now = size * (step + 1) // steps - size * step // steps
        if order == "random":
            chosen = {position: sampler(scores[position]) for position in hidden[:now]}
        else:
            drawn = {position: sampler(scores[position]) for position in hidden}
            chances = scores.softmax(-1)
            sure = sorted(hidden, key=lambda position: -float(chances[position, drawn[position]]))[:now]
            chosen = {position: drawn[position] for position in sure}
        for position, token_id in chosen.items():
            token_ids[position] = token_id
        hidden = [position for position in hidden if position not in chosen]
    return steps
