"""What the page shows of the predictions for single test samples, from the files that the runs keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from blockyard.report.load.document import CalibrationRow, ClassTable, SampleRow, SampleTables, ValueTable
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.samples.views import views
from blockyard.runs.predictions_file import TEST, read_predictions

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions


# Scores of a classifier from its predictions: confusion matrix, scores of each class, calibration.
#
# Source: Guo et al. 2017, On Calibration of Modern Neural Networks (arXiv 1706.04599), equation 3, for the expected
#     calibration error and the reliability diagram
# Reference: sklearn.metrics.confusion_matrix, precision_recall_fscore_support;
#     torchmetrics MulticlassCalibrationError with n_bins=15 and norm="l1"
# Equation: ECE = sum_b n_b / n |accuracy of bin b - mean confidence of bin b|, over 15 bins of equal width

BINS = 15


@dataclass(frozen=True)
class Calibration:
    """Reliability over BINS bins of the probability of the predicted class, (low, high].

    count: (BINS,) samples; confidence, accuracy: (BINS,) means, NaN in an empty bin; ece: the mean gap
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    ece: float


def class_count(predictions: SamplePredictions) -> int:
    """Return V: as recorded, and at least as many as occur."""
    seen = int(max(predictions["top"].max(), predictions["target"].max())) + 1
    recorded = predictions.meta.get("classes")
    return max(seen, recorded) if isinstance(recorded, int) and recorded < 1_000_000 else seen


def confusion(predictions: SamplePredictions, classes: int) -> np.ndarray:
    """Return the counts (V, V) int64: rows are the classes of the targets, columns the predicted ones."""
    target, predicted = _labelled(predictions)
    return np.bincount(target * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(counts: np.ndarray) -> np.ndarray:
    """Return precision, recall, F1 and support (V, 4) of a confusion matrix (V, V); NaN where one is 0 / 0."""
    hits, predicted, support = np.diag(counts), counts.sum(0), counts.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([hits / predicted, hits / support, 2 * hits / (predicted + support), support], axis=1)


def calibration(predictions: SamplePredictions) -> Calibration:
    """Return how well the probability of the predicted class agrees with how often it is right."""
    labelled = predictions["target"] >= 0
    confidence = predictions["probability"][labelled, 0].astype(np.float64)
    right = (predictions["top"][:, 0] == predictions["target"])[labelled]
    # (low, high]: the first bin takes a probability of 0 as well.
    index = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    count = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, weights=values, minlength=BINS) / count for values in (confidence, right)]
    gaps = np.where(count > 0, np.abs(means[1] - means[0]), 0.0)
    ece = float((count * gaps).sum() / count.sum()) if len(confidence) else float("nan")
    return Calibration(count, means[0], means[1], ece)


def _labelled(predictions: SamplePredictions) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and predicted classes of the samples that have a target."""
    labelled = predictions["target"] >= 0
    return predictions["target"][labelled].astype(np.int64), predictions["top"][labelled, 0].astype(np.int64)


# The figures of one arm that predicts real values: errors, and predicted against true values.

MAX_DOTS = 300  # of predicted against true values


def value_table(arm: str, runs: list[SamplePredictions]) -> ValueTable:
    """Return the errors in the units of the data, and pairs of true value and mean prediction over the runs."""
    target = runs[0]["target"].astype(np.float64)  # (n, V)
    predicted = np.asarray(np.mean([run["prediction"] for run in runs], axis=0, dtype=np.float64))
    finite = np.isfinite(target)
    errors = [np.where(finite, run["prediction"] - target, np.nan) for run in runs]
    pairs = np.stack([target[finite], predicted[finite]], axis=1)
    step = max(1, -(-len(pairs) // MAX_DOTS))
    rmse: float | None = None
    mae: float | None = None
    bias: float | None = None
    if finite.any():
        rmse = float(np.mean([np.sqrt(np.nanmean(error**2)) for error in errors]))
        mae = float(np.mean([np.nanmean(np.abs(error)) for error in errors]))
        bias = float(np.mean([np.nanmean(error) for error in errors]))
    return ValueTable(arm=arm, runs=len(runs), rmse=rmse, mae=mae, bias=bias, dots=pairs[::step].tolist())


# The tables of one arm that classifies: means over its runs.

MAX_MATRIX = 40  # classes of a confusion matrix; with more, only the most frequent confusions are listed
MAX_CLASSES = 200  # classes in the table of scores, those with the lowest F1
MAX_CONFUSED = 25


def class_table(arm: str, runs: list[SamplePredictions]) -> ClassTable:
    """Return the confusion matrix (counts of all runs), scores of the classes and the calibration of an arm."""
    classes = max(map(class_count, runs))
    counts = [confusion(run, classes) for run in runs]
    total = np.sum(counts, axis=0)
    scores = _mean([class_scores(matrix) for matrix in counts])
    shown = np.argsort(np.nan_to_num(scores[:, 2], nan=2.0), kind="stable")[:MAX_CLASSES]
    reliability = [calibration(run) for run in runs]
    counted = np.sum([bins.count for bins in reliability], axis=0)
    f1 = scores[:, 2]
    return ClassTable(
        arm=arm,
        runs=len(runs),
        confusion=total.tolist() if classes <= MAX_MATRIX else None,
        confused=_confused(total),
        scores=[[int(index), *map(_number, scores[index])] for index in sorted(shown.tolist())],
        macro_f1=_number(np.nanmean(f1)) if np.isfinite(f1).any() else None,
        calibration=CalibrationRow(
            count=counted.tolist(),
            confidence=_numbers(_pooled(reliability, "confidence", counted)),
            accuracy=_numbers(_pooled(reliability, "accuracy", counted)),
            ece=_number(float(np.mean([bins.ece for bins in reliability]))),
            ece_runs=[_number(bins.ece) for bins in reliability],
        ),
    )


def _confused(counts: np.ndarray) -> list[list[int]]:
    """The most frequent confusions: [class, predicted class, how often]."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSED]
    pairs = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)]
    return [[row, column, int(wrong[row, column])] for row, column in pairs if wrong[row, column]]


