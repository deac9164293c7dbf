"""Repeat runs of a bundle and compare their results bit by bit.

The saved config goes through the checks of any stranger's run folder. The run has a temporary folder, which is the
working folder before anything that the config names is opened, no logger, and as many CPU threads as the recorded run
had, on which sums depend.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.config.tree import Node
from blockyard.engine.callbacks.device_stats import PREFIX
from blockyard.engine.run import train
from blockyard.errors import UserError, quoted
from blockyard.report.bundle.scrubbing import scrubbed_keys
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import trusted_config
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import read_metrics
from blockyard.runs.predictions_file import TEST as PREDICTIONS
from blockyard.runs.predictions_file import read_predictions
from blockyard.runs.provenance import host_facts, versions
from blockyard.runs.start import create_run
from blockyard.sweep.cell.execute import log_to_file
from blockyard.weights.sources import library_of

_NO_LOGGER = {"_target_": "blockyard.engine.loggers.none.NoLogger"}
_CLOCK = ("seconds", "step_seconds", "samples_per_second", "tokens_per_second", "peak_memory")


@dataclass(frozen=True)
class Repeated:
    """A run of a bundle that was repeated.

    metrics, rows, samples: how many values of the summary, steps of metrics.csv and predictions were compared
    unlike: what has other bits, a sentence each; surroundings: what differs in machine, packages or data
    """

    run: str
    metrics: int
    rows: int
    samples: int
    unlike: list[str] = field(default_factory=list)
    surroundings: list[str] = field(default_factory=list)


def rerun(
    recorded: RunFolder, scratch: Path, *, allow: Sequence[str] = (), moved: Mapping[str, str] | None = None
) -> Repeated:
    """Repeat a finished run and compare its metrics and predictions. scratch: an empty folder of its own

    allow: packages whose classes its config may name; moved: where its data are, `{"root": "/data"}`

    Raises UserError for a config that is refused and for data that is elsewhere, SystemExit where a signal stops it.
    """
    located = recorded
    if moved:
        # Absolute, since the run has another working folder.
        absolute = {key: os.path.abspath(path) for key, path in moved.items()}
        located = recorded.with_data(absolute)
    data = {**(recorded.config.get("data") or {}), **located.moved}
    _check_paths({**recorded.config, "data": data}, recorded.name, scratch, located.moved)
    choices = recorded.facts().get("choices")
    with contextlib.chdir(scratch):
        config = _repeatable(trusted_config(located, list(allow), training=True), recorded, scratch)
        command = ["blockyard", "verify-bundle"]
        with log_to_file(scratch / "log.txt"), create_run(config, command=command, choices=choices or {}) as folder:
            code = train(folder)
    if code > 128:  # stopped by a signal
        raise SystemExit(code)
    if code:
        return Repeated(recorded.name, 0, 0, 0, [f"it is {folder.status}"])
    return _compared(recorded, folder)


def _repeatable(config: Node, recorded: RunFolder, scratch: Path) -> Node:
    """Return the config with the recorded number of threads, in the temporary folder and without a logger."""
    threads = recorded.summary().get("threads")
    trainer = dict(config["trainer"])
    # The number of threads sets the order of a sum, and so its last bits.
    if isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= 1024:
        trainer["threads"] = min(threads, os.cpu_count() or 1)
    return {**config, "trainer": trainer, "logger": _NO_LOGGER, "outputs": str(scratch / "outputs"), "force": False}


def _check_paths(config: Node, name: str, scratch: Path, moved: Mapping[str, Any]) -> None:
    """Raise UserError for data that is not here, and for a path that leads out of the temporary folder."""
    gone = scrubbed_keys(config)
    others = [key for key in gone if not key.startswith("data.")]
    if others:
        raise UserError(f"{name} cannot be run again from a bundle: it starts from files of {', '.join(others)}")
    if gone:
        arguments = " ".join(f"{key}=PATH" for key in gone)
        raise UserError(f"{name} reads files that are in no bundle: say where they are, {arguments}")
    options = {key: value for key, value in config.items() if key not in ("name", "tags", "outputs")}
    for key, text in _texts(options):
        # A path that the caller states may lead anywhere.
        stated = key.startswith("data.") and key.removeprefix("data.") in moved
        if not stated and _leaves(text, scratch):
            raise UserError(
                f"{name}: {key}={quoted(text)} leads out of the folder that the run has here, and is not followed"
            )


def _leaves(text: str, folder: Path) -> bool:
    """Return whether a text, if anything takes it for a path, leads out of a folder that is the working folder.

    Any option may be a path, and what takes it for one may remove spaces, expand a `~`, or open an address of a file.
    """
    path = text.strip().removeprefix(library_of(text.strip()) or "")
    chained = [part.lower() for part in path.split("::")]
    if path.startswith("~") or any(part.startswith(("file:", "local:")) for part in chained):
        return True
    try:
        return not (folder / path).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # longer than a path, or with a zero byte
        return "/" in path


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of a config with its dotted key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _compared(recorded: RunFolder, repeated: RunFolder) -> Repeated:
    was, now = recorded.summary(), repeated.summary()
    metrics = was.get("metrics") or {}
    unlike = list(_unlike_values("", metrics, now.get("metrics") or {}))
    recorded_rows = _rows_by_step(recorded)
    repeated_rows = _rows_by_step(repeated)
    for step in sorted(recorded_rows.keys() | repeated_rows.keys()):
        where = f"{METRICS}, step {step}, "
        unlike += _unlike_values(where, recorded_rows.get(step, {}), repeated_rows.get(step, {}))
    samples = 0
    if (recorded.path / PREDICTIONS).exists():
        samples, lines = _unlike_predictions(recorded.path, repeated.path)
        unlike += lines
    result = Repeated(recorded.name, len(metrics), len(recorded_rows), samples, unlike)
    result.surroundings.extend(_surroundings(recorded, repeated, was, now))
    return result


def _rows_by_step(run: RunFolder) -> dict[int, Mapping[str, Any]]:
    return {int(row["step"]): row for row in read_metrics(run.path / METRICS)}


def _unlike_values(where: str, recorded: Mapping[str, Any], repeated: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that has other bits, except the metrics of speed and memory."""
    for name in dict.fromkeys([*recorded, *repeated]):
        if name in _CLOCK or name.startswith(PREFIX):
            continue
        was, now = recorded.get(name), repeated.get(name)
        if was is None or now is None:
            if was is not now:
                yield f"{where}{name}: {_exact(was)}, repeated {_exact(now)}"
        # By their bits: == takes 0.0 for -0.0, and no NaN for itself.
        elif float(was).hex() != float(now).hex():
            yield f"{where}{name}: {_exact(was)}, repeated {_exact(now)}, {_apart(float(was), float(now))}"


