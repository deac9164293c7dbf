"""The verdict on one proposal: its e-value after each pair of runs, held against the level of its turn.

The null hypothesis is that the proposal is not better: the mean of the gains (proposal minus baseline, paired by seed,
positive where the proposal is better) is zero or less. With t the statistic of n gains, v = n - 1 and the house's prior
on the standardised effect, d ~ N(0, g), cut off at zero, the Bayes factor is

    log e+ = log e + log 2 P(d > 0 | gains)
    P(d > 0 | gains) = T_n(t sqrt(n g / r) sqrt(n / (v + t^2 / r))),   r = 1 + n g

with log e of `sweep.stopping.evidence` and T_n the distribution function of Student's t with n degrees of freedom. It
rises with t, and subtracting a constant from all gains lowers every t. So it is an e-value, at any stopping time, for
each mean that is not positive.

The level is that of e-LOND: of the proposals that are judged, the t-th is kept where

    e_t >= 1 / alpha_t,   alpha_t = alpha gamma_t (K + 1)

with K the number that were kept before. The expected share of false keeps among all keeps is then at most alpha,
whatever the dependence of the e-values, such as that on a baseline which they share. gamma_t = 1 / tries for the number
of tries that the campaign allows: no turn is worth more than another, so the order of proposals does not matter.

Source: Xu and Ramdas 2024, Online multiple testing with e-values (arXiv 2311.06412), for e-LOND;
Perez-Ortiz, Lardy, de Heide, Gruenwald 2022 (arXiv 2208.07610) for the Bayes factor.
Reference: the same integral over scipy's noncentral t (`tests/campaign/test_judgement.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from blockyard.sweep.stopping.evidence import PRIOR, ROUNDING, log_bayes_factor

Verdict = Literal["kept", "rejected", "open"]
FEWEST = 3  # pairs at the first look
_HOPE = 0.9  # the quantile of the interval of the effect that is still hoped for


class Decision(NamedTuple):
    """A verdict and its reason."""

    verdict: Verdict
    reason: str


def level(error: float, tries: int, kept: int) -> float:
    """Return the level of the next judgement. kept: the proposals that were kept before"""
    return error / tries * (kept + 1)


def log_evidence(gains: Sequence[float], scale: float) -> float:
    """Return the log of the e-value against "not better". Gains without any spread are no evidence.

    scale: of the metric's values
    """
    n = len(gains)
    if n < 2 or max(gains) - min(gains) <= ROUNDING * scale:
        return 0.0
    return log_one_sided(t_statistic(gains), n)


def log_one_sided(t: float, n: int, g: float = PRIOR) -> float:
    """Return log e+ of a t statistic of n gains."""
    from scipy import special

    ratio = 1 + n * g
    argument = t * math.sqrt(n * g / ratio) * math.sqrt(n / (n - 1 + t * t / ratio))
    positive = max(float(special.stdtr(n, argument)), 1e-300)
    return log_bayes_factor(t * t, n, g) + math.log(2 * positive)


def t_statistic(gains: Sequence[float]) -> float:
    """Return the t statistic of gains that are not all equal."""
    n = len(gains)
    mean = math.fsum(gains) / n
    squares = math.fsum((gain - mean) ** 2 for gain in gains)
    return mean / math.sqrt(squares / (n * (n - 1)))


def decide(gains: Sequence[float], scale: float, alpha: float, most: int) -> Decision | None:
    """Return the decision after these gains, or None where another pair of runs may bring one.

    scale: of the metric's values; alpha: the level of the turn; most: the largest number of pairs
    """
    n = len(gains)
    needed = math.log(1 / alpha)
    if log_evidence(gains, scale) >= needed:
        return Decision("kept", f"better: the evidence has reached the {1 / alpha:,.0f} that its turn asks for")
    if n >= most:
        return Decision("open", f"all {most} pairs of runs leave it open")
    if n >= FEWEST and is_hopeless(gains, scale, needed, most):
        return Decision("rejected", f"an effect within reach of these {n} gains would not be shown by {most} pairs")
    return None


def is_hopeless(gains: Sequence[float], scale: float, needed: float, most: int) -> bool:
    """Return whether even the upper end of the effect's 80 % interval would not reach the evidence with `most` pairs.

    needed: log e
    """
    from scipy import special

    n = len(gains)
    if max(gains) - min(gains) <= ROUNDING * scale:
        return max(gains) <= ROUNDING * scale
    effect = (t_statistic(gains) + float(special.stdtrit(n - 1, _HOPE))) / math.sqrt(n)
    return all(log_one_sided(effect * math.sqrt(count), count) < needed for count in range(n + 1, most + 1))
