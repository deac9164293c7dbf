"""How a cost grows with the number of tokens: its exponent, and where one choice becomes cheaper than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def exponent(costs: Mapping[int, float]) -> float | None:
    """The exponent p of cost = a n^p, by least squares on the logarithms over the longer half of the lengths.

    At least three lengths count, because short sequences pay for what does not grow; None where there are fewer, or a
    cost is zero.
    """
    lengths = sorted(costs)[-max(3, (len(costs) + 1) // 2) :]
    if len(lengths) < 3 or any(costs[n] <= 0 for n in lengths):
        return None
    x, y = [math.log(n) for n in lengths], [math.log(costs[n]) for n in lengths]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def crossing(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """The number of tokens from which `second` costs less than `first`, up to the longest; None where it does not.

    Between two lengths the costs are taken as straight lines in logarithms. 0 where it costs less at all lengths.
    """
    lengths = sorted(set(first) & set(second))
    gaps = [math.log(second[n]) - math.log(first[n]) for n in lengths]
    if not gaps or gaps[-1] >= 0:
        return None
    above = max((number for number, gap in enumerate(gaps) if gap >= 0), default=None)
    if above is None:
        return 0.0
    return _zero(lengths[above : above + 2], gaps[above : above + 2])


def _zero(lengths: Sequence[int], gaps: Sequence[float]) -> float:
    share = gaps[0] / (gaps[0] - gaps[1])
    return math.exp(math.log(lengths[0]) + share * (math.log(lengths[1]) - math.log(lengths[0])))
