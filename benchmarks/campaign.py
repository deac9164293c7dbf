"""Simulate campaigns of 200 proposals, and count the false and the true keeps of each rule.

    python benchmarks/campaign.py                     the table in docs/campaigns.md
    python benchmarks/campaign.py --campaigns 200     a quick look

A campaign has 200 proposals in a random order: 150 change nothing, 50 have true gains of 0.5, 1, 1.5, 2 and 3 standard
deviations of the difference of a pair, ten of each. Values are normal; the gains of kept proposals add up. All
proposals that meet one baseline share its runs, and so its noise. The rules:

    e-LOND        `campaign` with its defaults, tries=200: from 4 pairs of runs to 20, error 0.05; a kept proposal
                  becomes the baseline with new seeds, and is measured beside the base on 8 others
    fresh         the same with fresh=true: seeds of its own for each proposal
    greedy        one run, kept where it is better than the last kept one, which becomes the baseline with its luck
    two-sigma     five runs, kept where the mean gain of the pairs is more than two of its standard errors; likewise

The oracle knows every true gain. The share of the true gain that a rule has kept is of all that there is to gain; false
is the mean, over campaigns, of the share of false keeps among all keeps. Cost is the number of runs, of proposals,
baselines and measurements.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from blockyard.campaign.judgement import decide, level

TRIES = 200
EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)
EACH = 10
FIRST = 4
MOST = 20
ERROR = 0.05
MEASURE = 8


class Ended(NamedTuple):
    """The end of a proposal: whether it was kept, and the pairs that it took."""

    kept: bool
    pairs: int


Rule = Callable[[np.ndarray, int], Ended]


def e_lond(gains: np.ndarray, kept: int) -> Ended:
    """Judge as `campaign try` does."""
    alpha = level(ERROR, TRIES, kept)
    for pairs in range(FIRST, MOST + 1):
        decision = decide(gains[:pairs].tolist(), 1.0, alpha, MOST)
        if decision is not None:
            return Ended(decision.verdict == "kept", pairs)
    raise AssertionError("a last look decides")


def greedy(gains: np.ndarray, _: int) -> Ended:
    """Keep what is better in one pair."""
    return Ended(bool(gains[0] > 0), 1)


def two_sigma(gains: np.ndarray, _: int) -> Ended:
    """Keep what is two standard errors better in five pairs."""
    seen = gains[:5]
    return Ended(bool(seen.mean() > 2 * seen.std(ddof=1) / math.sqrt(len(seen))), len(seen))


class Policy(NamedTuple):
    """A rule, and whose runs a proposal meets.

    own: its own runs of the baseline
    renewed: the baseline's runs on new seeds after each keep, beside a measurement; else the kept ones
    """

    rule: Rule
    own: bool = False
    renewed: bool = False


RULES = {
    "e-LOND": Policy(e_lond, renewed=True),
    "e-LOND, fresh": Policy(e_lond, own=True, renewed=True),
    "greedy": Policy(greedy),
    "two-sigma": Policy(two_sigma),
}


class Result(NamedTuple):
    """The end of a campaign."""

    kept: int
    false: int
    gain: float
    runs: int
    by_effect: tuple[float, ...]


def simulate(policy: Policy, draw: np.random.Generator) -> Result:
    """Return the end of one campaign."""
    effects = np.repeat([0.0, *EFFECTS], [TRIES - EACH * len(EFFECTS), *[EACH] * len(EFFECTS)])
    draw.shuffle(effects)
    noise = draw.normal(scale=math.sqrt(0.5), size=(2, TRIES + 1, MOST))  # of proposals, and of baselines
    baseline = noise[1, TRIES]
    kept: list[float] = []
    runs = 0
    of_baseline = 0  # runs of the present baseline on common seeds
    for number, effect in enumerate(effects):
        met = noise[1, number] if policy.own else baseline
        ended = policy.rule(effect + noise[0, number] - met, len(kept))
        runs += ended.pairs
        if policy.own:
            runs += ended.pairs
        elif ended.pairs > of_baseline:
            runs += ended.pairs - of_baseline
            of_baseline = ended.pairs
        if not ended.kept:
            continue
        kept.append(float(effect))
        if policy.renewed:
            baseline = noise[1, number]
            of_baseline = 0
            runs += 2 * MEASURE
        else:
            baseline = noise[0, number]
    counts = tuple(kept.count(effect) / EACH for effect in EFFECTS)
    return Result(len(kept), kept.count(0.0), sum(kept), runs, counts)


def row(name: str, results: Sequence[Result]) -> list[str]:
    """Return the means over campaigns."""
    shares = [result.false / max(1, result.kept) for result in results]
    possible = EACH * sum(EFFECTS)
    mean = statistics.fmean(shares)
    error = statistics.stdev(shares) / math.sqrt(len(shares))
    by_effect = [statistics.fmean(result.by_effect[index] for result in results) for index in range(len(EFFECTS))]
    return [
        name,
        f"{statistics.fmean(result.kept for result in results):.1f}",
        f"{100 * mean:.2f} ± {100 * error:.2f} %",
        f"{100 * statistics.fmean(result.gain for result in results) / possible:.1f} %",
        *(f"{100 * share:.0f} %" for share in by_effect),
        f"{statistics.fmean(result.runs for result in results):,.0f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=2_000)
    campaigns = parser.parse_args().campaigns
    header = ["rule", "kept", "false keeps", "true gain", *(f"d = {effect:g}" for effect in EFFECTS), "runs"]
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for name, policy in RULES.items():
        draw = np.random.default_rng(0)
        results = [simulate(policy, draw) for _ in range(campaigns)]
        print("| " + " | ".join(row(name, results)) + " |", flush=True)


if __name__ == "__main__":
    main()
