"""Writes the bundle of a sweep or of one run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, read_member, read_yaml, write_json, write_yaml
from blockyard.errors import UserError, first_line
from blockyard.report.bundle.archive import CRATE, ROOT, BundleManifest, Source, digests, write_archive
from blockyard.report.bundle.crate import crate_metadata
from blockyard.report.bundle.scrubbing import scrubbed, scrubbed_keys
from blockyard.report.comparison import compare
from blockyard.report.home.stale import DATA, PAGE
from blockyard.report.load.resolve import resolve
from blockyard.report.page import render
from blockyard.runs.checkpoint import BEST, PREFIX, read
from blockyard.runs.folder import CONFIG, RUN, SOURCE_TOKENIZER, SUMMARY, TOKENIZER, RunFolder
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.predictions_file import TEST as PREDICTIONS
from blockyard.runs.status import FILE as STATUS
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS
from blockyard.sweep.plan.sweep_plan import SweepPlan

_JSON = (RUN, STATUS, SUMMARY, "extrapolation-test.json")
_AS_THEY_ARE = (METRICS, PREDICTIONS, "written-test.jsonl")  # values, and texts of the data


@dataclass(frozen=True)
class WrittenBundle:
    """A bundle that was written.

    runs: how many of the cells have a run; shown: test samples whose picture or text is on the page
    moved: keys of configs whose path was taken out
    """

    path: Path
    manifest: BundleManifest
    runs: int
    cells: int
    shown: int
    moved: tuple[str, ...]


def write_bundle(name: str, out: Path, *, outputs: str = "outputs", weights: bool = False) -> WrittenBundle:
    """Write the bundle of a sweep (its name, file or folder) or of a run (its folder, name or id).

    weights: also the best weights of every finished run, as safetensors, and what its tokenizer learned

    Raises UserError for what is not there, goes on, or is not compared yet.
    """
    resolved = resolve([name], outputs)
    if len(resolved.sweeps) == 1 and not resolved.runs:
        return _sweep(SweepPlan.load(resolved.sweeps[0]), out, weights)
    if len(resolved.runs) == 1 and not resolved.sweeps:
        return _run(RunFolder.open(resolved.runs[0]), out, weights)
    count = len(resolved.runs) + len(resolved.sweeps)
    raise UserError(f"{name} names {count} runs and sweeps; a bundle holds one of them")


def _sweep(plan: SweepPlan, out: Path, weights: bool) -> WrittenBundle:
    again = f"run `blockyard sweep` of {plan.name} again, without --no-compare"
    try:
        comparison = read_json(plan.folder / DATA, read=read_member)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{plan.folder} has no {DATA}, what was answered: {again}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{plan.folder / DATA} cannot be read ({first_line(error)}): {again}") from error
    if not isinstance(comparison, dict) or not isinstance(comparison.get("cells"), list):
        raise UserError(f"{plan.folder / DATA} is damaged: {again}")
    if comparison.get("stale"):
        raise UserError(f"{plan.folder / DATA} is out of date: {again}")
    raw = read_json(plan.folder / PLAN, read=read_member)  # which has been loaded
    recorded = _recorded_folders(raw.get("outputs"), plan.facts)
    base = f"{ROOT}/{SWEEPS}/{plan.folder.name}"
    members: dict[str, Source] = {f"{base}/{PLAN}": _dumped({**scrubbed(raw, recorded), "outputs": ROOT})}
    members |= _answer(base, comparison, recorded)
    folders = [plan.path(cell) for cell in plan.cells if (plan.path(cell) / CONFIG).is_file()]
    return _write(out, "sweep", plan.folder.name, members, folders, len(plan.cells), comparison, recorded, weights)


def _run(run: RunFolder, out: Path, weights: bool) -> WrittenBundle:
    if not run.finished:
        raise UserError(f"{run.path} is {run.status}; a bundle holds a finished run")
    comparison = compare([run.path]).as_dict()
    comparison["provenance"]["time"] = run.status.ended or ""  # rather than now: the same run, the same bytes
    recorded = _recorded_folders(run.config.get("outputs"), run.facts())
    members = _answer(f"{ROOT}/{run.name}", comparison, recorded)
    return _write(out, "run", run.name, members, [run.path], 1, comparison, recorded, weights)


def _write(
    out: Path,
    kind: str,
    name: str,
    members: dict[str, Source],
    folders: Iterable[Path],
    cells: int,
    comparison: Mapping[str, Any],
    recorded: tuple[str, ...],
    weights: bool,
) -> WrittenBundle:
    versions: dict[str, set[str]] = {}
    moved: dict[str, None] = {}
    runs: list[RunFolder] = []
    with tempfile.TemporaryDirectory(prefix="blockyard-bundle-") as scratch:
        for path in dict.fromkeys(folders):
            run = RunFolder.open(path)
            runs.append(run)
            if run.status.state in ("running", "queued"):
                raise UserError(f"{path} is {run.status}; wait for its end")
            own, keys = _run_members(run, recorded, Path(scratch), weights)
            members |= own
            moved |= dict.fromkeys(keys)
            for package, version in (run.facts().get("versions") or {}).items():
                versions.setdefault(str(package), set()).add(str(version))
        try:
            every = {package: sorted(each) for package, each in sorted(versions.items())}
            described = digests(members)
            time = (comparison.get("provenance") or {}).get("time")
            crate: dict[str, Source] = {CRATE: crate_metadata(f"{kind} {name}", time, runs, described)}
            manifest = BundleManifest(kind, name, every, described | digests(crate))
            write_archive(out, manifest, members | crate)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    shown = len(((comparison.get("samples") or {}).get("views")) or ())
    return WrittenBundle(out, manifest, len(runs), cells, shown, tuple(moved))


def _answer(base: str, comparison: Mapping[str, Any], recorded: tuple[str, ...]) -> dict[str, Source]:
    """Return the members of the recorded comparison: its data and its page."""
    clean: dict[str, Any] = scrubbed(comparison, recorded)
    return {f"{base}/{DATA}": _dumped(clean), f"{base}/{PAGE}": render(clean).encode()}


def _run_members(
    run: RunFolder, recorded: tuple[str, ...], scratch: Path, weights: bool
) -> tuple[dict[str, Source], list[str]]:
    """Return the members of one run, and the keys of its config that were paths."""
    base, folder = f"{ROOT}/{run.name}", scratch / run.name
    folder.mkdir(parents=True)
    run.check_members()
    config = {**scrubbed(read_yaml(run.path / CONFIG), recorded), "outputs": ROOT}
    write_yaml(folder / CONFIG, config)
    names = [*_JSON, *((TOKENIZER, SOURCE_TOKENIZER) if weights else ())]
    for name in names:
        if os.path.lexists(run.path / name):
            try:
                content = read_json(run.path / name, read=read_member)
            except UserError:
                raise
            except (OSError, ValueError) as error:
                raise UserError(f"{run.path / name} cannot be read: {first_line(error)}") from error
            private = name not in (TOKENIZER, SOURCE_TOKENIZER)
            write_json(folder / name, scrubbed(content, recorded) if private else content, checked=name != STATUS)
    if weights and run.finished:
        _write_best(run, folder / WEIGHTS)
    members: dict[str, Source] = {f"{base}/{path.name}": path for path in folder.iterdir()}
    members |= {f"{base}/{name}": run.path / name for name in _AS_THEY_ARE if os.path.lexists(run.path / name)}
    return members, scrubbed_keys(config)


def _write_best(run: RunFolder, path: Path) -> None:
    """Write the weights of best.ckpt as safetensors, which hold no pickle."""
    try:
        content = read(run.checkpoints / BEST, identity=run.identity, seed=run.seed)
    except FileNotFoundError:
        raise UserError(f"{run.path} has no {BEST}, which weights=true asks for; leave it out") from None
    saved = content["state_dict"]
    write_weights(path, {name.removeprefix(PREFIX): each for name, each in saved.items() if name.startswith(PREFIX)})


def _recorded_folders(outputs: Any, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Folders that were recorded and that texts may name; not those of today, for the same bytes everywhere."""
    file = facts.get("file")
    recorded = (outputs, facts.get("folder"), os.path.dirname(str(file)) if file else None)
    return tuple(str(each) for each in recorded if each and os.path.isabs(str(each)))


def _dumped(value: Any) -> bytes:
    return (json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n").encode("utf-8", errors="replace")
