"""Tables and samples of the page from the predictions that runs keep for single test samples."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from blockyard.report.load.document import ClassTable, SampleRow, SampleTables, ValueTable
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.samples.classes import class_count, class_table
from blockyard.report.samples.selection import disputed, worst
from blockyard.report.samples.views import views
from blockyard.runs.predictions_file import TEST, read_predictions

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

MAX_DOTS = 300  # of predicted against true values
MAX_ARMS = 24  # whose predictions are read
MAX_WORST = 12  # samples of an arm
MAX_DISPUTED = 24
MAX_VIEWS = 160
MAX_NAMED = 4  # runs with other test samples
MAX_VALUES = 48  # of a sample with several values

Runs: TypeAlias = "list[tuple[LoadedRun, SamplePredictions]]"


def samples(records: Iterable[LoadedRun]) -> SampleTables | None:
    """Return the tables and samples of the page; None where no run has predictions.

    Only runs of the same test samples can stand side by side: `left_out` names the runs with other samples than most.
    The pictures and texts of the selected samples are read from the data again.
    """
    by_arm, left_out = _read(records)
    if not by_arm:
        return None
    first_record, first = next(iter(by_arm.values()))[0]
    predictions = {arm: [kept for _, kept in runs] for arm, runs in by_arm.items()}
    all_runs = list(itertools.chain(*predictions.values()))
    tables: list[ClassTable | ValueTable] = []
    lowest: dict[str, list[SampleRow]] = {}
    for arm, runs in predictions.items():
        if first.kind == "classes":
            tables.append(class_table(arm, runs))
        else:
            tables.append(value_table(arm, runs))
        lowest[arm] = [_row(runs, {arm: runs}, index) for index in worst(runs, MAX_WORST)]
    contested = []
    for index, value in zip(*disputed(all_runs, MAX_DISPUTED), strict=True):
        contested.append(_row(all_runs, predictions, index, disagreement=float(value)))
    # The first of each arm, then the second: all arms have samples with views where there are too many.
    ranks = itertools.chain(*itertools.zip_longest(*lowest.values()))
    wanted = dict.fromkeys(row.sample for row in (*contested, *ranks) if row is not None)
    shown, note = views(first_record.path, first.meta.get("fingerprint"), list(wanted)[:MAX_VIEWS])
    return SampleTables(
        kind=first.kind,
        kept=len(first),
        of=first.meta.get("of"),
        classes=_class_names(first_record, first),
        left_out=left_out,
        arms=tables,
        worst=lowest,
        disputed=contested,
        runs=len(all_runs),
        views=shown,
        note=note,
    )


def _read(records: Iterable[LoadedRun]) -> tuple[dict[str, Runs], list[str]]:
    """Return the predictions of the runs with the same test samples, by arm, and the reasons to leave out others."""
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
            predictions = read_predictions(record.path / TEST)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{record.run}: {error}")
        else:
            if predictions.kind != "tokens":  # sums of sequences, which have no table
                read.append((record, predictions))
    if not read:
        return {}, problems
    keys: list[tuple[object, ...]] = []  # runs with the same key are compared sample by sample
    for _, predictions in read:
        shape = predictions.meta.get("classes")
        if predictions.kind == "values":
            shape = predictions["target"].shape
        keys.append((predictions.kind, predictions.meta.get("fingerprint"), predictions["sample"].tobytes(), shape))
    others: list[str] = []
    most = Counter(keys).most_common(1)[0][0]
    by_arm: dict[str, Runs] = {}
    for (record, predictions), key in zip(read, keys, strict=True):
        if key == most:
            by_arm.setdefault(record.arm, []).append((record, predictions))
        else:
            others.append(record.run)
    if len(others) <= MAX_NAMED:
        problems += [f"{run}: its test samples are not those of the other runs" for run in others]
    else:
        problems.append(f"{len(others)} of {len(read)} runs have test samples of their own, {others[0]} among them")
    if len(arms) > MAX_ARMS:
        problems.append(f"only the first {MAX_ARMS} of {len(arms)} arms are read")
    return by_arm, problems


def _class_names(record: LoadedRun, predictions: SamplePredictions) -> list[str]:
    """Return the names of the classes, their numbers where the data have no names, none for values."""
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
    """Return a sample: its target, mean loss over `runs`, and the answers of each arm."""
    first = runs[0]
    sample = int(first["sample"][row])
    losses = [float(run["loss"][row]) for run in runs]
    loss = float(sum(losses) / len(losses))
    target: int | list[float | None]
    answers: dict[str, list[list[float]] | list[list[float | None]]]
    if first.kind == "values":
        is_line = first["target"].shape[1] > 1
        target = _rounded(first, first["target"][row])
        answers = {}
        for arm, predictions in by_arm.items():
            # Lines of all runs would cover each other.
            drawn = predictions[:1] if is_line else predictions
            answers[arm] = [_rounded(run, run["prediction"][row]) for run in drawn]
    else:
        target = int(first["target"][row])
        answers = {arm: _votes(predictions, row) for arm, predictions in by_arm.items()}
    return SampleRow(sample=sample, loss=loss, target=target, answers=answers, disagreement=disagreement)


def _votes(runs: list[SamplePredictions], row: int) -> list[list[float]]:
    """Return the predicted classes: [class, number of runs, their mean probability], the most frequent first."""
    votes: dict[int, list[float]] = {}
    for run in runs:
        predicted = int(run["top"][row, 0])
        votes.setdefault(predicted, []).append(float(run["probability"][row, 0]))
    rows: list[list[float]] = []
    for predicted, probabilities in votes.items():
        count = len(probabilities)
        rows.append([predicted, count, sum(probabilities) / count])
    return sorted(rows, key=lambda vote: -vote[1])


def _rounded(predictions: SamplePredictions, values: np.ndarray) -> list[float | None]:
    """Return the first values, without the noise below a millionth of the largest target."""
    largest = float(np.nanmax(np.abs(predictions["target"]), initial=0.0))
    digits = 6
    if largest > 0:
        digits -= math.ceil(math.log10(largest))
    rounded: list[float | None] = []
    for value in values[:MAX_VALUES]:
        if np.isfinite(value):
            # Adding 0.0 turns -0.0 into 0.0: the page would show the sign.
            rounded.append(round(float(value), digits) + 0.0)
        else:
            rounded.append(None)
    return rounded


def value_table(arm: str, runs: list[SamplePredictions]) -> ValueTable:
    """Return the errors in the units of the data, and pairs of true value and mean prediction over the runs."""
    target = runs[0]["target"].astype(np.float64)  # (n, V)
    predicted = np.asarray(np.mean([run["prediction"] for run in runs], axis=0, dtype=np.float64))
    finite = np.isfinite(target)
    pairs = np.stack([target[finite], predicted[finite]], axis=1)
    step = max(1, -(-len(pairs) // MAX_DOTS))
    rmse: float | None = None
    mae: float | None = None
    bias: float | None = None
    if finite.any():
        # The error of a run, then the mean over runs: an error of the mean prediction would be that of an ensemble.
        errors = [np.where(finite, run["prediction"] - target, np.nan) for run in runs]
        rmse = float(np.mean([np.sqrt(np.nanmean(error**2)) for error in errors]))
        mae = float(np.mean([np.nanmean(np.abs(error)) for error in errors]))
        bias = float(np.mean([np.nanmean(error) for error in errors]))
    return ValueTable(arm=arm, runs=len(runs), rmse=rmse, mae=mae, bias=bias, dots=pairs[::step].tolist())
