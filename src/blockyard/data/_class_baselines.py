"""Simple models of texts with a class each, beside which a transformer is judged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = 10_000  # texts that a baseline is fitted on


def majority(counts: Tensor, samples: int) -> Tensor:
    """Returns logits (samples, V): the logarithm of each class's share of the training split, counts (V,)."""
    share = counts.double() / counts.sum()
    return share.log().float().expand(samples, -1)


def tf_idf(fit: Sequence[str], target: Tensor, texts: Sequence[str], classes: int) -> Tensor:
    """Returns logits (n, V) of a logistic regression on the weighted words of a text, fitted on `fit`.

    Words are those of scikit-learn's TfidfVectorizer, with the logarithm of their count. Of more than LARGEST texts as
    many are taken at equal distances, so that a baseline takes seconds. A class without one has a logit of minus
    infinity.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    chosen = torch.linspace(0, len(fit) - 1, min(len(fit), LARGEST)).long()
    fit, target = [fit[i] for i in chosen.tolist()], target[chosen]
    logits = torch.full((len(texts), classes), -torch.inf)
    vectors = TfidfVectorizer(sublinear_tf=True)
    try:
        features = vectors.fit_transform(fit)
    except ValueError:  # no word of two letters in any text
        return majority(target.bincount(minlength=classes), len(texts))
    model = LogisticRegression(C=10.0, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a baseline do not matter
        model.fit(features, target.numpy())
    logits[:, torch.from_numpy(model.classes_)] = torch.from_numpy(
        model.predict_log_proba(vectors.transform(texts))
    ).float()
    return logits
