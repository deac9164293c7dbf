"""Values of options that fit the lengths of texts, for recipes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockyard.contracts import FittingValue

MOST_TEXTS = 5000  # texts at equal distances that are measured
PERCENT = 95
STEP = 16  # a context is a multiple of it
LONGEST = 256  # tokens; attention to more takes minutes on a CPU


def equally_spaced_rows(count: int) -> list[int]:
    """Return the indices of at most `MOST_TEXTS` of `count` rows, at equal distances."""
    return list(range(0, count, math.ceil(count / MOST_TEXTS) or 1))


def fitting_context(key: str, lengths: Sequence[int], things: str = "texts") -> list[FittingValue]:
    """Return the option with the number of tokens that most texts have; none without texts.

    key: of the option; lengths: the expected tokens of each text; things: the texts, in the plural
    """
    if not lengths:
        return []
    ranked = sorted(lengths)
    most = ranked[math.ceil(len(ranked) * PERCENT / 100) - 1]
    context = STEP * max(1, math.ceil(most / STEP))
    if context > LONGEST:
        reason = f"{PERCENT} % of the {things} have at most {most:,} tokens, and longer ones than {LONGEST} are slow"
        return [FittingValue(key, LONGEST, reason)]
    return [FittingValue(key, context, f"{PERCENT} % of the {things} have at most {most:,} tokens")]
