"""Read a bundle as a stranger's, compute its comparison again, and name its differences from the recorded one.

Nothing that the bundle names is imported before its configs are checked, and without `rerun` none of it is built.
"""

from __future__ import annotations

import html
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, read_yaml
from blockyard.errors import UserError, first_line, quoted
from blockyard.report.bundle.archive import CRATE, ROOT, BundleManifest, unpack
from blockyard.report.bundle.crate import crate_differences
from blockyard.report.bundle.scrubbing import scrubbed_keys
from blockyard.report.comparison import Comparison, compare
from blockyard.report.home.stale import DATA, PAGE
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.report.page import render
from blockyard.report.samples.scores import SCORES, ScoresDisagreeError, arm_scores
from blockyard.runs.folder import CONFIG
from blockyard.runs.identity import identity
from blockyard.runs.members import UNSOUND, is_run
from blockyard.runs.predictions_file import TEST as PREDICTIONS
from blockyard.runs.store import runs
from blockyard.runs.untrusted_run import harm_in
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS
from blockyard.sweep.plan.sweep_plan import SweepPlan

CLOSE = 1e-6  # relative: other versions of scipy and numpy round otherwise
# Keys of a comparison that depend on the time, the machine or the data, which no bundle holds.
_NOT_COMPUTED = {
    *("stale", "samples", "written", "predictions", "attention", "provenance", "warnings", "tasks", "source", "title"),
    *("claim", "question", "curves", "cost_axis"),
}
_NOT_OF_ARMS = {"changes", "cost", "cost_ratio", "pareto", "overrides"}
_OF_CELLS = ("arm", "seed", "state", "metrics")


@dataclass(frozen=True)
class Verified:
    """The content of a bundle, and its faults.

    comparison: computed again from its metrics and predictions
    differences: a sentence on each difference between its records and the values that follow from its files
    agreed: metric -> the number of runs in which its value followed from the predictions
    notes: a sentence on each part that was not computed again
    """

    manifest: BundleManifest
    comparison: Comparison
    differences: list[str] = field(default_factory=list)
    agreed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@contextmanager
def opened(path: Path) -> Iterator[tuple[BundleManifest, Path]]:
    """Unpack a bundle into a temporary folder, which is removed at the end. Raises UserError for an unsafe one."""
    with tempfile.TemporaryDirectory(prefix="blockyard-bundle-") as folder:
        yield unpack(path, Path(folder)), Path(folder)


def verify(path: Path, manifest: BundleManifest, folder: Path, allow: Sequence[str] = ()) -> Verified:
    """Check the unpacked files and compute the comparison again. Raises UserError for a file that could do harm.

    allow: packages besides the trusted ones whose classes its configs may name; they are not imported here
    """
    entries = sorted(runs(folder / ROOT), key=lambda entry: entry.name)
    # Every config is checked before any is used.
    records = [_record(entry.path, path, allow) for entry in entries]
    base = folder / ROOT / manifest.name
    if manifest.kind == "sweep":
        base = folder / ROOT / SWEEPS / manifest.name
    try:
        recorded = read_json(base / DATA)
        if not isinstance(recorded, dict) or not {"arms", "answer", "metric", "cells"} <= recorded.keys():
            raise ValueError(f"{DATA} holds no comparison")
        if manifest.kind == "sweep":
            for cell in SweepPlan.load(base).cells:
                if not is_run(cell.run):
                    raise UserError(f"the plan names the run {quoted(cell.run)}, which is not a folder of a bundle")
        comparison = compare(base, outputs=folder / ROOT, changes=False)
        result = Verified(manifest, comparison)
        result.differences.extend(_configs(records, result.notes))
        _recompute(records, result)
        result.differences.extend(_differences(recorded, comparison.as_dict()))
        result.differences.extend(_page(base, recorded, result.notes))
        # Bundles of older versions have none.
        if CRATE in manifest.members:
            result.differences.extend(crate_differences(read_json(folder / CRATE), manifest.members))
    except UserError as error:
        raise UserError(f"{path} cannot be compared: {_anywhere(str(error), folder)}") from error
    except (*UNSOUND, OSError) as error:
        raise UserError(f"{path} cannot be compared: {_anywhere(first_line(error), folder)}") from error
    return result


def _anywhere(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "")


def _record(run: Path, path: Path, allow: Sequence[str]) -> LoadedRun:
    """Return a run as the report reads it. Raises UserError for a config or predictions that could do harm."""
    name = f"{run.parent.name}/{run.name}"
    harm = harm_in(run, allow)
    if harm is not None:
        raise UserError(f"{path} is not read: {_anywhere(harm, run.parents[2])}")
    record = read_run(run, arm=name, seed=int(run.name[1:]))
    if record.damage is not None:
        raise UserError(f"{path} is not read: {_anywhere(record.damage, run.parents[2])}")
    return record


def _configs(records: Iterable[LoadedRun], notes: list[str]) -> Iterator[str]:
    """Yield a sentence for each run in a folder of another config: its name holds the hash of the config."""
    left = 0
    for record in records:
        config = read_yaml(record.path / CONFIG)
        # The hash of such a config needs the package, or the path that was removed.
        if config.get("allow") or scrubbed_keys(config):
            left += 1
            continue
        computed = identity(config)
        named = record.path.parent.name.rpartition("-")[2]
        if computed != named:
            edited = "it was edited, or another version wrote it"
            yield f"{record.run}: the identity of its {CONFIG} is {computed}, not {named}: {edited}"
        if config.get("seed") != record.seed:
            yield f"{record.run}: the seed of its {CONFIG} is {quoted(config.get('seed'))}"
    if left:
        notes.append(f"the configs of {left} runs name packages of their own or paths, whose hash is not computed")