def _exact(value: Any) -> str:
    return "no value" if value is None else repr(float(value))


def _apart(was: float, now: float) -> str:
    scale = max(abs(was), abs(now))
    if math.isfinite(scale) and scale:
        return f"a difference of {abs(was - now) / scale:.1g} of its size"
    return "not alike"


def _unlike_predictions(recorded: Path, repeated: Path) -> tuple[int, list[str]]:
    """Return the number of samples that were compared, and a sentence on the arrays that have other bits."""
    was = read_predictions(recorded / PREDICTIONS)
    try:
        now = read_predictions(repeated / PREDICTIONS)
    except FileNotFoundError:
        return len(was), [f"{PREDICTIONS} was not written"]
    names = []
    for name, array in was.arrays.items():
        if name in now.arrays and array.dtype == now[name].dtype and array.tobytes() == now[name].tobytes():
            continue
        names.append(name)
    if names:
        return len(was), [f"{PREDICTIONS}: other bits in {', '.join(names)}"]
    return len(was), []


def _surroundings(recorded: RunFolder, repeated: RunFolder, was: Node, now: Node) -> Iterator[str]:
    """Yield the differences around the two runs that may change bits."""
    facts = recorded.facts()
    installed = versions()
    host = host_facts()
    for package, version in (facts.get("versions") or {}).items():
        if installed.get(package) != version:
            yield f"{package} {version}, here {installed.get(package, 'not installed')}"
    git = facts.get("git") or {}
    here = repeated.facts().get("git") or {}
    if git and (git.get("commit"), git.get("diff_hash")) != (here.get("commit"), here.get("diff_hash")):
        yield f"code of commit {str(git.get('commit'))[:10]}, here {str(here.get('commit') or 'unknown')[:10]}"
    for key, part in (("cpu", "CPU"), ("system", "system")):
        before = (facts.get("host") or {}).get(key)
        if before and before != host.get(key):
            yield f"{part} {before}, here {host.get(key)}"
    for key in ("device", "threads", "processes", "precision", "kernels"):
        if was.get(key) != now.get(key):
            yield f"{key} {quoted(was.get(key))}, here {quoted(now.get(key))}"
    fingerprint = (was.get("data") or {}).get("fingerprint")
    fingerprint_here = (now.get("data") or {}).get("fingerprint")
    if fingerprint != fingerprint_here:
        yield f"data with the fingerprint {str(fingerprint)[:12]}, here {str(fingerprint_here)[:12]}"
