"""What a difference says, in words; and how many seeds would say more.

Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure; power of the paired t test
from the noncentral t distribution (statsmodels TTestPower).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from blockyard.report.stats.paired import Difference

ALPHA = 0.05
POWER = 0.80
FEWEST = 3  # common seeds; no verdict from fewer
_LONG = 24  # characters of a name that is said again in every sentence
MOST = 1_000  # seeds; what needs more is called out of reach

BASELINE, BETTER, WORSE, NONE, FEW = "baseline", "better", "worse", "no difference shown", "too few seeds"


def corrected(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same differences with Holm's p over all of which a verdict can be given."""
    asked = {name: found.p for name, found in differences.items() if found.n >= FEWEST and found.p is not None}
    ps = dict(zip(asked, holm(list(asked.values())), strict=True))
    return {name: replace(found, holm_p=ps.get(name)) for name, found in differences.items()}


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's corrected p: the smallest times their number, the next times one less, never falling, at most 1.

    As statsmodels' multipletests gives them, without its walk through all memory at each call.
    """
    made, most = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        most = max(most, (len(ps) - rank) * ps[place])
        made[place] = min(1.0, most)
    return made


def verdict(found: Difference, direction: str) -> str:
    """One of better, worse, no difference shown, too few seeds. direction: "max" or "min"."""
    if found.n < FEWEST or found.holm_p is None or found.mean is None:
        return FEW
    if found.holm_p > ALPHA or found.mean == 0:
        return NONE
    return BETTER if (found.mean > 0) == (direction == "max") else WORSE


def words(found: Difference, direction: str, other: str, compared: int, interesting: float | None = None) -> str:
    """The verdict on the difference to `other` as one or two sentences, with its figures.

    compared: how many arms are; interesting: the smallest difference worth knowing, in the metric's unit
    """
    kind = verdict(found, direction)
    other = other if len(other) <= _LONG else "the baseline"
    if kind == FEW:
        return too_few(found.n, compared)
    gap = said_gap(found)
    if found.mean == 0 and found.deviation is None:
        return f"No difference shown: all {found.n} seeds gave the same figures as {other}."
    if found.interval is None:
        head = f"{kind[0].upper()}{kind[1:]}" + (f" than {other}" if kind != NONE else "")
        least = exact_from(compared)
        more = (
            f" {least} seeds are the fewest with which it could show one." if kind == NONE and found.n < least else ""
        )
        return (
            f"{head}: all {found.n} differences are equal ({found.mean:+.3g}), which leaves no t test; the exact test "
            f"gives {p_is(found.permutation_p)}, corrected {said_p(found.holm_p)}.{more}"
        )
    if kind in (BETTER, WORSE):
        return f"{kind.capitalize()} than {other}: {gap}, corrected {p_is(found.holm_p)}, {found.n} seeds."
    return f"No difference shown to {other}: {gap}, corrected {p_is(found.holm_p)}. " + _more(
        found, compared, interesting
    )


def _more(found: Difference, compared: int, interesting: float | None) -> str:
    assert found.deviation is not None
    alpha = ALPHA / max(1, compared)
    least = detectable(found.n, alpha)
    missed = f"{found.n} seeds would miss most differences under {least * found.deviation:.2g}" if least else ""
    size = interesting / found.deviation if interesting else abs(found.effect or 0.0)
    enough = seeds_needed(size, alpha)
    if interesting:
        what = f"for a difference of {interesting:.3g}"
    else:
        what = "if the true difference is as large as the one seen"
    if enough is None:
        ask = f"more than {MOST:,} seeds would be needed {what}"
    elif enough <= found.n and interesting:
        ask = f"{found.n} seeds are enough {what}"
    else:
        ask = f"about {max(enough, found.n + 1)} seeds would do {what}"
    advice = "; ".join(filter(None, (missed, ask)))
    return f"{advice[0].upper()}{advice[1:]}."


def too_few(n: int, compared: int) -> str:
    """Why there is no verdict, and what would give one."""
    have = {0: "No common seed", 1: "1 common seed"}.get(n, f"{n} common seeds")
    return (
        f"Too few seeds: {have}, and a verdict needs at least {FEWEST}; from {exact_from(compared)} on "
        "the exact test can confirm it."
    )


def said_gap(found: Difference) -> str:
    """The difference and its interval: "+0.012 (95 % interval -0.002 to 0.026)"."""
    low, high = found.interval or (math.nan, math.nan)
    return f"{found.mean:+.3g} (95 % interval {low:.3g} to {high:.3g})"


def said_p(p: float | None) -> str:
    """A p for a table."""
    return "none" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def p_is(p: float | None) -> str:
    """A p for a sentence: "p = 0.03", "p < 0.0001"."""
    return f"p {said_p(p)}" if p is not None and p < 1e-4 else f"p = {said_p(p)}"


def exact_from(compared: int, alpha: float = ALPHA) -> int:
    """The fewest seeds whose smallest permutation p, corrected for so many arms, is at most alpha."""
    return max(FEWEST, math.ceil(1 + math.log2(max(1, compared) / alpha)))


def seeds_needed(effect: float, alpha: float, power: float = POWER) -> int | None:
    """The fewest seeds with which a paired t test finds an effect (d_z) with this power; None beyond MOST."""
    from statsmodels.stats.power import TTestPower

    test = TTestPower()
    size = abs(effect)

    def reached(n: int) -> bool:
        found = float(test.power(size, n, alpha))
        return found >= power or math.isnan(found)  # not a number where it is 1 to the last digit

    low, high = FEWEST, MOST
    if size == 0 or not reached(high):
        return None
    while low < high:  # power grows with n
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low


@lru_cache(maxsize=1024)
def detectable(n: int, alpha: float, power: float = POWER) -> float | None:
    """The effect (d_z) that n seeds find with this power."""
    from statsmodels.stats.power import TTestPower

    low, high = 0.0, 100.0
    test = TTestPower()
    for _ in range(24):
        middle = (low + high) / 2
        found = float(test.power(middle, n, alpha))
        low, high = (low, middle) if found >= power or math.isnan(found) else (middle, high)
    return high if high < 99 else None
