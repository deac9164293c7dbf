"""Forecast how many seeds would decide a comparison, if its differences go on as the observed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.sweep.stopping.rule import StoppingRule

MOST = 1_000  # seeds; more are not told apart


@dataclass(frozen=True)
class PossibleEnds:
    """The ends that a comparison may have.

    sign: of its claim, None for an arm against the baseline; margin: the smallest difference that matters
    zero_alpha, margin_alpha: the levels of the tests against zero and against the margin
    """

    rule: StoppingRule
    sign: str | None
    margin: float | None
    zero_alpha: float
    margin_alpha: float


def seeds_to_decide(rule: StoppingRule, effect: float, alpha: float, most: int = MOST) -> int | None:
    """Return the number of seeds at which an effect (d_z) that is measured exactly is decided; None above `most`."""
    for n in range(max(2, rule.first_look), most + 1):
        if abs(effect) >= rule.radius(n, n - 1.0, alpha):
            return n
    return None


def seeds_to_margin(ends: PossibleEnds, gain: float, deviation: float, most: int = MOST) -> int | None:
    """Return the number of seeds at which a gain that is measured exactly is decided by the margin.

    None without a margin, or above `most`.
    """
    margin = ends.margin
    if margin is None:
        return None
    for n in range(max(2, ends.rule.first_look), most + 1):
        half = ends.rule.radius(n, (n - 1) * deviation**2, ends.margin_alpha)
        low = gain - half
        high = gain + half
        decided = {
            None: False,
            ">": high < margin,
            ">=": low > -margin or high <= -margin,
            "~": low >= margin or high <= -margin,
        }
        equivalent = -margin < low and high < margin
        if equivalent or decided[ends.sign]:
            return n
    return None


def forecast(ends: PossibleEnds, gain: float, deviation: float, most: int = MOST) -> dict[str, int]:
    """Return the ends of the comparison that a gain leads to, "zero" or "margin", with their numbers of seeds."""
    counts: dict[str, int | None] = {}
    if ends.sign in (None, ">") or ends.margin is None:
        counts["zero"] = seeds_to_decide(ends.rule, gain / deviation, ends.zero_alpha, most)
    counts["margin"] = seeds_to_margin(ends, gain, deviation, most)
    return {end: count for end, count in counts.items() if count is not None}


def beyond_limit(ends: PossibleEnds, gains: Sequence[float]) -> bool:
    """Return whether no gain in the 80 % interval of the mean would be decided within the rule's limit.

    The observed mean alone would give up true effects too often that are a little larger.
    """
    from scipy import special

    n = len(gains)
    if n < 2:
        return False
    mean = math.fsum(gains) / n
    deviation = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (n - 1))
    if not deviation:
        return False
    half = float(special.stdtrit(n - 1, 0.9)) * deviation / math.sqrt(n)
    low, high = mean - half, mean + half
    # An end is nearest at one end of the interval, or where the difference is smallest.
    nearest = min(max(0.0, low), high)
    return not any(forecast(ends, gain, deviation, ends.rule.most) for gain in (low, nearest, high))
