"""`blockyard bundle`: write a sweep or a run as one file for others."""

from __future__ import annotations

import sys
from typing import Annotated

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Outputs, Switch, Value, planned_sweeps
from blockyard.config.option_text import non_empty
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError


@command()
def bundle(
    name: Annotated[str, Value("SWEEP|RUN", values=planned_sweeps)],
    *,
    out: Annotated[str, Value("FILE.zip", non_empty)],
    weights: Switch = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Write a sweep, or one finished run, as one ZIP file for others.

    It has the plan, the config, metrics, predictions and versions of every run, the comparison and its page. `blockyard
    verify-bundle FILE.zip` checks it anywhere. The same sweep gives the same bytes.

    Paths of this machine are written as <path>/NAME. Its name, accounts, logs and the optimizer's state are left out,
    and secrets are in no run folder. The page shows samples of the test data, with their pictures and texts.

    Options:
        name: a sweep's name, file or folder; a run's folder, name or id, or last
        out: the file to write, in place of an older one
        weights: also the best weights of every finished run, as safetensors, and what its tokenizer learned
        outputs: where names and ids are looked up

    Examples:
        blockyard bundle quickstart out=quickstart.zip
        blockyard bundle last out=run.zip weights=true
    """
    path = local_path(out, "out")
    if path.suffix != ".zip" or path.is_dir():
        raise UserError(f"out={out}: expected a file .zip")
    from blockyard.report.bundle.write import write_bundle

    written = write_bundle(name, path, outputs=outputs, weights=weights)
    size = path.stat().st_size
    what = f"{written.runs} of {written.cells} cells" if written.manifest.kind == "sweep" else "one run"
    sys.stdout.write(
        f"{path}: {written.manifest.name}, {what}, {len(written.manifest.members)} files, {size:,} bytes\n"
    )
    if written.shown:
        sys.stdout.write(f"its page shows {written.shown} samples of the test data\n")
    if written.moved:
        sys.stdout.write(f"paths that a reader has to name for --rerun: {', '.join(written.moved)}\n")
