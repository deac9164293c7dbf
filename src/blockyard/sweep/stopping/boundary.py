"""The group-sequential boundary of the paired t test, for a largest number of seeds that is fixed in advance.

With N seeds at most, a look at n of them finds a difference where the normal score of its t statistic is large enough:

    |z_n| >= C min(sqrt(N / n), 1.3),   z_n = Phi^-1(P(T <= t_n)),   T ~ Student's t with n - 1 degrees of freedom

Towards the end it is the boundary of O'Brien and Fleming, which keeps the power of a fixed number of seeds, and before
that a constant, so that large effects take few seeds however large N is. 1.3 is a compromise of simulated sweeps: 1 (a
boundary of Pocock) decides fewer small effects, no limit takes more seeds for large ones. C follows from the level:
the probability that any look finds a difference where there is none. The p of a look is the level at which the boundary
goes through its t. The smallest p of all looks so far is valid at any of them, and Holm's procedure corrects several.

The level is exact for normal differences x_1, ..., x_n. With s_n = (x_1 + ... + x_n) / |x|, which determines t_n,

    s_{n+1} = (s_n + w) / sqrt(1 + w^2),   w = x_{n+1} / |x|

where sqrt(n) w has Student's t distribution with n degrees of freedom and is independent of the direction of x, and so
of all looks before. The looks are therefore a Markov chain, whose probabilities are added up on a grid of |z|.

Source: O'Brien and Fleming 1979; Pocock 1977 (nominal levels for t tests); Haybittle 1971 (a constant before the end);
Armitage, McPherson and Rowe 1969 (the recursion); Liu and Anderson 2008 (sequential p values); Maurer and Bretz 2013
(Holm's procedure for group-sequential tests); Jennison and Turnbull 2000, chap. 9 (repeated confidence intervals).
Reference: published constants for a known variance, and simulated t tests (`tests/sweep/test_boundary.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

FEWEST = 4  # seeds; three of one sign are too likely by chance where runs fall into two groups
_BOUND = 1.3  # of the first looks, over the last one
_ANGLES = 2_001  # at which the distribution of w is tabulated
Moves = Callable[[int, "np.ndarray", "np.ndarray"], "np.ndarray"]


def first_look(first: int, most: int) -> int:
    """Return the number of seeds of the first look. first, most: the numbers of seeds of the sweep"""
    return min(max(first, FEWEST), most)


def look_log_ps(ts: Sequence[float], counts: Sequence[int], first: int, most: int) -> list[float]:
    """Return log p of looks: the levels of the boundary through their t statistics.

    counts: the number of seeds of each look, from `first_look` to `most`
    """
    import numpy as np
    from scipy import special

    levels = _levels(first_look(first, most), most)
    n = np.asarray(counts)
    tails = np.maximum(special.stdtr(n - 1, -np.abs(ts)), 1e-300)
    scores = -special.ndtri(tails) / [_shape(count, most) for count in counts]
    log_ps: list[float] = np.interp(scores, levels.scores, levels.logs).tolist()
    return log_ps


@lru_cache(maxsize=4096)
def critical_t(n: int, alpha: float, first: int, most: int) -> float:
    """Return the t statistic that a look at n seeds takes at a level; beyond `most`, about that of a larger limit."""
    import numpy as np
    from scipy import special

    levels = _levels(first_look(first, most), most)
    score = float(np.interp(-math.log(alpha), -levels.logs, levels.scores)) * _shape(n, most)
    return -float(special.stdtrit(n - 1, special.ndtr(-score)))


def _shape(n: int, most: int) -> float:
    return min(math.sqrt(most / min(n, most)), _BOUND)


class _Levels(NamedTuple):
    """Values of C, rising, and the logarithms of their levels."""

    scores: np.ndarray
    logs: np.ndarray


@lru_cache
def _levels(start: int, most: int) -> _Levels:
    """Return the levels of the boundary with looks at `start` to `most` seeds."""
    import numpy as np

    scores = np.arange(0.0, 5.6, 0.05)
    shape = [_shape(n, most) for n in range(start, most + 1)]
    return _Levels(scores, np.log(crossing(scores, shape, start, student_moves)))


def crossing(scores: np.ndarray, shape: list[float], start: int, moves: Moves) -> np.ndarray:
    """Return for each C the probability that any |z_n| >= C shape_n, where there is no difference: (C,) -> (C,).

    shape: of the looks at `start` seeds, one more, and so on
    moves: the probability of each cell of |z| after one more seed, from each cell: (cells, cells)
    """
    import numpy as np
    from scipy import special

    # Up to |z| = 8, beyond which a probability is below 1e-15.
    edges = np.concatenate([np.arange(0.0, 4.0, 0.04), np.linspace(4.0, 8.0, 41)])  # (cells + 1,)
    lower = special.ndtr(edges[:-1])  # (cells,)
    masses = np.diff(special.ndtr(edges))  # (cells,)
    middles = -np.diff(np.exp(-(edges**2) / 2)) / math.sqrt(2 * math.pi) / masses  # (cells,): the means of the cells
    mass = np.tile(2 * masses, (len(scores), 1))  # (C, cells)
    level = np.zeros(len(scores))  # (C,)
    for look, factor in enumerate(shape):
        if look:
            mass = mass @ moves(start + look - 1, middles, edges)  # (C, cells)
        bounds = np.clip(factor * scores[:, None], edges[:-1], edges[1:])  # (C, cells)
        below = (special.ndtr(bounds) - lower) / masses  # (C, cells): the boundary cuts a cell in two
        level += (mass * (1 - below)).sum(1)
        mass *= below
    return np.minimum(level, 1.0)


def student_moves(n: int, middles: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the probabilities of |z| after n + 1 differences from |z| after n, with an unknown variance."""
    import numpy as np
    from scipy import special

    angles = np.linspace(-np.pi / 2, np.pi / 2, _ANGLES)
    chances = special.stdtr(n, math.sqrt(n) * np.tan(angles))  # of w = tan(angle)
    chances[0] = 0.0
    chances[-1] = 1.0
    # s_{n+1} = radius sin(angle + shift), so that a bound on it is one on the angle, from both sides.
    s = _direction(middles, n)[:, None]  # (cells, 1)
    radius = np.sqrt(1 + s**2)
    shift = np.arctan(s)

    def below(bounds: np.ndarray) -> np.ndarray:
        arc = np.arcsin(np.clip(bounds / radius, -1.0, 1.0))  # (cells, cells + 1)
        left = np.interp(arc - shift, angles, chances)
        right = np.interp(np.pi - arc - shift, angles, chances)
        return left + 1 - right

    bounds = _direction(edges, n + 1)[None, :]  # (1, cells + 1)
    moved: np.ndarray = np.diff(below(bounds) - below(-bounds), axis=1)
    return moved


def _direction(score: np.ndarray, n: int) -> np.ndarray:
    """Return s_n of a normal score: t = sqrt(n - 1) r / sqrt(1 - r^2) with r = s / sqrt(n)."""
    import numpy as np
    from scipy import special

    t = -special.stdtrit(n - 1, special.ndtr(-score))
    return math.sqrt(n) * t / np.sqrt(n - 1 + t**2)
