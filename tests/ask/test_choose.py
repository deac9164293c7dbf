"""Steps, seeds and margin: what fits into the hours, and what so many seeds decide."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from blockyard.ask.choose import USED, choose_length, resolution
from blockyard.errors import UserError
from blockyard.report.stats.sensitivity import SweepDesign, sensitivity
from blockyard.sweep.stopping.rule import StoppingRule


def runs(start: float, step: float, arms: int = 2) -> Callable[[int], Sequence[float]]:
    """Return a function of the steps: the seconds of a run of each arm."""
    return lambda steps: [start + step * steps * (1 + number) for number in range(arms)]


def busy(times: Sequence[float], seeds: int, parallel: int) -> float:
    """Return the seconds until the last run has ended, of runs in the order of seeds."""
    free = [0.0] * parallel
    for seconds in list(times) * seeds:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


@pytest.mark.parametrize("parallel", [1, 2, 7])
@pytest.mark.parametrize("hours", [0.05, 0.2, 1.0, 8.0])
def test_a_sweep_fits_into_the_hours(hours: float, parallel: int) -> None:
    seconds_of = runs(2.0, 0.02)
    length = choose_length(seconds_of, 600, parallel, hours)
    measured = busy(seconds_of(length.steps), length.seeds, parallel)
    assert measured <= length.seconds * (1 + 1e-9)
    assert length.seconds <= USED * hours * 3600
    assert length.steps <= 600
    if length.seeds > 5:
        assert length.steps == 600


def test_steps_are_cut_before_seeds_and_seeds_are_added_where_there_is_time() -> None:
    seconds_of = runs(0.0, 0.1, arms=1)
    assert choose_length(seconds_of, 1000, 1, 1.0).seeds == 20
    seven = choose_length(seconds_of, 1000, 1, 710 / 3600 / USED)
    assert (seven.steps, seven.seeds) == (1000, 7)
    assert seven.seconds == pytest.approx(700)
    cut = choose_length(seconds_of, 1000, 1, 250 / 3600 / USED)
    assert cut.seeds == 5
    assert cut.steps == pytest.approx(500, rel=0.03)


def test_hours_that_are_too_short_name_some_that_would_do() -> None:
    seconds_of = runs(5.0, 1.0)
    with pytest.raises(UserError) as refused:
        choose_length(seconds_of, 800, 2, 0.1)
    enough = float(str(refused.value).partition("; hours=")[2].partition(" ")[0])
    assert choose_length(seconds_of, 800, 2, enough).steps >= 100
    with pytest.raises(UserError):
        choose_length(seconds_of, 800, 2, 0.6 * enough)


def test_the_noise_is_pooled_over_arms() -> None:
    scores = [[1.0, 1.4], [2.0, 2.1], [0.5, 0.5]]
    result = resolution("test/mse", scores, seeds=8, test_samples=100)
    pooled = np.mean([np.var(arm, ddof=1) for arm in scores])
    assert result.deviation == pytest.approx(math.sqrt(2 * pooled))
    assert result.smallest == pytest.approx(
        StoppingRule("boundary", 3, 8).radius(8, 7 * result.deviation**2, 0.05 / 2), rel=1e-9
    )
    assert result.margin > 0


def test_the_smallest_difference_is_that_of_the_plan() -> None:
    """The plan prints it in standard deviations, by a way of its own."""
    scores = [[0.80, 0.84], [0.85, 0.86]]
    result = resolution("test/accuracy", scores, seeds=10, test_samples=10**6)
    design = SweepDesign("test/accuracy", 10, 1, StoppingRule("boundary", 3, 10), None, None, {})
    sentence = next(sensitivity(design, None))
    units = float(sentence.partition("a difference of ")[2].partition(" ")[0])
    assert result.smallest / result.deviation == pytest.approx(units, rel=0.01)


def test_two_seeds_that_agree_are_not_taken_for_no_noise() -> None:
    result = resolution("test/accuracy", [[0.9, 0.9], [0.9, 0.9]], seeds=8, test_samples=200)
    assert result.deviation == pytest.approx(0.5 * math.sqrt(2 * 0.9 * 0.1 / 200))
    assert result.margin >= 2 / 200
