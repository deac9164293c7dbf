"""Simple models that a transformer is compared with: the most frequent class, linear models, neighbours.

Reference: scikit-learn LogisticRegression, Ridge, NearestCentroid, TfidfVectorizer

The cost of a model is bounded: it is fitted on samples at equal distances, and on no more classes and features than the
limits below. Fitted on all of the web pages of 509 languages, one of them once took the memory of its machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blockyard.contracts import SimpleModel

MOST_SAMPLES = 10_000  # training samples
MOST_CLASSES = 100  # of a logistic regression
MOST_WORDS = 50_000  # different words
MOST_TOKENS = 10_000_000  # of the texts together
_SAMPLES_BY_CLASSES = 200_000  # of a logistic regression
_WEIGHTS = 1_000_000  # of a logistic regression, words by classes

Predict = Callable[[Tensor], Tensor]


def equally_spaced(count: int, most: int) -> Tensor:
    """Return the indices of at most `most` of `count` samples, at equal distances, (m,) int64."""
    # From 2^24 on single precision rounds the last index up to `count`.
    precise = torch.float64 if count > 2**24 else torch.float32
    return torch.linspace(0, count - 1, min(count, most), dtype=precise).long()


def sampled(verb: str, used: int, count: int) -> str | None:
    """Return "fitted on 5,000 of 60,000 samples", or None where all are used."""
    if used == count:
        return None
    return f"{verb} on {used:,} of {count:,} samples"


def majority_model(counts: Tensor) -> SimpleModel:
    """Return the model that always predicts the most frequent class. counts: (V,) of the training split."""
    return SimpleModel("majority", lambda: lambda order: majority(counts, len(order)))


def majority(counts: Tensor, samples: int) -> Tensor:
    """Return logits (samples, V): the logarithm of each class's share of the training split, counts (V,)."""
    share = counts.double() / counts.sum()
    return share.log().float().expand(samples, -1)