def _pooled(reliability: list[Any], name: str, every: np.ndarray) -> np.ndarray:
    """The mean of each bin over the samples of all runs."""
    sums = np.sum([each.count * np.nan_to_num(getattr(each, name)) for each in reliability], axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / every)


def _mean(scores: list[np.ndarray]) -> np.ndarray:
    """The mean over runs (V, 4), without those in which a score is 0 / 0."""
    stack = np.stack(scores)
    finite = np.isfinite(stack)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(finite, stack, 0).sum(0) / finite.sum(0))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values]


# Which samples to look at: those with the highest loss, and those about which the runs disagree most.
#
# Source: Freeman 1965, Elementary Applied Statistics, for the variation ratio 1 - (votes of the most frequent class) /
# n


def worst(runs: Sequence[SamplePredictions], most: int) -> np.ndarray:
    """Return the rows of the samples with the highest mean loss over the runs, the highest first."""
    loss = np.mean([run["loss"] for run in runs], axis=0)
    order = np.lexsort((np.arange(len(loss)), -loss))  # NaN, the samples without a target, are last
    return order[: min(most, int(np.isfinite(loss).sum()))]


def disputed(runs: Sequence[SamplePredictions], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the samples about which the runs disagree most, and the disagreement of each.

    For classes it is the variation ratio of the predicted classes; samples on which all agree are left out. For values
    it is the standard deviation over the runs in standard deviations of the targets, the mean over the values.
    """
    if len(runs) < 2:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    measure = _variation(runs) if runs[0].kind == "classes" else _deviation(runs)
    tie = np.mean([run["loss"] for run in runs], axis=0)
    order = np.lexsort((np.arange(len(measure)), -np.nan_to_num(tie), -measure))
    order = order[measure[order] > 0][:most]
    return order, measure[order]


def _variation(runs: Sequence[SamplePredictions]) -> np.ndarray:
    votes = np.sort(np.stack([run["top"][:, 0] for run in runs], axis=1), axis=1)  # (n, R)
    longest = current = np.ones(len(votes), dtype=np.int64)
    for column in range(1, votes.shape[1]):
        current = np.where(votes[:, column] == votes[:, column - 1], current + 1, 1)
        longest = np.maximum(longest, current)
    return np.asarray(1 - longest / votes.shape[1])


def _deviation(runs: Sequence[SamplePredictions]) -> np.ndarray:
    predicted = np.stack([run["prediction"] for run in runs])  # (R, n, V)
    target = runs[0]["target"]
    scale = np.array([np.std(column[np.isfinite(column)]) if np.isfinite(column).any() else 0 for column in target.T])
    scaled = predicted.std(axis=0) / np.where(scale > 0, scale, 1)
    return np.asarray(scaled.mean(axis=1))


MAX_ARMS = 24  # whose predictions are read
MAX_WORST = 12  # samples of an arm
MAX_DISPUTED = 24
MAX_VIEWS = 160
MAX_NAMED = 4  # runs with other test samples
MAX_VALUES = 48  # of a sample with several values

Runs: TypeAlias = "list[tuple[LoadedRun, SamplePredictions]]"


def samples(records: Iterable[LoadedRun]) -> SampleTables | None:
    """Return the tables and samples of the page; None where no run has predictions.

    Only runs of the same test samples can stand side by side: `left_out` names those that have others than most. The
    pictures and texts of the selected samples are read from the data again.
    """
    by_arm, left_out = _read(records)
    if not by_arm:
        return None
    first_record, first = next(iter(by_arm.values()))[0]
    own = {arm: [each for _, each in runs] for arm, runs in by_arm.items()}
    every = [each for runs in own.values() for each in runs]
    lowest = {arm: [_row(runs, {arm: runs}, index) for index in worst(runs, MAX_WORST)] for arm, runs in own.items()}
    contested = [
        _row(every, own, index, disagreement=float(value))
        for index, value in zip(*disputed(every, MAX_DISPUTED), strict=True)
    ]
    by_rank = (arm[k] for k in range(MAX_WORST) for arm in lowest.values() if k < len(arm))
    wanted = list(dict.fromkeys(row.sample for row in (*contested, *by_rank)))[:MAX_VIEWS]
    shown, note = views(first_record.path, first.meta.get("fingerprint"), wanted)
    classes = first.kind == "classes"
    return SampleTables(
        kind=first.kind,
        kept=len(first),
        of=first.meta.get("of"),
        classes=_class_names(first_record, first),
        left_out=left_out,
        arms=[class_table(*arm) for arm in own.items()] if classes else [value_table(*arm) for arm in own.items()],
        worst=lowest,
        disputed=contested,
        runs=len(every),
        views=shown,
        note=note,
    )


def _read(records: Iterable[LoadedRun]) -> tuple[dict[str, Runs], list[str]]:
    """Return the predictions by arm, of runs of the same test samples, and why others are left out."""
    read: Runs = []
    problems: list[str] = []
    arms: dict[str, None] = {}
    for record in records:
        if not record.done:
            continue
        arms.setdefault(record.arm)
        if len(arms) > MAX_ARMS and list(arms).index(record.arm) >= MAX_ARMS:
            continue
        try:
            own = read_predictions(record.path / TEST)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{record.run}: {error}")
        else:
            if own.kind != "tokens":  # sums of sequences, which have no table
                read.append((record, own))
    if not read:
        return {}, problems
    keys = [_key(each) for _, each in read]
    others: list[str] = []
    most = Counter(keys).most_common(1)[0][0]
    by_arm: dict[str, Runs] = {}
    for (record, each), key in zip(read, keys, strict=True):
        if key == most:
            by_arm.setdefault(record.arm, []).append((record, each))
        else:
            others.append(record.run)
    if len(others) <= MAX_NAMED:
        problems += [f"{run}: its test samples are not those of the other runs" for run in others]
    else:
        problems.append(f"{len(others)} of {len(read)} runs have test samples of their own, {others[0]} among them")
    if len(arms) > MAX_ARMS:
        problems.append(f"only the first {MAX_ARMS} of {len(arms)} arms are read")
    return by_arm, problems


def _key(predictions: SamplePredictions) -> tuple[object, ...]:
    """What must be equal for two runs to be compared sample by sample."""
    target = predictions["target"]
    shape = target.shape if predictions.kind == "values" else predictions.meta.get("classes")
    return (predictions.kind, predictions.meta.get("fingerprint"), predictions["sample"].tobytes(), shape)


def _class_names(record: LoadedRun, predictions: SamplePredictions) -> list[str]:
    if predictions.kind != "classes":
        return []
    named = record.data.get("classes")
    count = class_count(predictions)
    if isinstance(named, list) and len(named) >= count:
        return [str(name) for name in named]
    return [str(index) for index in range(count)]


def _row(
    runs: list[SamplePredictions],
    by_arm: dict[str, list[SamplePredictions]],
    row: int,
    disagreement: float | None = None,
) -> SampleRow:
    """A sample: its target, mean loss over `runs`, and the answers of each arm."""
    first = runs[0]
    sample, loss = int(first["sample"][row]), float(sum(float(run["loss"][row]) for run in runs) / len(runs))
    target: int | list[float | None]
    answers: dict[str, list[list[float]] | list[list[float | None]]]
    if first.kind == "values":
        most = None if first["target"].shape[1] == 1 else 1  # a line is drawn of the first run
        target = _rounded(first, first["target"][row])
        answers = {arm: [_rounded(run, run["prediction"][row]) for run in own[:most]] for arm, own in by_arm.items()}
    else:
        target, answers = int(first["target"][row]), {arm: _votes(own, row) for arm, own in by_arm.items()}
    return SampleRow(sample=sample, loss=loss, target=target, answers=answers, disagreement=disagreement)


def _votes(runs: list[SamplePredictions], row: int) -> list[list[float]]:
    """The predicted classes: [class, how many runs, their mean probability], the most frequent first."""
    votes: dict[int, list[float]] = {}
    for run in runs:
        votes.setdefault(int(run["top"][row, 0]), []).append(float(run["probability"][row, 0]))
    return sorted(([name, len(p), sum(p) / len(p)] for name, p in votes.items()), key=lambda vote: -vote[1])


def _rounded(predictions: SamplePredictions, values: np.ndarray) -> list[float | None]:
    """The first values, without the noise below a millionth of the largest target."""
    largest = float(np.nanmax(np.abs(predictions["target"]), initial=0.0))
    digits = 6 - math.ceil(math.log10(largest)) if largest > 0 else 6
    return [round(float(each), digits) + 0.0 if np.isfinite(each) else None for each in values[:MAX_VALUES]]
