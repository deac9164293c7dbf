"""The score of every run on every test sample, for comparisons over samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blockyard.errors import UserError
from blockyard.report.load.run_record import LoadedRun
from blockyard.runs.predictions_file import TEST, SamplePredictions, read_predictions

SCORES = ("test/accuracy", "test/loss")
_AGREES = 1e-4  # relative, of the mean of the scores with the metric that the run recorded: float32 sums


@dataclass(frozen=True)
class Scores:
    """The scores of one run. sample: (E,) its index; score: (E,) float64; target: what the samples are told apart by"""

    sample: np.ndarray
    target: np.ndarray
    score: np.ndarray


def arm_scores(runs: Iterable[LoadedRun], metric: str) -> dict[int, Scores]:
    """Return the scores of the finished runs of an arm, by seed. Raises UserError where one has none of the metric."""
    return {run.seed: _scores(run, metric) for run in runs if run.done and metric in run.metrics}


def gaps(first: dict[int, Scores], second: dict[int, Scores]) -> np.ndarray:
    """Return the differences (S, E) over the common seeds. Raises UserError where two runs have other samples."""
    rows = []
    for seed in sorted(first.keys() & second.keys()):
        a, b = first[seed], second[seed]
        if not (np.array_equal(a.sample, b.sample) and np.array_equal(a.target, b.target)):
            raise UserError(f"over: the runs of seed {seed} were tested on different samples; use over=seeds")
        rows.append(a.score - b.score)
    if len({len(row) for row in rows}) > 1:
        raise UserError("over: seeds were tested on different numbers of samples; use over=seeds")
    return np.stack(rows) if rows else np.zeros((0, 0))


def _scores(run: LoadedRun, metric: str) -> Scores:
    where = f"over: {run.run}"
    if metric not in SCORES:
        raise UserError(f"over: {metric} is no mean over samples; possible for {' and '.join(SCORES)}")
    try:
        kept = read_predictions(run.path / TEST)
    except FileNotFoundError:
        raise UserError(f"{where} kept no predictions for single test samples; use over=seeds") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
    if len(kept) != kept.meta.get("of", len(kept)):
        raise UserError(f"{where} kept {len(kept)} of {kept.meta['of']} test samples; use over=seeds")
    score = _of_samples(kept, metric)
    labelled = np.isfinite(score)
    value, recorded = float(score[labelled].mean()), run.metrics[metric]
    if abs(value - recorded) > _AGREES * max(abs(recorded), 1e-6):
        raise UserError(
            f"{where}: the mean over its samples, {value:.6g}, is not its {metric}, {recorded:.6g}, which weighs them "
            "otherwise; use over=seeds"
        )
    return Scores(kept["sample"][labelled], kept["target"][labelled], score[labelled])


def _of_samples(kept: SamplePredictions, metric: str) -> np.ndarray:
    """(E,) float64, NaN for a sample without a target."""
    if metric == "test/loss":
        return kept["loss"].astype(np.float64)
    if kept.kind != "classes":
        raise UserError(f"over: {metric} needs predicted classes")
    right = (kept["top"][:, 0] == kept["target"]).astype(np.float64)
    return np.where(kept["target"] >= 0, right, np.nan)