def _differences(recorded: dict[str, Any], computed: dict[str, Any]) -> Iterator[str]:
    """Yield the differences of a recorded comparison from the computed one, a sentence each."""
    for key in recorded:
        if key in computed and key not in {*_NOT_COMPUTED, "arms", "cells"}:
            yield from _unlike(key, recorded[key], computed[key])
    recorded_arms = {str(row["name"]): row for row in recorded["arms"]}
    computed_arms = {str(row["name"]): row for row in computed["arms"]}
    if list(recorded_arms) != list(computed_arms):
        yield f"the arms are {', '.join(computed_arms)}, recorded {', '.join(recorded_arms)}"
    else:
        for name, row in recorded_arms.items():
            for key in row:
                # A key that one of two versions lacks is left out.
                if key in computed_arms[name] and key not in _NOT_OF_ARMS:
                    yield from _unlike(f"arm {name}, {key}", row[key], computed_arms[name][key])
    recorded_cells = recorded["cells"]
    computed_cells = computed["cells"]
    recorded_names = [_cell_name(cell) for cell in recorded_cells]
    computed_names = [_cell_name(cell) for cell in computed_cells]
    if recorded_names != computed_names:
        yield f"the cells are {', '.join(computed_names)}, recorded {', '.join(recorded_names)}"
        return
    for name, was, now in zip(recorded_names, recorded_cells, computed_cells, strict=True):
        recorded_cell = {key: was.get(key) for key in _OF_CELLS}
        computed_cell = {key: now.get(key) for key in _OF_CELLS}
        yield from _unlike(f"cell {name}", recorded_cell, computed_cell)


def _cell_name(cell: Mapping[str, Any]) -> str:
    # An empty setting is not part of the name.
    return f"{cell.get('arm')} s{cell.get('seed')} {cell.get('setting')}".removesuffix(" {}")


def _unlike(where: str, recorded: Any, computed: Any) -> Iterator[str]:
    """Yield a sentence for each value that differs; numbers are alike within rounding."""
    if isinstance(recorded, Mapping) and isinstance(computed, Mapping):
        for key in sorted(recorded.keys() & computed.keys()):
            yield from _unlike(f"{where}, {key}", recorded[key], computed[key])
        for key in sorted(map(str, recorded.keys() ^ computed.keys())):
            if where.endswith(("values", "metrics")):
                problem = "not computed" if key in recorded else "not recorded"
                yield f"{where}: {quoted(key)} is {problem}"
    elif isinstance(recorded, list) and isinstance(computed, list) and len(recorded) == len(computed):
        for index, (was, now) in enumerate(zip(recorded, computed, strict=True)):
            yield from _unlike(f"{where} {index}", was, now)
    elif not _alike(recorded, computed):
        yield f"{where}: computed {_shown(computed)}, recorded {_shown(recorded)}"


def _alike(recorded: Any, computed: Any) -> bool:
    if isinstance(recorded, bool) or isinstance(computed, bool):
        return recorded is computed
    if isinstance(recorded, int | float) and isinstance(computed, int | float):
        return math.isclose(recorded, computed, rel_tol=CLOSE, abs_tol=1e-12)
    return type(recorded) is type(computed) and bool(recorded == computed)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return quoted(value)


def _page(base: Path, recorded: dict[str, Any], notes: list[str]) -> Iterator[str]:
    """Yield a sentence where the page is not the recorded comparison, as this version draws it."""
    page = (base / PAGE).read_text(encoding="utf-8", errors="replace")
    if page == render(recorded):
        return
    if _data_of(page) == _data_of(render(recorded)):
        here = f"blockyard {version('blockyard')}"
        notes.append(
            f"{PAGE} shows the recorded comparison, with other scripts than those of {here}: scripts "
            "run where it is opened; `blockyard compare` of the unpacked bundle writes a page of your own"
        )
        return
    yield f"{PAGE} does not show the recorded comparison"


def _data_of(page: str) -> str | None:
    """Return the data that a page shows; None without any."""
    _, begin, rest = page.partition('<script type="application/json" id="data">')  # as every version has written it
    data, end, _ = rest.partition("</script>")
    if begin and end:
        return html.unescape(data).strip()
    return None


def _recompute(records: Iterable[LoadedRun], result: Verified) -> None:
    """Compute accuracy and loss again from the predictions for single test samples."""
    for record in records:
        for metric in SCORES:
            if not record.done or metric not in record.metrics or not (record.path / PREDICTIONS).exists():
                continue
            try:
                arm_scores([record], metric)
                result.agreed[metric] = result.agreed.get(metric, 0) + 1
            except ScoresDisagreeError as error:
                text = str(error).removeprefix("over: ").removesuffix("; use over=seeds")
                # An accuracy is a mean over samples; a loss may be smoothed or weighted.
                (result.differences if metric == "test/accuracy" else result.notes).append(text)
            except UserError as error:
                text = str(error).removeprefix("over: ").removesuffix("; use over=seeds")
                result.notes.append(f"{metric} was not computed again: {text}")
