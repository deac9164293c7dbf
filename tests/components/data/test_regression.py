"""In-context regression: the answers by sklearn's least squares, the moments of the samples, the baselines of a run."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LinearRegression

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Splits
from blockyard.data.in_context_regression import InContextRegression, RegressionSplit
from blockyard.objective.regress import Regress
from tests.support.tolerances import float32

COMMAND = (
    "data=in_context_regression",
    *("tokenizer=series_patch", "tokenizer.size=1", "tokenizer.stride=1", "tokenizer.pad_end=false"),
    *("tokenizer.normalise=none", "model=decoder", "head=last", "objective=regress", "logger=none"),
)


def load(**options: float) -> Splits:
    data = InContextRegression(samples=400, eval_samples=80, **options)
    parts = Components(compose([*COMMAND]).config)
    return data.load(parts.tokenizer)


def by_sklearn(split: RegressionSplit) -> torch.Tensor:
    """The number of the last vector, by a fit on the pairs of each sample."""
    values = []
    for sample in split.inputs.double().numpy():
        fit = LinearRegression(fit_intercept=False).fit(sample[:-1, :-1], sample[:-1, -1])
        values.append(fit.predict(sample[-1:, :-1])[0])
    return torch.tensor(values)[:, None]


def test_the_target_follows_from_the_pairs() -> None:
    split = load(dim=4, examples=9).test
    torch.testing.assert_close(by_sklearn(split).float(), split.target, **float32(terms=9, layers=4, size=3.0))
    assert not split.inputs[:, -1, -1].any()
    # Planted: numbers of other samples.
    with pytest.raises(AssertionError):
        torch.testing.assert_close(by_sklearn(split).float().roll(1, 0), split.target, rtol=0.1, atol=0.1)


def test_moments_and_independence() -> None:
    data = InContextRegression(dim=3, examples=5, noise=0.5, samples=20_000, eval_samples=500)
    split = data.load(Components(compose([*COMMAND]).config).tokenizer).train
    torch.testing.assert_close(split.target.mean(), torch.tensor(0.0), rtol=0, atol=0.03)
    torch.testing.assert_close(split.target.var(), torch.tensor(1.0), rtol=0, atol=0.06)
    torch.testing.assert_close(split.inputs[:, :-1].var(), torch.tensor(1.0), rtol=0, atol=0.03)
    vectors = split.inputs[:, :, :-1].flatten(1)
    torch.testing.assert_close(vectors.T.cov(), torch.eye(18), rtol=0, atol=0.06)


def test_splits_are_a_function_of_the_seed() -> None:
    one, two, other = load(), load(), load(data_seed=1)
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)
    assert not torch.equal(one.train.inputs[:80], one.validation.inputs)
    assert not torch.equal(one.test.inputs, one.validation.inputs)


def test_least_squares_stands_beside_a_run() -> None:
    """It is exact with enough pairs without noise; with fewer pairs it is better than the mean alone."""
    for examples, noise, low, high in ((12, 0.0, 0.0, 1e-4), (2, 0.0, 0.4, 0.9), (12, 0.5, 0.3, 0.7)):
        splits = load(dim=4, examples=examples, noise=noise)
        baselines = dict(Regress().baselines(splits.test, splits.train))
        assert {"mean", "least_squares", "linear"} <= baselines.keys()
        assert low <= baselines["least_squares"]["rmse"] <= high
        assert baselines["mean"]["rmse"] > 0.75
        assert baselines["linear"]["rmse"] > 0.75  # one map for all samples


def test_it_trains_and_is_checked() -> None:
    assert not check(compose([*COMMAND]))
    assert "series" in " ".join(map(str, check(compose([*COMMAND, "tokenizer=patch"]))))