def most_of_classes(classes: int, most: int = MOST_SAMPLES) -> int:
    """Return the number of samples that a logistic regression of `classes` classes is fitted on."""
    # Its time grows with the product of samples and classes.
    return min(most, _SAMPLES_BY_CLASSES // max(classes, 1))


def check_classes(classes: int) -> None:
    """Raise ValueError for more classes than a logistic regression is fitted for."""
    if classes > MOST_CLASSES:
        raise ValueError(f"{classes:,} classes; a linear model is fitted for at most {MOST_CLASSES}")


def tf_idf(
    texts: Callable[[Tensor], list[str]], target: Tensor, tested: Callable[[Tensor], list[str]], classes: int, most: int
) -> SimpleModel:
    """Return a logistic regression on the weighted words of a text; for more than MOST_CLASSES the nearest centroid.

    scikit-learn's TfidfVectorizer finds and weights the words, with the logarithm of their count. A class without a
    sample has a logit of minus infinity.

    texts, tested: return the texts of the samples `order` of the training split, and of the tested split
    target: (n,) int64 classes of the training split; most: maximum number of samples that it is fitted on
    """
    many = classes > MOST_CLASSES
    if not many:
        most = most_of_classes(classes, most)
    chosen = equally_spaced(len(target), most)

    def fit() -> Predict:
        from sklearn.feature_extraction.text import TfidfVectorizer

        num_words = MOST_WORDS
        if not many:
            num_words = min(MOST_WORDS, _WEIGHTS // classes)  # the regression has a weight for each word and class
        vectors = TfidfVectorizer(sublinear_tf=True, max_features=num_words)
        try:
            features = vectors.fit_transform(texts(chosen))
        except ValueError:  # no word of two letters in any text
            counts = target.bincount(minlength=classes)
            return lambda order: majority(counts, len(order))
        if many:
            predict = _centroids_of_words(features, target[chosen], classes)
        else:
            predict = _logistic(features, target[chosen], classes, C=10.0)
        return lambda order: predict(vectors.transform(tested(order)))

    note = sampled("fitted", len(chosen), len(target))
    if many:
        return SimpleModel("tf_idf_centroid", fit, note, ("loss",))  # cosines are no log probabilities
    return SimpleModel("tf_idf", fit, note)


def linear(fit: Tensor, target: Tensor, classes: int, iterations: int = 200) -> Callable[[Tensor], Tensor]:
    """Fit a logistic regression on values (m, F); return the function from values to logits (n, V).

    NaN in standardized values counts as their mean, 0. Raises ValueError for more than MOST_CLASSES classes.
    """
    check_classes(classes)
    present = target.unique()
    if len(present) == 1:  # scikit-learn refuses a single class
        logits = torch.full((classes,), -torch.inf).index_fill(0, present, 0.0)
        return lambda values: logits.expand(len(values), -1)
    predict = _logistic(fit.nan_to_num().numpy(), target, classes, max_iter=iterations)
    return lambda values: predict(values.nan_to_num().numpy())


def _logistic(features: object, target: Tensor, classes: int, **options: float) -> Callable[..., Tensor]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(**{"max_iter": 100, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a baseline do not matter
        model.fit(features, target.numpy())
    present = torch.from_numpy(model.classes_)  # the classes with a sample, ascending

    def predict(values: object) -> Tensor:
        log_probabilities = torch.from_numpy(model.predict_log_proba(values)).float()  # (n, present classes)
        logits = torch.full((len(log_probabilities), classes), -torch.inf)
        return logits.index_copy_(1, present, log_probabilities)

    return predict


def _centroids_of_words(features: object, target: Tensor, classes: int) -> Callable[..., Tensor]:
    """Fit the mean of each class of sparse rows of norm 1; return the function from rows to cosines (n, V)."""
    import numpy as np
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    ones = np.ones(len(target), dtype=np.float32)
    members = csr_array((ones, (target.numpy(), np.arange(len(target)))), shape=(classes, len(target)))
    centroids = normalize(members @ features)  # (V, F), of sums: their direction is that of the means
    absent = target.bincount(minlength=classes) == 0

    def predict(values: object) -> Tensor:
        cosines = torch.from_numpy((values @ centroids.T).toarray()).float()
        return cosines.masked_fill(absent, -torch.inf)

    return predict


def nearest_centroid(fit: Tensor, target: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Fit the mean of each class of values (m, F); return the function from values to negative distances (n, V)."""
    fit = fit.nan_to_num()
    counts = target.bincount(minlength=classes)
    means = torch.zeros(classes, fit.shape[1]).index_add_(0, target, fit) / counts.clamp_min(1)[:, None]
    absent = counts == 0
    return lambda values: (-torch.cdist(values.nan_to_num(), means)).masked_fill(absent, -torch.inf)


def ridge(fit: Tensor, target: Tensor) -> Callable[[Tensor], Tensor]:
    """Fit least squares with a small penalty on values (m, F); return the function from values to targets (n, V).

    target: (m, V), NaN where a value is missing
    """
    fit = fit.nan_to_num().double()
    mean, std = fit.mean(0), fit.std(0, correction=0)
    std = torch.where(std > 1e-9, std, torch.inf)  # a feature that does not vary counts for nothing
    weights = []
    offsets = []
    # Each target has samples of its own, and so equations of its own.
    for column in target.double().unbind(1):
        has_target = ~column.isnan()
        x = (fit[has_target] - mean) / std
        y = column[has_target]
        level = y.mean() if len(y) else torch.zeros((), dtype=torch.float64)
        penalty = max(1e-3 * len(y), 1e-3)  # x.T @ x alone is singular for equal features
        square = x.T @ x + torch.eye(x.shape[1], dtype=torch.float64) * penalty
        weights.append(torch.linalg.solve(square, x.T @ (y - level)))
        offsets.append(level)
    matrix, offset = torch.stack(weights, 1), torch.stack(offsets)
    return lambda values: (((values.nan_to_num().double() - mean) / std) @ matrix + offset).float()


def nearest_sources(fit: Sequence[str]) -> Callable[[Sequence[str]], list[int]]:
    """Fit the weighted words of texts; return the function from texts to the index of the most similar one of `fit`."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    # scikit-learn's default pattern drops words of one letter, which short sources may consist of.
    vectors = TfidfVectorizer(sublinear_tf=True, max_features=MOST_WORDS, token_pattern=r"(?u)\b\w+\b")
    try:
        fitted = vectors.fit_transform(fit)
    except ValueError:
        raise ValueError("the training sources have no words") from None

    def nearest(texts: Sequence[str]) -> list[int]:
        similar = (vectors.transform(texts) @ fitted.T).toarray()
        return [int(index) for index in similar.argmax(1)]

    return nearest
