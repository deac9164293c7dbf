"""Claims on differences of differences, such as interactions of two factors, and interactions in the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from blockyard.errors import UserError
from blockyard.report.arms.answer import answer
from blockyard.report.load.document import EffectsRow, InteractionRow
from blockyard.report.stats.expectations import evaluate
from blockyard.sweep.spec.expectation import Claim, parse

ARMS = ["pre-0", "pre-200", "post-0", "post-200", "(pre-0 - post-0)"]
CLAIM = "(post-200 - post-0) > (pre-200 - pre-0)"


def values(gain: float, seeds: int = 6) -> dict[str, dict[int, float | None]]:
    """A warm-up helps post-norm by `gain` more than pre-norm; seeds have levels of their own."""
    draw = np.random.default_rng(0)
    means = {"pre-0": 0.9, "pre-200": 0.91, "post-0": 0.7, "post-200": 0.71 + gain}
    level = 0.05 * draw.normal(size=seeds)
    return {arm: dict(enumerate(mean + level + 0.003 * draw.normal(size=seeds))) for arm, mean in means.items()}


def contrast(of: dict[str, dict[int, float | None]]) -> np.ndarray:
    post, pre = (
        np.array([*of[f"{norm}-200"].values()]) - np.array([*of[f"{norm}-0"].values()]) for norm in ("post", "pre")
    )
    return np.asarray(post - pre, dtype=float)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (CLAIM, [Claim("post-200", ">", "pre-200", ("post-0", "pre-0"))]),
        (CLAIM.replace(" > ", "<="), [Claim("pre-200", ">=", "post-200", ("pre-0", "post-0"))]),
        ("(pre-0 - post-0) > pre-0", [Claim("(pre-0 - post-0)", ">", "pre-0")]),  # an arm of that name
        (
            "post-0 > pre-0 and ('pre-0' - 'pre-200') ~ (post-0 - post-200)",
            [Claim("post-0", ">", "pre-0"), Claim("pre-0", "~", "post-0", ("pre-200", "post-200"))],
        ),
    ],
)
def test_differences_are_read(text: str, claims: list[Claim]) -> None:
    assert parse(text, ARMS) == claims
    assert parse(" and ".join(map(str, claims)), ARMS) == claims


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(pre-0 - pre-200) > post-0", "compares a difference with an arm"),
        ("(pre-0 - pre-0) > (post-0 - post-200)", "compares pre-0 with itself"),
        ("(pre-0 - pre-200) > (pre-0 - pre-200)", "compares pre-0 - pre-200 with itself"),
        ("(pre-0 - pre-20) > (post-0 - post-200)", "unknown arm 'pre-20'; did you mean pre-200"),
    ],
)
def test_what_is_no_contrast_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text, ARMS)


@pytest.mark.parametrize("direction", ["max", "min"])
def test_it_is_the_t_test_of_the_difference_of_differences(direction: str) -> None:
    of = values(0.02 if direction == "max" else -0.02)
    outcome = evaluate(CLAIM, of, direction)
    test = stats.ttest_1samp(contrast(of), 0)
    interval = test.confidence_interval()
    assert outcome.verdict == "supported"
    assert outcome.reason == (
        f"(post-200 - post-0) against (pre-200 - pre-0): {contrast(of).mean():+.3g} "
        f"(95 % interval {interval.low:.3g} to {interval.high:.3g}), p = {test.pvalue:.2g}, 6 seeds"
    )
    assert evaluate(CLAIM, of, "min" if direction == "max" else "max").verdict == "contradicted"


def test_a_main_effect_is_no_interaction() -> None:
    """Post-norm is far worse, and a warm-up helps both alike."""
    of = values(0.0)
    assert evaluate("pre-0 > post-0", of, "max").verdict == "supported"
    assert evaluate(CLAIM, of, "max").verdict == "undecided"
    assert evaluate(CLAIM.replace(">", "~"), of, "max").verdict == "supported"
    assert "1% of the mean of pre-0" in evaluate(CLAIM.replace(">", "~"), of, "max").reason


def test_only_seeds_of_all_four_arms_count() -> None:
    of = values(0.02)
    of["pre-0"].pop(1)
    of["post-200"][2] = None
    assert evaluate(CLAIM, of, "max").reason.endswith("4 seeds")
    of["pre-200"] = {}
    assert "0 common seeds" in evaluate(CLAIM, of, "max").reason
    assert evaluate(CLAIM, of, "max", missing={"pre-200": "was refused"}).reason.endswith("pre-200 was refused")


def test_equal_gains_are_equal_in_single_precision() -> None:
    """Differences of float32 accuracies differ by rounding that is no result."""
    of: dict[str, Any] = {
        arm: {seed: float(np.float32(mean + seed / 360)) for seed in range(5)}
        for arm, mean in {"pre-0": 0.9, "pre-200": 0.91, "post-0": 0.7, "post-200": 0.71}.items()
    }
    assert evaluate(CLAIM, of, "max").verdict == "undecided"
    assert evaluate(CLAIM.replace(">", "~"), of, "max").reason.endswith("the same values on every seed")


def test_a_contrast_of_the_wrong_sign_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(claim: Claim) -> tuple[tuple[str], tuple[str]]:
        return (claim.arm,), (claim.other,)  # what is subtracted is forgotten

    monkeypatch.setattr(Claim, "sums", property(planted))
    with pytest.raises(AssertionError):
        test_it_is_the_t_test_of_the_difference_of_differences("max")


def test_the_answer_names_significant_interactions() -> None:
    tests = [(["norm", "warmup"], 32.2, 0.001), (["norm", "rate"], 1.2, 0.4), (["warmup", "rate"], None, None)]
    interactions = [InteractionRow(factors=pair, F=f, p=p, holm_p=p, cells=[], levels=[]) for pair, f, p in tests]
    text = answer([], None, "test/loss", None, EffectsRow(main=[], interactions=interactions, formula=""))
    assert text.endswith("What norm changes depends on warmup (F = 32.2, corrected p = 0.001).")
    assert "rate" not in text
