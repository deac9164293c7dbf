"""Connectionist temporal classification: from a distribution for each token to labels without repeats and blanks.

Source: Graves et al. 2006, Connectionist Temporal Classification; the prefix search as in Hannun et al. 2014,
    First-Pass Large Vocabulary Continuous Speech Recognition (arXiv 1408.2873), algorithm 1, without a language model
Reference: torch.nn.functional.ctc_loss for the probability of labels
Equation: p(labels) = sum over alignments a with collapse(a) = labels of prod_n p_n(a_n)

    alignment   c c _ a _ a t t      one label or blank (_) for each token
    collapse    c   _ a _ a t        repeats once
    labels      c a a t              without blanks, so that the two a stay two
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from torch import Tensor


def collapse(alignment: Sequence[int], blank: int) -> list[int]:
    """Return the labels of an alignment."""
    return [label for label, _ in groupby(alignment) if label != blank]


def greedy(logits: Tensor, lengths: Tensor, blank: int) -> list[list[int]]:
    """Return the labels of the most likely alignment of each sequence. logits: (B, N, V); lengths: (B,)."""
    best = logits.argmax(2).tolist()
    return [collapse(row[:count], blank) for row, count in zip(best, lengths.tolist(), strict=True)]


def prefix_beam(log_probs: Tensor, blank: int, width: int | None = 8) -> list[tuple[list[int], float]]:
    """Return the most likely labels of one sequence and their log probabilities, the best first.

    It keeps, for each prefix, the probability of alignments that end in a blank and of alignments that end in its last
    label, because a repeated label is a new one only after a blank. With a width of None nothing is dropped, and the
    log probabilities are exact.

    log_probs: (N, V), of a softmax; width: prefixes that are kept after each token
    """
    nothing = -math.inf
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, nothing)}  # ends in blank, ends in a label
    for frame in log_probs.tolist():
        grown: dict[tuple[int, ...], tuple[float, float]] = {}
        for prefix, (of_blank, of_label) in beams.items():
            both = _add(of_blank, of_label)
            last = prefix[-1] if prefix else blank
            old = grown.get(prefix, (nothing, nothing))
            # The prefix stays: a blank, or its last label once more.
            stays = of_label + frame[last] if prefix else nothing
            grown[prefix] = (_add(old[0], both + frame[blank]), _add(old[1], stays))
            for label, score in enumerate(frame):
                if label == blank:
                    continue
                # The last label once more is a new label only behind a blank.
                before = of_blank if label == last else both
                longer = (*prefix, label)
                old = grown.get(longer, (nothing, nothing))
                grown[longer] = (old[0], _add(old[1], before + score))
        kept = sorted(grown.items(), key=lambda item: -_add(*item[1]))[:width]
        beams = dict(kept)
    scored = [(list(prefix), _add(*ends)) for prefix, ends in beams.items()]
    return sorted(scored, key=lambda item: -item[1])


def least_tokens(labels: Sequence[int]) -> int:
    """Return the minimum number of tokens of an alignment of labels: one per label, and a blank between repeats."""
    return len(labels) + sum(left == right for left, right in pairwise(labels))


def _add(left: float, right: float) -> float:
    """Return log(exp(left) + exp(right))."""
    if left < right:  # exp of a difference of at most 0 cannot overflow
        left, right = right, left
    if right == -math.inf:
        return left
    return left + math.log1p(math.exp(right - left))
