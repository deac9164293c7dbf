"""The score of every run on every test sample, for comparisons over samples.

A text has a score per token or byte, and sequences of one text are not independent. The units are therefore documents
of different lengths, and the mean is a ratio. With the sum g of a document and its count c, the values of a run are
the pseudo-values of the jackknife, moved so that their mean is the ratio:

    u_d = R + p_d - mean(p)        p_d = (D - 1) (R - R_d)        R = sum(g) / sum(c)

where R_d is the ratio without document d. The variance of R is that of their mean. The linearised variance of a ratio
is too small for few documents of unequal lengths, and so is Student's t with D - 1 degrees of freedom: as long texts
weigh most, `effective_size` counts fewer.

Source: Cochran 1977, Sampling Techniques, sec. 6.4 (the ratio estimate) and 9A (clusters of unequal size); Efron and
Stein 1981, The Jackknife Estimate of Variance; Kish 1965, Survey Sampling (the effective size); Miller 2024
(arXiv 2411.00640), sec. 2.2, for clustered questions. Coverage: by simulation, benchmarks/texts.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blockyard.errors import UserError
from blockyard.report.load.run_record import LoadedRun
from blockyard.runs.predictions_file import TEST, SamplePredictions, read_predictions

SCORES = ("test/accuracy", "test/loss")
OF_TOKENS = "test/loss and test/bits_per_..."
_AGREES = 1e-4  # relative, of the mean of the scores with the metric that the run recorded: float32 sums


class ScoresDisagreeError(UserError):
    """The mean over the samples of a run is not the metric that it recorded."""


@dataclass(frozen=True)
class RunScores:
    """The scores of one run.

    sample: (E,) the index of the sample or of the document
    target: (E,) or (E, V), compared to see that two runs had the same samples
    score: (E,) float64, of a document the sum over its tokens
    count: (E,) float64, the tokens of each document; None where samples weigh alike
    documents: whether the samples are texts of several sequences
    """

    sample: np.ndarray
    target: np.ndarray
    score: np.ndarray
    count: np.ndarray | None = None
    documents: bool = False


def arm_scores(runs: Iterable[LoadedRun], metric: str) -> dict[int, RunScores]:
    """Return the scores of the finished runs of an arm, by seed. Raises UserError where a run has no such scores."""
    scores = {}
    for run in runs:
        if run.done and metric in run.metrics:
            scores[run.seed] = _scores(run, metric)
    return scores


def gaps(first: dict[int, RunScores], second: dict[int, RunScores]) -> np.ndarray:
    """Return the differences (S, E) over the common seeds. Raises UserError where two runs have other samples."""
    differences = []
    counts = []
    for seed in sorted(first.keys() & second.keys()):
        a = first[seed]
        b = second[seed]
        real = np.issubdtype(a.target.dtype, np.floating) and np.issubdtype(b.target.dtype, np.floating)
        same = np.array_equal(a.target, b.target, equal_nan=real)  # a value that is not known is NaN in both
        if not (np.array_equal(a.sample, b.sample) and same):
            raise UserError(f"over: the runs of seed {seed} were tested on different samples; use over=seeds")
        counts.append(a.count)
        differences.append(a.score - b.score)
    if len({len(row) for row in differences}) > 1:
        raise UserError("over: seeds were tested on different numbers of samples; use over=seeds")
    if not differences:
        return np.zeros((0, 0))
    if counts[0] is None:
        return np.stack(differences)
    return _as_ratio(np.stack(differences), counts[0])


def effective_size(scores: dict[int, RunScores]) -> float | None:
    """Return how many documents of one length say as much as those of the runs do; None where samples weigh alike."""
    for run in scores.values():
        if run.count is not None:
            return float(run.count.sum() ** 2 / (run.count**2).sum())
    return None


def _as_ratio(sums: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return values (S, E) with the mean and the variance of the ratio of the sums (S, E) to the counts (E,)."""
    documents = len(count)
    total = sums.sum(1, keepdims=True)
    ratio = total / count.sum()  # (S, 1)
    if documents == 1:
        return ratio
    without = (total - sums) / (count.sum() - count)
    pseudo = (documents - 1) * (ratio - without)
    return ratio + pseudo - pseudo.mean(1, keepdims=True)


def _scores(run: LoadedRun, metric: str) -> RunScores:
    """Return the scores of a finished run. Raises UserError where it has none of the metric."""
    where = f"over: {run.run}"
    of_tokens = metric == "test/loss" or metric.startswith("test/bits_per_")
    if metric not in SCORES and not of_tokens:
        raise UserError(
            f"over: {metric} is not a mean over samples; possible for {' and '.join(SCORES)}, of texts {OF_TOKENS}"
        )
    try:
        kept = read_predictions(run.path / TEST)
    except FileNotFoundError:
        raise UserError(f"{where} kept no predictions for single test samples; use over=seeds") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
    if len(kept) != kept.meta.get("of", len(kept)):
        raise UserError(f"{where} kept {len(kept)} of {kept.meta['of']} test samples; use over=seeds")
    if kept.kind == "tokens":
        return _of_documents(kept, run, metric)
    score = _of_samples(kept, metric)
    labelled = np.isfinite(score)
    _check_mean(float(score[labelled].mean()), run, metric)
    return RunScores(kept["sample"][labelled], kept["target"][labelled], score[labelled])


def _check_mean(value: float, run: LoadedRun, metric: str) -> None:
    """Raise ScoresDisagreeError where a mean over samples is not the metric that the run has recorded."""
    recorded = run.metrics[metric]
    if abs(value - recorded) > _AGREES * max(abs(recorded), 1e-6):
        raise ScoresDisagreeError(
            f"over: {run.run}: the mean over its samples, {value:.6g}, is not its {metric}, {recorded:.6g}, which "
            "weighs them otherwise; use over=seeds"
        )


def _of_documents(kept: SamplePredictions, run: LoadedRun, metric: str) -> RunScores:
    """Return the sums of each text, or of each sequence where the split is one text, in the unit of the metric."""
    if metric == "test/accuracy" or not np.isfinite(run.metrics.get("test/loss", math.nan)):
        raise UserError(f"over: {run.run}: {metric} is not kept of the tokens of a sequence; possible for {OF_TOKENS}")
    unit = run.metrics[metric] / run.metrics["test/loss"]  # nats to bits of a byte, a value or a code
    texts = kept["document"]
    count_of_texts = len(np.unique(texts))
    documents = 1 < count_of_texts < len(texts)
    # Where the split is one long text, its sequences are the units: a single unit has no variance.
    units = texts if count_of_texts > 1 else kept["sample"]
    numbers, place = np.unique(units, return_inverse=True)
    score = np.bincount(place, weights=kept["loss"].astype(np.float64)) * unit
    count = np.bincount(place, weights=kept["count"])
    _check_mean(float(score.sum() / count.sum()), run, metric)
    return RunScores(numbers, count, score, count, documents)


def _of_samples(kept: SamplePredictions, metric: str) -> np.ndarray:
    """Return the scores (E,) float64, NaN for a sample without a target."""
    if metric == "test/loss":
        return kept["loss"].astype(np.float64)
    if kept.kind != "classes":
        raise UserError(f"over: {metric} needs predicted classes")
    right = (kept["top"][:, 0] == kept["target"]).astype(np.float64)
    return np.where(kept["target"] >= 0, right, np.nan)
