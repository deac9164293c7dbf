"""What the page shows of the predictions for single test samples, from the files that the runs keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from blockyard.report.load.run_record import RunRecord
from blockyard.report.samples.class_scores import class_count
from blockyard.report.samples.class_tables import class_table
from blockyard.report.samples.selected import disputed, worst
from blockyard.report.samples.value_tables import value_table
from blockyard.report.samples.views import views
from blockyard.runs.predictions_file import TEST, read_predictions

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

MAX_ARMS = 24  # whose predictions are read
MAX_WORST = 12  # samples of an arm
MAX_DISPUTED = 24
MAX_VIEWS = 160
MAX_VALUES = 48  # of a sample with several values

Runs: TypeAlias = "list[tuple[RunRecord, SamplePredictions]]"


def samples(records: Iterable[RunRecord]) -> dict[str, Any] | None:
    """Return the tables and samples of the page; None where no run has predictions.

    Only runs of the same test samples can stand side by side: `left_out` names those that have others than most. The
    pictures and texts of the selected samples are read from the data again.
    """
    by_arm, left_out = _read(records)
    if not by_arm:
        return None
    first_record, first = next(iter(by_arm.values()))[0]
    result: dict[str, Any] = {
        "kind": first.kind,
        "kept": len(first),
        "of": first.meta.get("of"),
        "classes": _class_names(first_record, first),
        "left_out": left_out,
    }
    table = class_table if first.kind == "classes" else value_table
    result["arms"] = [table(arm, [each for _, each in runs]) for arm, runs in by_arm.items()]
    result |= _selected(by_arm)
    by_rank = (arm[k] for k in range(MAX_WORST) for arm in result["worst"].values() if k < len(arm))
    chosen = [*result["disputed"], *by_rank]
    wanted = list(dict.fromkeys(row["sample"] for row in chosen))[:MAX_VIEWS]
    result["views"], result["note"] = views(first_record.path, first.meta.get("fingerprint"), wanted)
    return result


def _read(records: Iterable[RunRecord]) -> tuple[dict[str, Runs], list[str]]:
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
            read.append((record, read_predictions(record.path / TEST)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{record.run}: {error}")
    if not read:
        return {}, problems
    keys = [_key(each) for _, each in read]
    most = Counter(keys).most_common(1)[0][0]
    by_arm: dict[str, Runs] = {}
    for (record, each), key in zip(read, keys, strict=True):
        if key == most:
            by_arm.setdefault(record.arm, []).append((record, each))
        else:
            problems.append(f"{record.run}: its test samples are not those of the other runs")
    if len(arms) > MAX_ARMS:
        problems.append(f"only the first {MAX_ARMS} of {len(arms)} arms are read")
    return by_arm, problems


def _key(predictions: SamplePredictions) -> tuple[object, ...]:
    """What must be equal for two runs to be compared sample by sample."""
    target = predictions["target"]
    shape = target.shape if predictions.kind == "values" else predictions.meta.get("classes")
    return (predictions.kind, predictions.meta.get("fingerprint"), predictions["sample"].tobytes(), shape)


def _class_names(record: RunRecord, predictions: SamplePredictions) -> list[str]:
    if predictions.kind != "classes":
        return []
    named = record.data.get("classes")
    count = class_count(predictions)
    if isinstance(named, list) and len(named) >= count:
        return [str(name) for name in named]
    return [str(index) for index in range(count)]


def _selected(by_arm: dict[str, Runs]) -> dict[str, Any]:
    own = {arm: [each for _, each in runs] for arm, runs in by_arm.items()}
    every = [each for runs in own.values() for each in runs]
    samples, measure = disputed(every, MAX_DISPUTED)
    return {
        "worst": {
            arm: [_row(runs, {arm: runs}, index) for index in worst(runs, MAX_WORST)] for arm, runs in own.items()
        },
        "disputed": [
            _row(every, own, index) | {"disagreement": float(value)}
            for index, value in zip(samples, measure, strict=True)
        ],
        "runs": len(every),
    }


def _row(runs: list[SamplePredictions], by_arm: dict[str, list[SamplePredictions]], row: int) -> dict[str, Any]:
    """A sample: its target, mean loss over `runs`, and the answers of each arm."""
    first = runs[0]
    common = {
        "sample": int(first["sample"][row]),
        "loss": float(sum(float(run["loss"][row]) for run in runs) / len(runs)),
    }
    if first.kind == "values":
        shown = None if first["target"].shape[1] == 1 else 1  # a line is drawn of the first run
        return common | {
            "target": _rounded(first, first["target"][row]),
            "answers": {
                arm: [_rounded(run, run["prediction"][row]) for run in own[:shown]] for arm, own in by_arm.items()
            },
        }
    answers = {}
    for arm, own in by_arm.items():
        votes: dict[int, list[float]] = {}
        for run in own:
            votes.setdefault(int(run["top"][row, 0]), []).append(float(run["probability"][row, 0]))
        # The predicted classes: how many runs of the arm, and their mean probability.
        answers[arm] = sorted(([name, len(p), sum(p) / len(p)] for name, p in votes.items()), key=lambda v: -v[1])
    return common | {"target": int(first["target"][row]), "answers": answers}


def _rounded(predictions: SamplePredictions, values: np.ndarray) -> list[float | None]:
    """The first values, without the noise below a millionth of the largest target."""
    largest = float(np.nanmax(np.abs(predictions["target"]), initial=0.0))
    digits = 6 - math.ceil(math.log10(largest)) if largest > 0 else 6
    return [round(float(each), digits) + 0.0 if np.isfinite(each) else None for each in values[:MAX_VALUES]]
