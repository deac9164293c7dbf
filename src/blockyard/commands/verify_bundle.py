"""`blockyard verify-bundle`: check a bundle."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from blockyard.commands._signature import command
from blockyard.commands._types import Allow, Flag, Moved, Value
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, printable
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.report.bundle.verify import Verified

_SHOWN = 20  # lines of differences


@command()
def verify_bundle(
    file: Annotated[str, Value("FILE")],
    *,
    rerun: Flag[Annotated[int, Ge(1)]] | None = None,
    allow: Allow = (),
    moved: Moved | None = None,
) -> int:
    """Check a bundle that `blockyard bundle` wrote, here or elsewhere.

    Checks every SHA-256, every config against its name, and the comparison, which is computed again from the metrics
    and predictions in the file and compared with the recorded one. Prints the computed verdicts and whatever differs.

    Nothing in a bundle is run: a file that could do harm, such as one with links, pickles, YAML tags or a _target_ of
    no trusted library, is refused before it is unpacked or read. The sums find damage, not forgery: who writes a bundle
    writes its sums. --rerun is what tests where the metrics come from.

    exit codes: 0 all is as recorded, 1 something differs, 2 the file is refused

    Options:
        file: a bundle, FILE.zip
        rerun: repeat the first N finished runs in a temporary folder, with as many CPU threads as they had, and compare
            metrics and predictions bit by bit; where bits differ, say what differs around the runs
        allow: packages whose classes its configs may name; the blockyard.yaml of a project is not asked
        moved: where the data of the runs are on this machine, for --rerun

    Examples:
        blockyard verify-bundle quickstart.zip
        blockyard verify-bundle quickstart.zip --rerun 1
    """
    if moved and not rerun:
        raise UserError(f"data.{next(iter(moved))} has an effect with --rerun only; add it, or leave it out")
    path = local_path(file)
    from blockyard.report.bundle.verify import opened, verify

    with opened(path) as (manifest, folder):
        verified = verify(path, manifest, folder, allow)
        _print(path, verified)
        differ = bool(verified.differences)
        if rerun:
            differ |= _rerun(folder, rerun, allow, moved or {})
    return 1 if differ else 0


def _print(path: Path, verified: Verified) -> None:
    """Print the files, the arms, the answer and the differences of a bundle."""
    manifest = verified.manifest
    data = verified.comparison
    version = ", ".join(manifest.versions.get("blockyard", ["an unknown version"]))
    _say(f"{path}: {manifest.kind} {manifest.name}, of blockyard {version}")
    _say(f"{len(manifest.members)} files, each with the SHA-256 of its manifest")
    rows = table(None, "arm", "n", data.metric, "verdict")
    for arm in data.arms:
        mean = "" if arm.mean is None else f"{arm.mean:.5g}"
        rows.add_row(arm.name, str(arm.n), mean, arm.verdict)
    console().print(rows)
    if data.expect:
        _say(f"expected: {data.expect.text}: {data.expect.judged}")
    _say(data.answer)
    if data.better_baseline:
        _say(data.better_baseline)
    for metric, count in verified.agreed.items():
        _say(f"{metric} is the mean over the predictions of {count} run{'s'[: count != 1]}")
    for note in verified.notes:
        _say(f"note: {note}")
    _list("the recorded comparison differs from this one", verified.differences)
    if not verified.differences:
        _say("verdicts, means and metrics are as recorded")


def _rerun(folder: Path, count: int, allow: Sequence[str], moved: Mapping[str, str]) -> bool:
    """Repeat runs, print the outcome of each, and return whether any has other bits."""
    from blockyard.report.bundle.archive import ROOT
    from blockyard.report.bundle.rerun import rerun
    from blockyard.runs.store import runs

    recorded_runs = sorted(runs(folder / ROOT), key=lambda run: run.name)
    finished = [run.folder for run in recorded_runs if run.status.finished]
    if not finished:
        raise UserError("--rerun: the bundle holds no finished run")
    if count > len(finished):
        raise UserError(f"--rerun {count}: the bundle holds {len(finished)} finished runs")
    differ = False
    for recorded in finished[:count]:
        with tempfile.TemporaryDirectory(prefix="blockyard-rerun-") as scratch:
            repeated = rerun(recorded, Path(scratch), allow=allow, moved=moved)
        compared = f"{repeated.metrics} metrics, {repeated.rows} steps"
        if repeated.samples:
            compared += f", {repeated.samples} predictions"
        if not repeated.unlike:
            _say(f"{repeated.run}, repeated: every bit the same ({compared})")
            continue
        differ = True
        _list(f"{repeated.run}, repeated: other bits ({compared})", repeated.unlike)
        around = repeated.surroundings or [
            "nothing that is recorded: packages, CPU, threads, device and data are the same"
        ]
        _list("what differs around the runs", around)
    return differ


def _list(title: str, lines: Sequence[str]) -> None:
    """Print the first lines of a list under its title; nothing for an empty list."""
    if lines:
        shown = [f"{title}:", *lines[:_SHOWN]]
        if len(lines) > _SHOWN:
            shown.append(f"and {len(lines) - _SHOWN} more")
        _say("\n  - ".join(shown))


def _say(text: str) -> None:
    sys.stdout.write(printable(f"{text}\n"))
